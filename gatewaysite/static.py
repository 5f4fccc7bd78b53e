"""The admin's static files, under any ASGI server and without a collectstatic step."""

import mimetypes
from pathlib import Path

from asgiref.sync import sync_to_async
from django.contrib.staticfiles import finders
from django.core.exceptions import SuspiciousFileOperation
from django.http import HttpRequest, HttpResponse

from continuation.views import not_found


def _read(path: str) -> bytes | None:
    try:
        found = finders.find(path)
    except SuspiciousFileOperation:  # a path that leads out of the static folders
        return None
    return Path(found).read_bytes() if isinstance(found, str) and Path(found).is_file() else None


async def static_file(request: HttpRequest, path: str) -> HttpResponse:
    content = await sync_to_async(_read)(path)
    if content is None:
        return not_found(request)
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return HttpResponse(content, content_type=kind, headers={"Cache-Control": "max-age=3600"})
