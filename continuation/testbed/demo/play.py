"""The play: the same answer whole and broken in a few ways, and what the gateway kept of it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any

import httpx

from continuation.models import ContinuationEvent
from continuation.testbed.demo.answers import CHAT, FAULT_HEADER, Client, WatchedAnswer, WatchedPiece
from continuation.testbed.demo.screen import BOLD, CYAN, DIM, GREEN, RED, Screen
from continuation.testbed.demo.stage import STALL_SECONDS, DemoStage
from continuation.testbed.processes import SERVED_NAME, CannotGoOn

BODY: Mapping[str, Any] = {
    "model": SERVED_NAME,
    "messages": [{"role": "user", "content": "How do I carry on after a broken connection?"}],
    "stream": True,
}
_COLOURS = {1: CYAN, 2: GREEN}
_LABELS = {"reasoning": "(thinking)", "content": "(answer)"}
_AUDIT_SECONDS = 15.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    title: str
    fault: str = ""


WHOLE = Scene("whole", "An uninterrupted answer")
BROKEN = (
    Scene("reset", "The same, but the connection is reset in mid-answer", "reset; in=content; after=24"),
    Scene(
        "stall",
        f"The same, but the engine falls silent (the limit here is {STALL_SECONDS} s)",
        "stall; in=content; after=60",
    ),
    Scene(
        "thinking",
        "The same, but the engine dies while it is thinking",
        "disconnect; in=reasoning; after=18",
    ),
)


def play(on: DemoStage, screen: Screen) -> bool:
    """Whether every broken answer was continued and equals the uninterrupted one. Raises CannotGoOn."""
    with closing(Client(on.gateway, on.simulator)) as client:
        whole = _watched(client, 1, WHOLE, screen)
        if not whole.whole:
            raise CannotGoOn("the uninterrupted answer did not come to its end")
        screen.line(f"{len(whole.reasoning)} characters of reasoning, {len(whole.content)} of content", DIM)
        broken = [
            _watched_and_judged(client, number, scene, whole, screen)
            for number, scene in enumerate(BROKEN, 2)
        ]
    rows = audit_rows(on.database, [answer.request_id for answer, _ in broken])
    _show_audit(rows, screen)
    equal = all(same for _, same in broken)
    agreed = all(_agrees(answer, rows) for answer, _ in broken)
    _sum_up(equal, agreed, len(whole.content), screen)
    return equal and agreed


def show_where(on: DemoStage, screen: Screen) -> None:
    """What can be tried by hand while both processes run."""
    screen.line()
    screen.line(f"Admin      {on.gateway}/admin/   user demo, password {on.password}")
    screen.line(f"Gateway    {on.gateway}/v1")
    screen.line(f"Simulator  {on.simulator}")
    screen.line()
    screen.line("Break one yourself, in another terminal:")
    screen.line(f"curl -N {on.gateway}{CHAT} \\", indent=4)
    screen.line(f"-H '{FAULT_HEADER}: reset; after=30' \\", indent=6)
    screen.line("-H 'Content-Type: application/json' \\", indent=6)
    screen.line(f'-d \'{{"model": "{SERVED_NAME}", "stream": true,', indent=6)
    screen.line('"messages": [{"role": "user", "content": "Hello"}]}\'', indent=11)


# -- one answer ------------------------------------------------------------------------------------


def _watched(client: Client, number: int, scene: Scene, screen: Screen) -> WatchedAnswer:
    answer = WatchedAnswer(f"demo-{scene.name}")
    screen.line()
    screen.line(f"{number}  {scene.title}", BOLD)
    screen.line()
    shown = Shown(screen)
    try:
        for piece in client.ask(answer, BODY, scene.fault):
            shown.piece(piece)
    except httpx.HTTPError as trouble:
        answer.error = answer.error or f"the answer broke off: {trouble}"
    screen.end_text()
    return answer


def _watched_and_judged(
    client: Client, number: int, scene: Scene, whole: WatchedAnswer, screen: Screen
) -> tuple[WatchedAnswer, bool]:
    answer = _watched(client, number, scene, screen)
    same = answer.whole and answer.seam is not None and answer.equals(whole)
    if same and answer.seam is not None:
        kept = answer.seam.reasoning + answer.seam.content
        rest = len(answer.reasoning + answer.content) - kept
        screen.line(
            f"equals the uninterrupted answer: {kept} characters from leg 1, {rest} from leg 2", BOLD, GREEN
        )
    else:
        screen.words(_difference(answer, whole), BOLD, RED)
    return answer, same


def _difference(answer: WatchedAnswer, whole: WatchedAnswer) -> str:
    if answer.error:
        return f"NOT equal: {answer.error}"
    if answer.seam is None:
        return "NOT continued: the engine received no continuation request"
    if not answer.whole:
        return f"NOT whole: finish_reason {answer.finish!r}, {answer.endings} times [DONE]"
    for channel in ("reasoning", "content"):
        ours, theirs = getattr(answer, channel), getattr(whole, channel)
        if ours != theirs:
            same = len(commonprefix([ours, theirs]))  # noqa: RUF071 - character by character is what is wanted
            return f"NOT equal: the {channel} differs from character {same + 1} on"
    return f"NOT equal: finish_reason is {answer.finish!r}"


class Shown:
    """Pieces on the screen: a rule where the leg changes, a label where the channel does."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._leg = 1
        self._channel = ""

    def piece(self, piece: WatchedPiece) -> None:
        text = piece.text
        if piece.leg != self._leg:
            self._leg = piece.leg
            self._screen.rule(f"leg 1 ended here; leg 2 goes on, {piece.waited:.2f} s later", BOLD)
        if piece.channel != self._channel:
            self._screen.end_text()
            self._channel, text = piece.channel, text.lstrip("\n")
            self._screen.line(_LABELS[piece.channel], DIM, indent=4)
        dim = [DIM] if piece.channel == "reasoning" else []
        self._screen.stream(text, *dim, _COLOURS[piece.leg])


# -- what the gateway kept -------------------------------------------------------------------------


def audit_rows(database: Path, request_ids: Sequence[str]) -> list[sqlite3.Row]:
    """One for each request, in that order; they are written a moment after the stream. Raises CannotGoOn."""
    marks = ", ".join("?" * len(request_ids))
    question = f"SELECT * FROM {ContinuationEvent._meta.db_table} WHERE request_id IN ({marks}) ORDER BY id"
    until = time.monotonic() + _AUDIT_SECONDS
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as connection:
        connection.row_factory = sqlite3.Row
        while len(rows := connection.execute(question, request_ids).fetchall()) < len(request_ids):
            if time.monotonic() > until:
                raise CannotGoOn(f"{len(rows)} of {len(request_ids)} audit rows after {_AUDIT_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
    return rows


def _agrees(answer: WatchedAnswer, rows: Sequence[sqlite3.Row]) -> bool:
    """Whether the audit counts the same characters of leg 1 as the continuation request held."""
    row = next(row for row in rows if row["request_id"] == answer.request_id)
    seam = answer.seam
    return seam is None or (row["reasoning_chars"], row["content_chars"]) == (seam.reasoning, seam.content)


def _show_audit(rows: Sequence[sqlite3.Row], screen: Screen) -> None:
    screen.line()
    screen.line("What the audit kept (an answer that ends by itself leaves no row)", BOLD)
    screen.line()
    head = ("request", "failure", "case", "outcome", "kept", "gap")
    screen.table([head, *map(_cells, rows)])


def _cells(row: sqlite3.Row) -> tuple[str, ...]:
    gap = row["seam_gap_seconds"]
    words = (row["request_id"], row["failure"], row["case"], row["reason"] or row["outcome"])
    kept = f"{row['reasoning_chars'] + row['content_chars']} chars"
    return (*words, kept, "" if gap is None else f"{gap:.2f} s")


def _sum_up(equal: bool, agreed: bool, characters: int, screen: Screen) -> None:
    screen.line()
    if not agreed:
        screen.line("The audit's counts and the continuation requests do not agree.", BOLD, RED)
    elif equal:
        screen.line("All broken answers equal the uninterrupted one.", BOLD, GREEN)
    else:
        screen.line("Not all broken answers equal the uninterrupted one.", BOLD, RED)
