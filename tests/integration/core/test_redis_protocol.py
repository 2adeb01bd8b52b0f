"""Connections to a real Redis over TCP, TLS and a Unix socket."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from core.redis import connect
from core.redis_protocol import ConnectionClosed, ReplyError, open_connection, pack


async def asked(url: str, *commands: bytes) -> list[Any]:
    """Replies to `commands`, sent in one write."""
    redis = connect(url)
    replies: asyncio.Queue[Any] = asyncio.Queue()
    protocol = await open_connection(redis, replies.put_nowait, replies.put_nowait)
    protocol.write(b"".join(commands))
    answers = [await asyncio.wait_for(replies.get(), 20) for _ in commands]
    protocol.close()
    await redis.aclose()
    return answers


@asynccontextmanager
async def relayed(url: str, listen: Callable[..., Any]) -> AsyncIterator[asyncio.Server]:
    """A server that `listen` starts and that relays each connection to the Redis at `url`."""
    target = urlsplit(url)
    tasks: list[asyncio.Task[Any]] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.close()
            await writer.wait_closed()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            tasks.append(task)
        far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)

    server = await listen(accept)
    yield server
    server.close()
    await asyncio.gather(*tasks, return_exceptions=True)


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return cert_file, key_file


COMMANDS = (pack("SET", "a", "1"), pack("INCRBY", "a", 41), pack("NONSENSE"), pack("GET", "a"))


def _plain(replies: list[Any]) -> list[Any]:
    return [type(one) if isinstance(one, Exception) else one for one in replies]


EXPECTED = [b"OK", 42, ReplyError, b"42"]


def test_tcp_with_password_on_uvloop(redis_url: str) -> None:
    assert _plain(uvloop.run(asked(redis_url, *COMMANDS))) == EXPECTED


async def test_the_database_of_the_url_is_selected(redis_url: str) -> None:
    other = urlsplit(redis_url)._replace(path="/5").geturl()
    await asked(redis_url, pack("SET", "here", "0"))
    assert await asked(other, pack("GET", "here"), pack("SET", "b", "5"), pack("DEL", "b")) == [
        None,
        b"OK",
        1,
    ]


async def test_a_wrong_password_is_an_error(redis_url: str) -> None:
    url = urlsplit(redis_url)
    with pytest.raises(ReplyError, match="WRONGPASS"):
        await asked(url._replace(netloc=f":wrong@{url.hostname}:{url.port}").geturl(), pack("PING"))


def test_a_unix_socket(redis_url: str, tmp_path: Path) -> None:
    path, password = tmp_path / "redis.sock", urlsplit(redis_url).password

    async def run() -> None:
        async with relayed(redis_url, lambda accept: asyncio.start_unix_server(accept, path)):
            assert _plain(await asked(f"unix://:{password}@{path}", *COMMANDS)) == EXPECTED

    uvloop.run(run())  # pytest-socket does not let asyncio's loop connect to a path


async def test_tls_is_verified(redis_url: str, tmp_path: Path) -> None:
    cert_file, key_file = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert_file, key_file)
    password = urlsplit(redis_url).password
    async with relayed(
        redis_url, lambda accept: asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    ) as server:
        url = f"rediss://:{password}@127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        assert _plain(await asked(f"{url}?ssl_ca_certs={cert_file}", *COMMANDS)) == EXPECTED
        with pytest.raises(ssl.SSLCertVerificationError):
            await asked(url, *COMMANDS)


async def test_a_server_that_disconnects_at_once_is_an_error() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises((ConnectionClosed, ConnectionError)):
        await asked(f"redis://:secret@127.0.0.1:{port}/0", pack("PING"))
    server.close()
