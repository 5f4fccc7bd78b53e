"""Where Redis may be, and what its URL may say: a password, TLS, a socket in the file system, another database."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from continuation.resume.log import Limits, State
from continuation.resume.store.redis.scripts import keys_of
from continuation.resume.store.redis.store import RedisStore
from tests.continuation.resume.streams import BEGIN, begun, events, found, new_id, read_to_end, until
from tests.harness.redis import RedisServer

Opened = Callable[..., RedisStore]


async def assert_works(opened: Opened, url: str) -> str:
    """The id of a stream that was written to the one URL and read in another process."""
    writer = await begun(opened(url), request=b"asked")
    writer.append(events(1, 5))
    other = opened(url)
    log = await found(other, writer.stream_id)
    await other.stop(writer.stream_id)
    writer.end(State.FINISHED)
    assert await read_to_end(log) == events(1, 5)
    return writer.stream_id


async def test_a_password_and_a_database_are_taken_from_the_url(
    opened: Opened, own_redis: RedisServer
) -> None:
    own_redis.ask("CONFIG", "SET", "requirepass", "pass:w@rd")
    stream_id = await assert_works(opened, f"redis://:pass%3Aw%40rd@127.0.0.1:{own_redis.port}/3")
    with redis.Redis(port=own_redis.port, password="pass:w@rd", db=3) as client:
        assert client.exists(keys_of(stream_id).log)


@pytest.mark.parametrize("password", ["", ":a-wrong-one@"], ids=["none", "a wrong one"])
async def test_a_password_that_is_not_right_makes_it_away_and_is_not_logged(
    opened: Opened, own_redis: RedisServer, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    own_redis.ask("CONFIG", "SET", "requirepass", "the-right-one")
    store = opened(f"redis://{password}127.0.0.1:{own_redis.port}")
    with caplog.at_level(logging.INFO):
        assert await store.begin(new_id(), b"", BEGIN) is None
        assert store.is_away
    assert len(caplog.records) == 1, caplog.text
    assert "a-wrong-one" not in caplog.text
    with redis.Redis(port=own_redis.port, password="the-right-one") as client:
        client.config_set("requirepass", "" if not password else "a-wrong-one")
    await until(lambda: not store.is_away)
    assert await begun(store)


async def test_redis_behind_a_socket_in_the_file_system(opened: Opened, tmp_path: Path) -> None:
    with server(tmp_path, "--unixsocket", str(tmp_path / "redis.sock")):
        await assert_works(opened, f"unix://{tmp_path}/redis.sock?db=1")


async def test_redis_behind_tls_and_only_with_a_certificate_that_is_trusted(
    opened: Opened, redis_server: RedisServer, tmp_path: Path
) -> None:
    certificate, key = written_certificate(tmp_path)
    async with behind_tls(redis_server.port, certificate, key) as port:
        await assert_works(opened, f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}")
        store = opened(f"rediss://127.0.0.1:{port}")
        assert await store.begin(new_id(), b"", BEGIN) is None
        assert store.is_away


@pytest.mark.parametrize(
    "query", ["decode_responses=true", "protocol=3", "socket_timeout=5", "health_check_interval=1"]
)
async def test_what_the_url_says_besides_does_no_harm(
    opened: Opened, redis_server: RedisServer, query: str
) -> None:
    await assert_works(opened, f"{redis_server.url}?{query}")


@pytest.mark.parametrize("url", ["127.0.0.1:6379", "http://127.0.0.1", "redis://127.0.0.1:many"])
async def test_what_is_not_a_url_of_redis_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        RedisStore(url, Limits())


@contextlib.contextmanager
def server(directory: Path, *options: str):  # type: ignore[no-untyped-def]
    running = RedisServer(directory, *options)
    try:
        yield running
    finally:
        running.kill()


@contextlib.asynccontextmanager
async def behind_tls(port: int, certificate: Path, key: Path) -> AsyncIterator[int]:
    """The port of what ends TLS before the one given: not every redis-server is built with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_redis, to_redis = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, to_redis), pass_on(from_redis, writer))

    listening = await asyncio.start_server(connect, "127.0.0.1", 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


def written_certificate(directory: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, signed by itself; and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "redis.crt").write_bytes(certificate.public_bytes(pem))
    (directory / "redis.key").write_bytes(private)
    return directory / "redis.crt", directory / "redis.key"
