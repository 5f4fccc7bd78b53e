"""For all tests: how long an example takes depends on how busy the machine is, and proves nothing."""

from hypothesis import settings

settings.register_profile("gateway", deadline=None)
settings.load_profile("gateway")
