"""The pools: hosts, replicas, queues, and actions on replicas."""

from collections.abc import Sequence

import msgspec

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from scheduler.client import SchedulerClient
from scheduler.wire import HostView, PlanView, QueueView
from tenants.names import clean_reason
from tenants.roles import FINANCE, PLATFORM_ADMIN, PLATFORM_ROLES
from workers import host_acceptances
from workers.host_acceptances import StoredAcceptance
from workers.wire import ReplicaCommand, ReplicaState, ReplicaStatus, basis_of

ACTIONS = ("drain", "resume", "sleep", "wake", "restart")
"""Drain stops new requests, resume undoes it; sleep offloads the weights, wake loads them; restart ends the engine."""
MAX_DEADLINE_S = 3600.0
MAX_ACCEPTANCES = 1_000


class ReplicaView(msgspec.Struct, frozen=True):
    """A replica, for display."""

    replica_id: str
    model: str
    state: ReplicaState
    phase: str
    """What it does in more detail than `state`; empty = an older agent reports it."""
    engine: str
    simulated: bool
    running: int
    waiting: int
    kv_usage_pct: float
    """Per cent of the KV cache in use."""
    prefix_kind: str
    """text | tokens: the unit in which prompts are matched to its cache."""
    restarts: int
    gpus: int
    figures: str
    """validated | unvalidated | learnt: what its speeds in the catalog rest on."""
    url: str
    detail: str
    version: str = ""
    """Of its engine, by the last rollout; empty = as its host's settings say."""
    weights_done_bytes: int = 0
    """While it prefetches: bytes of its weights that are on the host, or that are checked; else 0."""
    weights_total_bytes: int = 0
    """Bytes of all its weights then; 0 = not known."""


class PoolsView(msgspec.Struct, frozen=True):
    """The live state of all pools."""

    at_unix_ms: int
    replicas: list[ReplicaView]
    hosts: list[HostView]
    queues: list[QueueView]


class CommandOutcome(msgspec.Struct, frozen=True):
    """The result of a command."""

    replica_id: str
    action: str
    message: str


async def get_pools(actor: Actor, *, client: SchedulerClient) -> PoolsView:
    """The present hosts, replicas and queues. Raises Unavailable when the scheduler is not connected."""
    require(actor, PLATFORM_ADMIN, FINANCE)
    snapshot = await client.fresh_snapshot()
    replicas = [_view(status) for status in snapshot.replicas]
    return PoolsView(snapshot.at_unix_ms, replicas, snapshot.hosts, snapshot.queues)


async def get_plan(actor: Actor, *, client: SchedulerClient) -> PlanView:
    """What the autoscaler plans now, with the first of its moves.

    Raises NotFound until it has a plan, Unavailable when the scheduler is not connected.
    """
    require(actor, PLATFORM_ADMIN, FINANCE)
    plan = (await client.fresh_snapshot()).plan
    if plan is None:
        raise NotFound(
            "The autoscaler has no plan: no model has a replica or limits of its own; `penstock models set-scaling` "
            "sets limits."
        )
    return plan


async def list_acceptances(
    database: Database, actor: Actor, *, host_id: str | None = None, limit: int = 100
) -> Sequence[StoredAcceptance]:
    """What the checks of GPU hosts found, of one host or of all, the newest first.

    Raises InvalidRequest for a limit that is not 1 to MAX_ACCEPTANCES, PermissionDenied.
    """
    if not 1 <= limit <= MAX_ACCEPTANCES:
        raise InvalidRequest(f"limit is {limit}, must be 1 to {MAX_ACCEPTANCES}", param="limit")
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await host_acceptances.list_acceptances(connection, host_id=host_id, limit=limit)


async def command_replica(
    database: Database,
    actor: Actor,
    *,
    client: SchedulerClient,
    replica_id: str,
    action: str,
    reason: str,
    deadline_s: float = 120.0,
    level: int | None = None,
) -> CommandOutcome:
    """Send one of ACTIONS to a replica and wait up to `deadline_s` seconds for the agent's result.

    `level` is that of a sleep, and refused with other actions: 1 (the default) keeps the weights in the host's memory,
    2 drops them.

    Writes an audit row before sending, and a second one when the command fails. Raises InvalidRequest, NotFound,
    Unavailable when the scheduler is not connected, Conflict with the agent's message.
    """
    require(actor, PLATFORM_ADMIN)
    reason = clean_reason(reason)
    if action not in ACTIONS:
        raise InvalidRequest(
            f"action must be one of {', '.join(ACTIONS)}, not {action[:40]!r}", param="action"
        )
    if not 0 < deadline_s <= MAX_DEADLINE_S:
        raise InvalidRequest(f"deadline_s must be above 0 and at most {MAX_DEADLINE_S:g}", param="deadline_s")
    if level is not None and action != "sleep":
        raise InvalidRequest(
            f"level is that of a sleep; leave it out of {action} (it is {level})", param="level"
        )
    if level not in (None, 1, 2):
        raise InvalidRequest(f"level must be 1 or 2, not {level}", param="level")
    level = level or 1
    before = await _find(client, replica_id)
    asked = {"asked": action, "level": str(level)} if action == "sleep" else {"asked": action}
    await _record(database, actor, f"replica.{action}", before, reason, asked)
    command = ReplicaCommand(str(uuid7()), replica_id, action, deadline_s, level)
    result = await client.command(command)
    if not result.ok:
        await _record(database, actor, f"replica.{action}_failed", before, reason, {"error": result.message})
        raise Conflict(f"replica {replica_id} could not {action}: {result.message}")
    return CommandOutcome(replica_id, action, result.message)


async def _find(client: SchedulerClient, replica_id: str) -> ReplicaView:
    replicas = (await client.fresh_snapshot()).replicas
    for status in replicas:
        if status.replica_id == replica_id:
            return _view(status)
    known = ", ".join(status.replica_id for status in replicas) or "none"
    raise NotFound(f"there is no replica {replica_id[:200]!r}; now there are: {known}", param="replica_id")


async def _record(
    database: Database, actor: Actor, action: str, before: ReplicaView, reason: str, after: dict[str, str]
) -> None:
    async with write(database, actor) as connection:
        await record(
            connection,
            actor,
            action,
            tenant_id=None,
            object_kind="replica",
            object_id=before.replica_id,
            reason=reason,
            before=before,
            after=after,
        )


def _view(status: ReplicaStatus) -> ReplicaView:
    return ReplicaView(
        status.replica_id,
        status.model,
        status.state,
        status.phase,
        status.engine,
        status.simulated,
        status.running,
        status.waiting,
        round(100 * status.kv_usage, 1),
        status.prefix_kind,
        status.restarts,
        status.capacity.gpus,
        basis_of(status.capacity),
        status.url,
        status.detail,
        status.version,
        status.weights_done_bytes,
        status.weights_total_bytes,
    )
