"""An OpenAI-compatible engine without a model: for the demo, for drills and for tests.

    async with Simulator(Config(engine="sglang", template="qwen")) as simulator:
        ...  # requests to simulator.url

It needs no Django. It shows how engines die and what a continuation must look like; it is no substitute for one.
"""

from continuation.testbed.simulator.engine import Config
from continuation.testbed.simulator.server import Simulator

__all__ = ["Config", "Simulator"]
