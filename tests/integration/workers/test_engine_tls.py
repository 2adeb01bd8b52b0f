"""Engines of joined hosts speak TLS: their certificate is the host's own, and renewed while they run."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from core.private_tls import CERTIFICATE_LIVES, ENGINE_NAME, client_context, ends_at
from core.settings import Settings
from tests.support.clock import ManualClock
from tests.support.ports import free_port
from tests.support.waiting import until
from workers.catalog import load_catalog
from workers.engine_command import engine_command
from workers.engine_tls import EngineTls, engine_tls
from workers.machine import Gpus
from workers.plan import plan_sim, plan_vllm

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def test_a_certificate_is_renewed_with_the_same_key_and_authority(tmp_path: Path) -> None:
    clock = ManualClock()
    made = EngineTls(tmp_path, b"password", clock.now)
    first, key = made.certificate_file.read_bytes(), made.key_file.read_bytes()
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("*key.pem")} == {0}
    assert b"ENCRYPTED" in (tmp_path / "authority-key.pem").read_bytes()
    names = x509.load_pem_x509_certificate(first).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == [ENGINE_NAME]
    again = EngineTls(tmp_path, b"password", clock.now)
    assert not again.renew()
    assert (again.authority, again.certificate_file.read_bytes()) == (made.authority, first)
    clock.advance(CERTIFICATE_LIVES.total_seconds() / 2 + 1)
    assert again.renew()
    assert ends_at(again.certificate_file.read_bytes()) - ends_at(first) > CERTIFICATE_LIVES / 2
    assert again.key_file.read_bytes() == key, "engines read both files at different instants"
    assert EngineTls(tmp_path, b"password", clock.now).authority == made.authority


def test_a_host_with_another_key_has_another_authority(tmp_path: Path) -> None:
    clock = ManualClock()
    made = EngineTls(tmp_path, b"password", clock.now)
    other = EngineTls(tmp_path, b"other", clock.now)
    assert other.authority != made.authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other.certificate_file, other.key_file)


def test_which_hosts_engines_speak_tls(tmp_path: Path) -> None:
    def speaks(reach: str, *, joined: bool = True, **changed: str) -> bool:
        settings = Settings(data_dir=tmp_path, **changed)  # type: ignore[arg-type]  # names of settings
        return engine_tls(settings, "key", reach, lambda: NOW, joined=joined) is not None

    assert speaks("10.0.0.5")
    assert not speaks("127.0.0.1")
    assert not speaks("10.0.0.5", joined=False)
    assert not speaks("10.0.0.5", scheduler_tls="never")
    assert not speaks("10.0.0.5", engine="external")


def test_vllm_gets_the_files_and_reads_them_again(tmp_path: Path) -> None:
    tls = EngineTls(tmp_path, b"password", lambda: NOW)
    [plan] = plan_vllm(load_catalog(), "h", "penstock/tiny", 1, Gpus(), hub_answers=False).replicas
    command = engine_command(
        plan, host="10.0.0.5", port=9000, engine_env=tmp_path, engine_key="key", agent_key="own",
        data_dir=tmp_path, sim_speedup=1.0, replicas=1, tls=tls,
    )  # fmt: skip
    words = command.argv
    assert words[words.index("--ssl-keyfile") + 1] == str(tls.key_file)
    assert words[words.index("--ssl-certfile") + 1] == str(tls.certificate_file)
    assert "--enable-ssl-refresh" in words
    assert command.env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "75"


async def test_an_engine_serves_with_a_renewed_certificate_without_a_restart(tmp_path: Path) -> None:
    lag = timedelta(days=16)
    instants = [datetime.now(UTC) - lag]
    tls = EngineTls(tmp_path / "tls", b"password", lambda: instants[0])
    port = free_port()
    [plan] = plan_sim(load_catalog(), "h", "penstock/tiny", 1).replicas
    command = engine_command(
        plan, host="127.0.0.1", port=port, engine_env=tmp_path, engine_key="key", agent_key="own",
        data_dir=tmp_path, sim_speedup=1.0, replicas=1, tls=tls,
    )  # fmt: skip
    process = await asyncio.create_subprocess_exec(*command.argv, env=command.env)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls.client_context())) as agent:

            async def answers() -> bool:
                try:
                    async with agent.get(f"https://127.0.0.1:{port}/health") as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            await until(answers, 60.0)
        before = await shown(port, tls)
        instants[0] += lag
        assert tls.renew()
        assert await shown(port, tls) > before + lag - timedelta(hours=1)
        assert process.returncode is None
        with pytest.raises(aiohttp.ClientError):
            async with aiohttp.ClientSession() as plain, plain.get(f"http://127.0.0.1:{port}/health"):
                pass
    finally:
        process.terminate()
        await process.wait()


async def shown(port: int, tls: EngineTls) -> datetime:
    """When the certificate ends that an API process is shown."""
    context = client_context(tls.authority)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=ENGINE_NAME)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).not_valid_after_utc
