"""A droplet of the fake cloud on a network of its own joins by itself and serves with the real vLLM where that is
installed; strangers there reach nothing, and read nothing."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import httpx
import pytest

from admin import credits as admin_credits
from admin import hosts
from admin import models as admin_models
from admin import prices as admin_prices
from core.db import Database
from jobs.hosts import reconcile_hosts
from scheduler.authority import certificate
from sim.digitalocean.cloud import FakeCloud
from sim.digitalocean.namespaces import NamespaceNetwork, run_inside
from tests.integration.workers.conftest import cloud as cloud
from tests.support.host_cloud import cloud_settings
from tests.support.namespace_network import droplet_environment, namespace_network
from tests.support.ports import free_port
from tests.support.roles import ROOT, TOKEN, role
from tests.support.tenancy import ADMIN, PEPPER, make_organisation
from tests.support.waiting import until
from tests.support.wire_capture import capture

MODEL = "penstock/tiny"
PROMPT = "the heron waits by the weir"
ENGINE_ENV = Path(os.environ.get("PENSTOCK_ENGINE_ENV") or ROOT / ".engine")
ENGINE = "vllm" if (ENGINE_ENV / "bin" / "python").exists() else "sim"
"""The real one where it is installed, on the processor."""
LOCAL = f"""#!/bin/sh
mkdir -p "$PENSTOCK_ROOT/etc/penstock"
cat > "$PENSTOCK_ROOT/etc/penstock/local.env" <<END
PENSTOCK_ENGINE={ENGINE}
PENSTOCK_ENGINE_ENV={ENGINE_ENV}
PENSTOCK_HOST_KIND=
END
"""
"""The machine of the test has no GPU: of a stated kind with GPUs it would be refused."""
START_S = 300.0


@pytest.fixture
def network() -> Iterator[NamespaceNetwork]:
    with namespace_network(IPv4Network("10.213.77.0/24")) as made:
        yield made


def test_the_end_of_a_droplet_ends_also_what_is_being_started(
    network: NamespaceNetwork, tmp_path: Path
) -> None:
    script = "#!/bin/sh\n(for each in $(seq 2000); do sleep 1000 & done; wait) &\n"
    network.boot("busy", script, tmp_path, {"PATH": os.environ["PATH"]})
    [namespace] = network.namespaces
    network.halt(namespace)
    assert run_inside(namespace, "true").returncode == 0
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True)
    assert listed.stdout == ""


def status(namespace: str, url: str, method: str = "GET", key: str = "wrong") -> str:
    """The status of a request from a namespace; 000 = no answer."""
    header = f"Authorization: Bearer {key}"
    answer = run_inside(
        namespace,
        "curl",
        "-sk",
        "-o",
        "/dev/null",
        "-m",
        "5",
        "-w",
        "%{http_code}",
        "-X",
        method,
        "-H",
        header,
        url,
    )
    return answer.stdout


def listening(namespace: str) -> set[int]:
    """The TCP ports on which a namespace can be reached from its network."""
    lines = run_inside(namespace, "cat", "/proc/net/tcp").stdout.splitlines()[1:]
    addresses = [line.split()[1].split(":") for line in lines if line.split()[3] == "0A"]
    loopback, metadata = "0100007F", "FEA9FEA9"
    return {int(port, 16) for address, port in addresses if address not in (loopback, metadata)}


async def organisation_with_credit(database: Database) -> str:
    """An API key."""
    made = await make_organisation(database)
    await admin_models.add_model(database, ADMIN, name=MODEL)
    await admin_prices.set_price(database, ADMIN, model=MODEL, input="1", cached_input="0.5", output="2")
    await admin_credits.grant_credit(
        database, ADMIN, tenant_id=made.tenant_id, amount_usd="10", reason="test"
    )
    return made.key


@pytest.mark.timeout(900)
async def test_a_droplet_joins_serves_and_shows_strangers_nothing(
    database: Database,
    pg_url: str,
    redis_url: str,
    cloud: tuple[FakeCloud, str],
    network: NamespaceNetwork,
    tmp_path: Path,
) -> None:
    fake, url = cloud
    scheduler_port, api_port = free_port(), free_port()
    scheduler_at = f"{network.gateway}:{scheduler_port}"
    key = await organisation_with_credit(database)
    stores = {"DATABASE_URL": pg_url, "REDIS_URL": redis_url, "PENSTOCK_KEY_PEPPER": PEPPER.decode()}
    own = tmp_path / "own.sh"
    own.write_text(LOCAL)
    settings = cloud_settings(url, host_schedulers=scheduler_at, digitalocean_user_data=own)
    with (
        role(
            "scheduler",
            tmp_path,
            PENSTOCK_SCHEDULER_HOST=network.gateway,
            PENSTOCK_SCHEDULER_PORT=str(scheduler_port),
            **stores,
        ),
        role(
            "api", tmp_path, PENSTOCK_SCHEDULERS=scheduler_at, PENSTOCK_PORT=str(api_port), **stores
        ) as api_log,
    ):

        async def has_authority() -> bool:
            return await certificate(database) is not None

        await until(has_authority, START_S, "the scheduler has a certificate")
        await hosts.set_desired(
            database,
            ADMIN,
            provider="digitalocean",
            region="nyc2",
            kind="gpu-h100x1-80gb",
            count=1,
            model=MODEL,
            reason="test",
        )
        await reconcile_hosts(database, settings)
        await reconcile_hosts(database, settings)
        [droplet] = fake.alive()
        place = tmp_path / "droplet"
        place.mkdir()
        address = await asyncio.to_thread(
            network.boot, droplet.name, droplet.user_data, place, droplet_environment(tmp_path)
        )
        agent_log = place / "var" / "lib" / "penstock" / "agent.log"

        async def answered() -> bool:
            body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
            try:
                async with httpx.AsyncClient(timeout=30.0) as client:
                    answer = await client.post(
                        f"http://127.0.0.1:{api_port}/v1/chat/completions",
                        json=body,
                        headers={"Authorization": f"Bearer {key}"},
                    )
            except httpx.TransportError:
                return False
            return answer.status_code == 200

        def logs() -> str:
            text = agent_log.read_text() if agent_log.exists() else "no agent"
            return f"a request is answered; agent: {text[-1500:]}; api: {api_log.read_text()[-1500:]}"

        try:
            await until(answered, START_S)
        except AssertionError:
            pytest.fail(logs())

        await reconcile_hosts(database, settings)
        [host] = [one for one in await hosts.list_hosts(database, ADMIN) if one.name == droplet.name]
        assert (host.joining, host.address) == ("own secret", address)

        droplet_namespace, (stranger, _) = network.namespaces[0], await asyncio.to_thread(network.add)
        ports = listening(droplet_namespace)
        assert len(ports) == 1, f"besides the engine something listens: {ports}"
        port = ports.pop()
        engine = f"https://{address}:{port}"
        assert status(stranger, f"http://{address}:{port}/health") == "000", "the engine speaks TLS alone"
        for method, path in (
            ("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/health"),
            ("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping"), ("GET", "/openapi.json"),
        ):  # fmt: skip
            assert status(stranger, engine + path, method) == "401", path
            assert status(stranger, engine + path, method, TOKEN) == "401", path

        # The token a second time, from another machine that calls itself by the same name.
        thief = tmp_path / "thief"
        thief.mkdir()
        (thief / "host-id").write_text(droplet.name)
        found = re.search(r"pj_[A-Za-z0-9_-]{43}\.[0-9a-f]{64}", droplet.user_data)
        assert found is not None
        for plain in ("false", "true"):
            said = await asyncio.to_thread(_agent, stranger, thief, scheduler_at, found[0], plain)
            assert ("connects without TLS" if plain == "true" else "was used already") in said, said
        with capture(network.bridge) as wire:
            assert await answered(), "and the host serves on"
            host_key = json.loads((agent_log.parent / "host-credentials.json").read_text())["engine_key"]
            assert (
                status(stranger, f"http://{network.gateway}:{scheduler_port}/{PROMPT.replace(' ', '-')}")
                == "000"
            )
        assert PROMPT.replace(" ", "-").encode() in wire.data, "what is sent in clear is seen"
        assert len(wire.data) > 2_000, "the request and its answer passed here"
        assert PROMPT.encode() not in wire.data
        assert host_key.encode() not in wire.data


def _agent(namespace: str, directory: Path, schedulers: str, token: str, plain: str) -> str:
    """What an agent logs that runs there for some seconds, until it is refused."""
    command = (
        f"PENSTOCK_DATA_DIR={directory} PENSTOCK_ENGINE=sim PENSTOCK_SCHEDULERS={schedulers} "
        f"PENSTOCK_JOIN_TOKEN={token} PENSTOCK_SCHEDULER_TLS={'never' if plain == 'true' else 'remote'} "
        f"{sys.executable} -m cli.main agent & agent=$!; "
        f"while kill -0 $agent && ! grep -q 'cannot join' {directory}/said; do sleep 0.2; done; kill $agent; wait"
    )
    answer = run_inside(
        namespace,
        "/bin/sh",
        "-c",
        f"( {command} ) >{directory}/said 2>&1; cat {directory}/said",
        timeout_s=120.0,
    )
    return answer.stdout
