"""The HTTP client of engines over real sockets: connections kept and lost, errors, TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from core.clock import SystemClock
from core.errors import EngineFailed
from gateway import engine_pool
from gateway.engine import HttpEngines
from gateway.refusals import RefusedByEngine
from tests.support.waiting import until
from workers.engine_tls import EngineTls

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
HEADERS = (("X-Request-Id", "r1"),)


class Engine:
    """Answers request n of connection m with `answer(m, n)`; None closes the connection."""

    def __init__(self, answer: Callable[[int, int], bytes | None]) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.connections = 0
        self.closed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection, number = self.connections, 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                number += 1
                data = self.answer(connection, number)
                if data is None:
                    break
                writer.write(data)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self.closed += 1
            writer.close()


@asynccontextmanager
async def serving(
    answer: Callable[[int, int], bytes | None], tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Engine, str]]:
    engine = Engine(answer)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls is not None else "http"
    yield engine, f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.fixture
async def engines() -> AsyncIterator[HttpEngines]:
    made = HttpEngines("secret")
    yield made
    await made.close()


async def post(engines: HttpEngines, url: str, body: bytes = b"{}") -> bytes:
    response = await engines.open(url, "/v1/completions", body, HEADERS)
    parts: list[bytes] = []

    def take(data: bytes) -> bool:
        parts.append(data)
        return True

    await response.read_into(take)
    response.close()
    return b"".join(parts)


async def test_requests_share_a_connection(engines: HttpEngines) -> None:
    async with serving(lambda connection, number: OK) as (engine, url):
        for _ in range(3):
            assert await post(engines, url + "/base/", b'{"a":1}') == b"ok"
        assert engine.connections == 1
        head, _, body = engine.requests[0].partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST /base/v1/completions HTTP/1.1"
        assert b"Host: " + url.removeprefix("http://").encode() in lines
        assert b"Authorization: Bearer secret" in lines
        assert b"X-Request-Id: r1" in lines
        assert body == b'{"a":1}'
        assert await asyncio.gather(*[post(engines, url) for _ in range(5)]) == [b"ok"] * 5
        assert engine.connections <= 5


async def test_idle_connections_are_closed(engines: HttpEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pool, "KEEP_ALIVE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(engine_pool, "_SWEEP_S", 0.1)
    async with serving(lambda connection, number: OK) as (engine, url):
        await post(engines, url)
        await until(lambda: engine.closed == 1, what="the idle connection is closed")
        await post(engines, url)
        assert engine.connections == 2


async def test_a_kept_connection_that_is_lost_is_replaced_once(engines: HttpEngines) -> None:
    async with serving(lambda connection, number: OK if number == 1 and connection < 3 else None) as (
        engine,
        url,
    ):
        assert await post(engines, url) == b"ok"
        assert await post(engines, url) == b"ok"  # lost on the first connection, answered on the second
        assert (engine.connections, len(engine.requests)) == (2, 3)
        with pytest.raises(EngineFailed):
            await post(engines, url)  # lost on the second, lost on the third: not tried again
        assert (engine.connections, len(engine.requests)) == (3, 5)


async def test_a_lost_connection_is_not_replaced_once_something_arrived(engines: HttpEngines) -> None:
    async with serving(lambda connection, number: OK if number == 1 else b"HTTP/1.1 200 OK\r\n") as (
        engine,
        url,
    ):
        await post(engines, url)
        request = asyncio.create_task(post(engines, url))
        await until(lambda: len(engine.requests) == 2)
        await engines.close()
        with pytest.raises(EngineFailed):
            await request
        assert len(engine.requests) == 2


async def test_nobody_listens(engines: HttpEngines) -> None:
    async with serving(lambda connection, number: OK) as (_, url):
        pass
    with pytest.raises(EngineFailed):
        await post(engines, url)


async def test_headers_that_do_not_arrive(engines: HttpEngines) -> None:
    async with serving(lambda connection, number: b"HTTP/1.1 200 OK\r\n") as (engine, url):
        with pytest.raises(EngineFailed):
            await engines.open(url, "/", b"", HEADERS, headers_timeout_s=0.1)
        await until(lambda: engine.closed == 1, what="the connection is closed")


@pytest.mark.parametrize(
    ("status", "kind"), [(400, RefusedByEngine), (404, EngineFailed), (503, EngineFailed)]
)
async def test_errors_of_engines(engines: HttpEngines, status: int, kind: type[Exception]) -> None:
    text = b'{"error":{"message":"the maximum model length is 10"}}'
    answer = b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n%b" % (status, len(text), text)
    async with serving(lambda connection, number: answer) as (_, url):
        with pytest.raises(kind) as raised:
            await post(engines, url)
    # A refusal keeps the engine's words for its translation. A failure is logged, so it is without.
    assert ("maximum model length" in str(raised.value)) is (kind is RefusedByEngine)
    assert kind is RefusedByEngine or str(raised.value) == f"The engine answered {status}."


async def test_an_endless_error_is_cut(engines: HttpEngines) -> None:
    answer = b"HTTP/1.1 500 No\r\ncontent-length: 100000000\r\n\r\n" + b"a" * 1_000_000
    async with serving(lambda connection, number: answer) as (engine, url):
        with pytest.raises(EngineFailed):
            await post(engines, url)
        await until(lambda: engine.closed == 1, what="the connection is closed")


async def test_a_body_that_does_not_end_closes_its_connection(
    engines: HttpEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.engine_connection.DRAIN_TIMEOUT_S", 0.1)
    async with serving(lambda connection, number: OK.replace(b": 2", b": 3")) as (engine, url):
        response = await engines.open(url, "/", b"", HEADERS)
        assert await response.read_into(lambda data: False)
        response.close()
        await until(lambda: engine.closed == 1, what="the connection is closed")


async def test_an_engine_over_tls(
    engines: HttpEngines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    async with serving(lambda connection, number: OK, server) as (engine, url):
        with pytest.raises(EngineFailed):
            await post(engines, url)  # not signed by a known authority
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        trusting = HttpEngines("")
        assert await post(trusting, url) == b"ok"
        assert await post(trusting, url) == b"ok"
        assert len(engine.requests) == 2
        await trusting.close()


def self_signed(directory: Path) -> Path:
    """A file with a key and its certificate for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = SystemClock().now()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now.replace(year=now.year - 1, day=1))
        .not_valid_after(now.replace(year=now.year + 1, day=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = directory / "engine.pem"
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path


def authority_and_server(directory: Path) -> tuple[bytes, ssl.SSLContext]:
    """The authority of a host, and what its engines serve with."""
    host = EngineTls(directory, b"password", SystemClock().now)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(host.certificate_file, host.key_file)
    return host.authority, server


async def test_an_engine_of_a_joined_host_shows_the_certificate_of_this_host(
    engines: HttpEngines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pool, "KEEP_ALIVE_TIMEOUT_S", 0.0)
    authority, server = authority_and_server(tmp_path / "1")
    other, _ = authority_and_server(tmp_path / "2")
    async with serving(lambda *_: OK, server) as (engine, url):
        for _ in range(2):
            response = await engines.open(url, "/", b"", HEADERS, key="own", authority=authority)
            await response.read_into(lambda _: True)
            response.close()
        assert engine.connections == 1, "the second request pays no handshake"
        for wrong in (other, b""):
            with pytest.raises(EngineFailed, match="certificate verify failed"):
                await engines.open(url, "/", b"prompt", HEADERS, key="own", authority=wrong)
        assert len(engine.requests) == 2, "neither prompt nor key goes to a host that passes for another"


async def test_an_engine_of_a_joined_host_is_not_asked_without_tls(
    engines: HttpEngines, tmp_path: Path
) -> None:
    authority, _ = authority_and_server(tmp_path)
    async with serving(lambda *_: OK) as (engine, url):
        with pytest.raises(EngineFailed, match="is not asked without TLS"):
            await engines.open(url, "/", b"prompt", HEADERS, key="own", authority=authority)
        assert engine.connections == 0
