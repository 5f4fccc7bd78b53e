"""Errors in a form that nobody expects."""

from typing import Any

import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.scenes import WHOLE_LEG2
from tests.harness.client import one_whole_answer
from tests.harness.shapes import VLLM, started
from tests.harness.upstream import Reply, Upstream, event


@pytest.mark.parametrize("code", ["²", "9" * 5000])
def test_an_error_with_an_odd_code_is_continued(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, code: Any
) -> None:
    error = event({"error": {"message": "m", "code": code}})
    upstream.script(Reply([*started(VLLM, [], ["a"]), error]), WHOLE_LEG2)
    one_whole_answer(chat(gateway(), body()).read_rest(), reasoning="", content="ab", like=VLLM)
