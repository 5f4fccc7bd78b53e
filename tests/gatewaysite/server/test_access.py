"""What the log of requests shows of a request's target."""

import pytest

from gatewaysite.server.access import masked


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models?", "/v1/models?"),
        ("/v1/models?limit=10&after=gpt", "/v1/models?limit=10&after=gpt"),
        ("/v1/streams/a?token=abc", "/v1/streams/a?token=***"),
        ("/v1/streams/a?last_event_id=7&token=abc", "/v1/streams/a?last_event_id=7&token=***"),
        ("/x?TOKEN=a&Api-Key=b&x_auth=c;secret=d", "/x?TOKEN=***&Api-Key=***&x_auth=***;secret=***"),
        ("/x?%74oken=abc&to%6ben=d", "/x?%74oken=***&to%6ben=***"),
        ("/x?token=a=b?c", "/x?token=***"),
        (
            "/x?password=a&sig=b&X-Amz-Signature=c&code=d",
            "/x?password=***&sig=***&X-Amz-Signature=***&code=***",
        ),
        ("/x?token&design=1&decode=2", "/x?token&design=1&decode=2"),
        ("http://user:word@host/x?key=a", "http://***@host/x?key=***"),
        ("/a@b", "/a@b"),
        ('/x"\x1b[2J', "/x\\x22\\x1b[2J"),
    ],
)
def test_credentials_and_what_breaks_a_line_are_not_shown(target: str, shown: str) -> None:
    assert masked(target) == shown
