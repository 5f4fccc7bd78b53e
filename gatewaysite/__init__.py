"""The Django site around the gateway."""

# The site's own pages, which Django's middleware and logging are for; other paths are proxied.
SITE_PREFIXES: tuple[str, ...] = ("/admin/",)
# What a browser may load; all of it gets the security headers.
BROWSER_PREFIXES: tuple[str, ...] = (*SITE_PREFIXES, "/static/")
