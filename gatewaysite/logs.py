"""What the log is spared."""

import logging

from gatewaysite import SITE_PREFIXES


class OwnTrouble(logging.Filter):
    """Django logs every answer from 400 up. One that only passes through is not this site's trouble."""

    def filter(self, record: logging.LogRecord) -> bool:
        path = getattr(getattr(record, "request", None), "path", "")
        return bool(record.exc_info) or path.startswith(SITE_PREFIXES)
