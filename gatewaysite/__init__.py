"""The Django site around the gateway."""

# The site's own pages, which Django's middleware and logging are for; other paths are proxied.
SITE_PREFIXES = ("/admin/",)
