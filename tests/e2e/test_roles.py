"""GATEWAY_ROLE: a process that only proxies has no admin, one that only administers has no proxy."""

from tests.e2e.conftest import GatewayFor
from tests.harness.client import call
from tests.harness.upstream import Upstream, json_reply


def test_a_proxy_has_no_admin(gateway: GatewayFor, upstream: Upstream) -> None:
    one = gateway(GATEWAY_ROLE="proxy")
    for path in ("/admin/", "/admin/login/", "/admin", "/static/admin/css/base.css"):
        answer = call(one.port, "GET", path)
        assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found"), path
    script = call(one.port, "GET", "/static/continuation/resumable.js")  # for pages of those who come back
    assert (script.status, b"class ResumableStream" in script.body) == (200, True)
    upstream.script(json_reply({"data": []}))
    assert call(one.port, "GET", "/v1/models").json() == {"data": []}
    assert call(one.port, "GET", "/ready").status == 200


def test_an_admin_proxies_nothing(gateway: GatewayFor, upstream: Upstream) -> None:
    one = gateway(GATEWAY_ROLE="admin", DOWNSTREAM_URL="")
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/")):
        answer = call(one.port, method, path, body=b"{}" if method == "POST" else b"")
        assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found"), path
    assert call(one.port, "GET", "/admin/login/").status == 200
    assert call(one.port, "GET", "/ready").status == 200
    assert upstream.requests == []


def test_all_is_both(gateway: GatewayFor, upstream: Upstream) -> None:
    one = gateway()
    assert call(one.port, "GET", "/admin/login/").status == 200
    style = call(one.port, "GET", "/static/admin/css/base.css")
    assert (style.status, style.all("Content-Type")) == (200, ["text/css"])
    assert call(one.port, "GET", "/static/no/such/file").status == 404
    assert call(one.port, "GET", "/static/../gatewaysite/settings.py").status == 404
