"""Which agents a scheduler admits: hosts that have joined by secrets of their own, others by the internal token.

Secrets are compared in memory, so hosts that have joined are admitted while PostgreSQL is away. Joining writes to it.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from re import compile as pattern
from typing import Literal
from urllib.parse import urlsplit

from sqlalchemy.ext.asyncio import AsyncConnection

from core.addresses import is_loopback
from core.db import Database
from core.private_tls import certificates_alone
from workers.host_credentials import HostSecrets, join, rotate
from workers.join_token import HASH_BYTES, is_engine_key, is_host_name, is_secret, secret_hash
from workers.wire import SIMULATED_HOST, AgentHello, AgentJoin, AgentRotation, Heartbeat, ReplicaStatus

JOIN_TIMEOUT_S = 4.0
"""Seconds for one join, less than a peer may be without a hello."""
MAX_JOINS = 4
"""Joins at a time; others are told to try again, because a stranger can ask for them."""
_URL = pattern(r"https?://[A-Za-z0-9.:/\[\]_~%-]+")

log = logging.getLogger(__name__)


class HostAdmission:
    """The secrets of hosts, and the rule for the internal token."""

    def __init__(self, database: Database, required: Literal["remote", "always", "never"]) -> None:
        """`required`: which agents must have joined; `remote` are those that do not connect over loopback."""
        self._database = database
        self._secrets = HostSecrets(database)
        self._required = required
        self._joining = 0

    async def start(self) -> None:
        """Read the secrets, and again in the background."""
        await self._secrets.start()

    async def close(self) -> None:
        """Stop reading."""
        await self._secrets.close()

    def holds(self, host: str, hashed: bytes) -> bool:
        """Whether the secret with this hash holds for a host."""
        known = self._secrets.hashes.get(host, ())
        return any([hmac.compare_digest(one, hashed) for one in known])

    def rotates(self, host: str) -> bool:
        """Whether the agent of a host is to make another secret."""
        return host in self._secrets.rotates

    def fault(self, hello: AgentHello) -> str:
        """Why a host with a secret of its own is turned away; empty when it is not."""
        if self.holds(hello.agent_id, secret_hash(hello.token)):
            if is_engine_key(hello.engine_key):
                return _authority_fault(hello)
            return (
                f"the engine key of host {hello.agent_id} must have 16 to 256 letters, digits and . _ ~ + / = -: set "
                "PENSTOCK_ENGINE_KEY of the host so, or remove it"
            )
        if not self._secrets.known:
            return "this scheduler has not read the secrets of hosts yet; try again"
        return (
            f"the secret of host {hello.agent_id[:100]} does not hold: it was revoked, or another agent has joined "
            "under this name. `penstock hosts invite` lets the host join again"
        )

    def shared_fault(self, peer: str) -> str:
        """Why the internal token does not admit an agent at the address `peer`; empty when it does."""
        if self._required == "never" or (self._required == "remote" and is_loopback(peer)):
            return ""
        return (
            f"an agent at {peer} needs a secret of its own: `penstock hosts invite` prints a join token for it; or set "
            "PENSTOCK_JOIN_REQUIRED=never at the scheduler"
        )

    async def join(self, message: AgentJoin) -> str:
        """Let a host join; returns why not, or an empty text. What no host and no token can be is not looked up."""
        if not is_host_name(message.host_id):
            return f"no host can be called {message.host_id[:100]!r}"
        if not is_secret(message.token) or len(message.secret_hash) != HASH_BYTES:
            return "the join token, or the hash of the secret, has a wrong form"
        hashed = secret_hash(message.token)
        problem = await self._written(
            message.host_id, lambda connection: join(connection, message.host_id, hashed, message.secret_hash)
        )
        if not problem:
            self._secrets.hashes[message.host_id] = (message.secret_hash,)
            log.info("host %s has joined", message.host_id)
        return problem

    async def rotate(self, message: AgentRotation) -> str:
        """Let another secret of a host hold, which shows one that does; returns why not, or an empty text."""
        host, old = message.host_id, secret_hash(message.token)
        if not self.holds(host, old) or len(message.secret_hash) != HASH_BYTES:
            return f"the secret of host {host[:100]!r} does not hold, or the new one's hash has a wrong form"
        if self.holds(host, message.secret_hash):
            return ""  # asked again, because the answer was lost
        problem = await self._written(
            host, lambda connection: rotate(connection, host, old, message.secret_hash)
        )
        if not problem:
            self._secrets.hashes[host] = (message.secret_hash, old)
            self._secrets.rotates.discard(host)
            log.info("host %s has another secret", host)
        return problem

    async def _written(self, host: str, write: Callable[[AsyncConnection], Awaitable[str]]) -> str:
        """What `write` returns in a transaction, or why there was none; at most MAX_JOINS at a time."""
        if self._joining >= MAX_JOINS:
            return "too many hosts join at this moment; try again"
        self._joining += 1
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S), self._database.system() as connection:
                return await write(connection)
        except Exception as error:  # noqa: BLE001 - whatever PostgreSQL does, the host tries again
            log.warning("nothing can be written for host %s now: %s", host[:100], error)
            return "the scheduler cannot reach its database; try again"
        finally:
            self._joining -= 1


def _authority_fault(hello: AgentHello) -> str:
    """Why nothing can be trusted by the authority of a host's engines; empty when it can, or there is none."""
    try:
        if not hello.engine_authority or certificates_alone(hello.engine_authority) == hello.engine_authority:
            return ""
    except ValueError:
        pass
    return (
        f"the engine authority of host {hello.agent_id} is no certificate: remove the folder engine-tls of its data "
        "directory, and start its agent again"
    )


def confined(beat: Heartbeat, host: str, peer: str) -> list[str]:
    """Leave in a heartbeat only what a host that has joined as `host` may report, and return the other replicas.

    Its replicas are named after it, and their engines are at `peer`, the address from which it connects. An agent with
    simulated engines calls its host `sim-NAME`.
    """
    if beat.host_id not in (host, f"{SIMULATED_HOST}{host}"):
        beat.host_id = host
    names = (f"{host}/", f"{SIMULATED_HOST}{host}/")

    def own(one: ReplicaStatus) -> bool:
        return one.replica_id.startswith(names) and _is_at(one.url, peer)

    others = [one.replica_id for one in beat.replicas if not own(one)]
    beat.replicas = [one for one in beat.replicas if own(one)]
    beat.ended = [one for one in beat.ended if one.status.replica_id.startswith(names)]
    return others


def _is_at(url: str, peer: str) -> bool:
    """Whether a URL is one for HTTP at an address, with nothing that a request could be split by."""
    if not _URL.fullmatch(url):
        return False
    try:
        host = urlsplit(url).hostname or ""
        return (is_loopback(host) and is_loopback(peer)) or _unmapped(host) == _unmapped(peer)
    except ValueError:
        return False


def _unmapped(host: str) -> IPv4Address | IPv6Address:
    address = ip_address(host)
    return getattr(address, "ipv4_mapped", None) or address
