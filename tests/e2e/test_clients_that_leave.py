"""Clients that leave leave nothing open."""

import json
import time

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM
from tests.harness.upstream import Headers, HoldOpen, Pause, Reply, Step, Upstream

BUSY: list[Step] = [step for n in range(3000) for step in (Pause(0.01), VLLM.content(f"{n} "))]


LEFT: list[tuple[str, Reply, Headers]] = [
    ("tokens flow", Reply([VLLM.role(), *BUSY]), ()),
    ("silence", Reply([HoldOpen()]), ()),
    ("no headers", Reply(before=[HoldOpen()]), ()),
    ("passed through", Reply([VLLM.role(), *BUSY]), [("X-Continuation", "off")]),
    ("passed through, no headers", Reply(before=[HoldOpen()]), [("X-Continuation", "off")]),
]


def _leave(one: Gateway, upstream: Upstream, chat: Chat, number: int, asked: bytes) -> None:
    name, reply, headers = LEFT[number % len(LEFT)]
    upstream.script(reply)
    stream = chat(one, asked, headers)
    (request,) = upstream.wait_for_requests(1)
    if "headers" not in name and "silence" not in name:
        stream.read_until(b"assistant")
    stream.drop()
    request.connection.wait_closed_by_peer()


def test_a_hundred_clients_leave_and_their_files_are_closed(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    """Every fourth one sent a body that Django keeps in a file."""
    one = gateway()
    small, large = json.dumps(body()).encode(), json.dumps(body(filler="x" * 3_000_000)).encode()
    for number in range(len(LEFT)):
        _leave(one, upstream, chat, number, large)
    before = _settled_files(one, 0)
    for number in range(100):
        _leave(one, upstream, chat, number, small if number % 4 else large)
    after = _settled_files(one, len(before))
    assert len(after) <= len(before), sorted(set(after) - set(before))
    assert not [name for name in after if "deleted" in name]
    assert len([name for name in after if name.endswith(".sqlite3")]) <= 1


def _settled_files(one: Gateway, most: int) -> list[str]:
    """The open files once they are no more than `most`, or after a second in which the audit rests too."""
    until = time.monotonic() + 1.5
    while len(files := one.open_files()) > most and time.monotonic() < until:
        time.sleep(0.05)
    return files
