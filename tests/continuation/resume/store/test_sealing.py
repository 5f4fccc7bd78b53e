"""What leaves the process is encrypted where keys are set, and can be read as long as one of them is there."""

from __future__ import annotations

import logging
import os

import pytest
from cryptography.fernet import Fernet

from continuation.resume.store.redis.sealing import Seal, Unreadable

OLD, NEW, OTHER = (Fernet.generate_key().decode() for _ in range(3))
VALUES = [b"", b"0", b"1", b"id: 1\ndata: {}\n\n", bytes(range(256)), os.urandom(2**20)]


@pytest.mark.parametrize("value", VALUES, ids=len)
@pytest.mark.parametrize("keys", [(), (NEW,), (NEW, OLD)], ids=["plain", "a key", "two keys"])
def test_what_was_closed_opens_again(value: bytes, keys: tuple[str, ...]) -> None:
    seal = Seal(keys)
    assert seal.encrypts is bool(keys)
    assert seal.open(seal.close(value)) == value


def test_with_keys_nothing_of_the_text_is_seen_and_without_all_of_it() -> None:
    assert b"the secret" not in Seal([NEW]).close(b"the secret of the stream")
    assert b"the secret" in Seal().close(b"the secret of the stream")


def test_two_values_alike_do_not_look_alike() -> None:
    seal = Seal([NEW])
    assert seal.close(b"yes") != seal.close(b"yes")


def test_a_key_that_only_reads_opens_what_it_wrote_before() -> None:
    written = Seal([OLD]).close(b"before the rotation")
    rotated = Seal([NEW, OLD])
    assert rotated.open(written) == b"before the rotation"
    with pytest.raises(Unreadable):
        Seal([OLD]).open(rotated.close(b"after it"))  # the first one writes
    assert Seal([NEW]).open(rotated.close(b"after it")) == b"after it"


def test_what_was_written_without_keys_is_read_with_them() -> None:
    assert Seal([NEW]).open(Seal().close(b"before")) == b"before"


@pytest.mark.parametrize("keys", [(), (OTHER,)], ids=["no key", "another key"])
def test_what_no_key_opens_is_unreadable_and_said_once(
    keys: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    seal = Seal(keys)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            with pytest.raises(Unreadable):
                seal.open(Seal([NEW]).close(b"secret"))
    assert len(caplog.records) == 1
    assert NEW not in caplog.text


@pytest.mark.parametrize(
    "value", [b"", b"x", b"2abc", b"1", b"1abc", Seal([NEW]).close(b"cut off")[:-3]], ids=range(6)
)
def test_what_is_no_sealed_value_is_unreadable(value: bytes) -> None:
    with pytest.raises(Unreadable):
        Seal([NEW]).open(value)


def test_what_is_not_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="32"):
        Seal([NEW, "a password"])
