"""An answer with an error status: each client raises what it has for that status."""

from __future__ import annotations

import pytest

from tests.clients.asking import legs, question, truth
from tests.clients.conftest import Ask, GatewayFor, SimulatorFor
from tests.clients.driving import CLIENTS, Client, Reading
from tests.harness.upstream import Upstream, whole

pytestmark = pytest.mark.clients

NAMES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}


STREAMED_OR_NOT = [
    (client, streamed) for client in CLIENTS for streamed in (True, False) if streamed or not client.is_helper
]


def raised(reading: Reading, client: Client, status: int) -> str:
    """By status; the message."""
    assert reading.error is not None
    match client.driver:
        case "openai_python.py" | "langchain_chat.py" | "openai_node.mjs":
            assert NAMES.get(status, "InternalServerError") in reading.error.kinds
        case "ai_sdk.mjs":
            assert reading.error.kind == "APICallError"
            assert reading.error.retryable is (status in (408, 409, 429) or status >= 500)
    assert reading.error.status == status
    assert [choice.content for choice in reading.choices] in ([], [""])
    return reading.error.message


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 429, 500, 503])
@pytest.mark.parametrize(("client", "streamed"), STREAMED_OR_NOT, ids=str)
def test_an_engines_refusal_is_raised_by_its_status(
    client: Client,
    engine: str,
    status: int,
    streamed: bool,
    simulator: SimulatorFor,
    gateway: GatewayFor,
    ask: Ask,
) -> None:
    behind = simulator(engine)
    asked = question() if streamed else question(usage=False, stream=False)
    fault = f"refuse; status={status}"
    direct = ask(client, behind.url, asked, fault)
    through = ask(client, gateway(behind.url, engine).url, asked, fault)
    raised(through, client, status)
    assert through.error == direct.error


@pytest.mark.parametrize("page", [b"<html>503</html>", b""], ids=["html", "nothing"])
def test_a_routers_refusal_is_raised_by_its_status(
    client: Client, page: bytes, scripted: Upstream, gateway: GatewayFor, ask: Ask
) -> None:
    headers = (("Content-Type", "text/html"),)
    scripted.script(whole(page, "503 Service Unavailable", headers))
    raised(ask(client, gateway(scripted.url, "vllm").url, question()), client, 503)


def test_no_engine_is_502(client: Client, refusing_url: str, gateway: GatewayFor, ask: Ask) -> None:
    message = raised(ask(client, gateway(refusing_url, "vllm").url, question()), client, 502)
    assert "could not be reached" in message


def test_no_connection_in_time_is_504(
    client: Client, unanswering_url: str, gateway: GatewayFor, ask: Ask
) -> None:
    one = gateway(unanswering_url, "vllm", CONNECT_TIMEOUT_SECONDS="0.3")
    raised(ask(client, one.url, question()), client, 504)


def test_too_large_a_request_is_413(
    client: Client, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    one = gateway(simulator("vllm").url, "vllm", MAX_REQUEST_BODY_MB="1", MAX_CONTINUATION_BODY_MB="1")
    reading = ask(client, one.url, question("long " * 250_000))
    assert reading.error is not None
    assert reading.error.status == 413


def test_a_refusal_for_the_moment_is_asked_again(
    client: Client, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator("vllm")
    asked = question()
    whole = truth(behind, asked)
    behind.requests.clear()
    behind.arm("refuse; status=503")
    reading = ask(client, gateway(behind.url, "vllm").url, asked, retries=2)
    if client.retries:
        assert reading.choice.content == whole.content
        assert legs(behind) == [1, 1]
    else:
        raised(reading, client, 503)
