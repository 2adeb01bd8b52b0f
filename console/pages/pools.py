"""Pools: live hosts and replicas as the scheduler reports them."""

from collections.abc import Mapping
from datetime import UTC, datetime

from fastapi import Request

from admin import acting, host_joining
from admin import tenants as admin_tenants
from admin.host_joining import RegistrationView
from admin.pools import command_replica
from console.components.base import Stat, badge, box, card, notice, page_head
from console.components.dialogs import confirm
from console.components.table import Cell, Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import Formatted, count, moment, percent, seconds
from console.panels.acts import SHOWN, ActsPanel
from console.panels.host_contracts import HostContractsPanel
from console.panels.invitations import InvitationsPanel
from console.panels.scheduling import SchedulingPanel
from console.viewer import Viewer, toast_ok
from core.errors import NotFound
from scheduler.wire import HostView, PoolSnapshot
from workers.wire import ReplicaState, ReplicaStatus, basis_of

REFRESH_S = 1.5
TIMELINE_S = 5.0
"""Seconds between two reads of the timeline."""
STALE_HOST_S = 5.0
"""A host whose last heartbeat is older than this many seconds is shown as stale."""
STATE_TONES = {
    ReplicaState.READY: "ok",
    ReplicaState.LOADING: "info",
    ReplicaState.ASLEEP: "idle",
    ReplicaState.DRAINING: "warn",
    ReplicaState.FAILED: "bad",
    ReplicaState.STOPPED: "idle",
}
ACCEPTANCE_TONES = {"accepted": "ok", "degraded": "warn", "refused": "bad"}
_ACTIONS = {
    ReplicaState.READY: ("drain", "sleep", "restart"),
    ReplicaState.DRAINING: ("resume",),
    ReplicaState.ASLEEP: ("wake",),
    ReplicaState.FAILED: ("restart",),
}
"""State of a replica -> actions that it allows."""
_CONFIRMATIONS = {
    "drain": "It takes no new requests and finishes the {open} it has.",
    "resume": "It takes requests again.",
    "sleep": "Its weights are parked and its cache is lost. It finishes the {open} it has first.",
    "restart": "Its process ends and starts anew; the {open} it has are cut.",
    "wake": "Its weights are loaded again; it takes requests as soon as it is ready.",
}

_REPLICA_COLUMNS = (
    Column("replica", "Replica"),
    Column("state", "State"),
    Column("kv", "KV cache", numeric=True),
    Column("running", "Running", numeric=True),
    Column("waiting", "Waiting", numeric=True),
    Column("restarts", "Restarts", numeric=True),
    Column("acts", ""),
)
_HOST_COLUMNS = (
    Column("host", "Host"),
    Column("kind", "Kind"),
    Column("region", "Region"),
    Column("gpus", "GPUs", numeric=True),
    Column("address", "Address"),
    Column("joined", "Joined", numeric=True),
    Column("accepted", "Acceptance"),
    Column("seen", "Last heartbeat", numeric=True),
    Column("life", "Time by state"),
)


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the page and refresh it every REFRESH_S seconds."""
    tenants = await admin_tenants.list_tenants(console.database, viewer.actor)
    with page_head("Pools", "Engines as the scheduler sees them right now."):
        state = badge("", "ok")
    alerts = box("div", "stack")
    with box("div", "grid stats"):
        ready = Stat("Replicas ready", Formatted("–"))
        in_flight = Stat("Requests in flight", Formatted("–"))
        waiting = Stat("Waiting in queue", Formatted("–"))
        cache = Stat("KV cache in use", Formatted("–"))

    async def act(name: str, replica_id: str) -> None:
        await _command(console, viewer, name, replica_id)

    with card("Replicas", flush=True):
        replicas = data_table(
            _REPLICA_COLUMNS,
            [],
            label="Replicas",
            nothing="No replica has reported yet. Is an agent connected?",
            on_action=viewer.act(act),
        )
    scheduling = SchedulingPanel({tenant.id: tenant.name for tenant in tenants})
    acts = ActsPanel()
    with card("Hosts", flush=True):
        hosts = data_table(_HOST_COLUMNS, [], label="Hosts", nothing="No host has reported yet.")
    contracts = HostContractsPanel(console, viewer)
    invitations = InvitationsPanel(console, viewer)

    shown_problems: list[tuple[str, str]] | None = None
    registered: dict[str, RegistrationView] = {}
    silent: dict[str, datetime] = {}

    async def refresh() -> None:
        nonlocal shown_problems
        snapshot = console.scheduler.snapshot()
        now = console.clock.now()
        connected = console.scheduler.connected
        state.set_text(_freshness(snapshot, connected))
        state.classes(replace=f"badge {'ok' if connected else 'bad'}")
        ready.set(
            Formatted(f"{_ready(snapshot)} of {len(snapshot.replicas)}"),
            f"on {len(snapshot.hosts)} host{'' if len(snapshot.hosts) == 1 else 's'}",
        )
        in_flight.set(count(sum(queue.in_flight for queue in snapshot.queues)))
        waiting.set(count(sum(queue.waiting for queue in snapshot.queues)), _oldest(snapshot))
        cache.set(_cache_use(snapshot))
        set_rows(replicas, [_replica_row(one, viewer.is_admin) for one in snapshot.replicas])
        scheduling.show(snapshot)
        set_rows(hosts, [_host_row(one, registered.get(one.host_id), now) for one in snapshot.hosts])
        found = problems(snapshot, connected) + _lost(snapshot, silent)
        if found != shown_problems:
            shown_problems = found
            alerts.clear()
            with alerts:
                for headline, body in found:
                    notice("bad", headline, body)

    async def refresh_registrations() -> None:
        nonlocal registered, silent
        names = [one.host_id for one in console.scheduler.snapshot().hosts]
        found = await host_joining.joining(console.database, viewer.actor, names)
        registered, silent = found.registrations, found.silent
        invitations.show(found.invitations)
        await contracts.refresh()

    async def refresh_acts() -> None:
        found = await acting.timeline(console.database, viewer.actor, limit=SHOWN)
        rules = await acting.get_acting(console.database, viewer.actor)
        acts.show(found, rules.acting, datetime.now(UTC))

    await refresh_registrations()
    await refresh()
    await refresh_acts()
    viewer.live(REFRESH_S, refresh)
    viewer.live(TIMELINE_S, refresh_registrations)
    viewer.live(TIMELINE_S, refresh_acts)


def problems(snapshot: PoolSnapshot, connected: bool) -> list[tuple[str, str]]:
    """Problems that need attention as (headline, explanation), worst first. The overview shows them too."""
    found: list[tuple[str, str]] = []
    if not connected:
        found.append(
            (
                "The scheduler is not connected",
                "Live figures are the last known ones; requests are placed by the fallback.",
            )
        )
    for replica in snapshot.replicas:
        if replica.state == ReplicaState.FAILED:
            detail = replica.detail or "The agent restarts it after a pause."
            found.append((f"Replica {replica.replica_id} has failed", detail))
    found.extend(
        (
            f"Host {host.host_id} is silent",
            f"No heartbeat for {seconds(host.last_seen_s).text}; its replicas get no requests.",
        )
        for host in snapshot.hosts
        if host.last_seen_s > STALE_HOST_S
    )
    found.extend(
        (
            f"Host {host.host_id} is refused",
            next((each.text for each in host.acceptance.findings), "Its checks failed."),
        )
        for host in snapshot.hosts
        if host.acceptance is not None and host.acceptance.verdict == "refused"
    )
    models = {replica.model for replica in snapshot.replicas}
    serving = {replica.model for replica in snapshot.replicas if replica.state == ReplicaState.READY}
    found.extend(
        (f"No replica serves {model}", "Requests for it are refused or wait.")
        for model in sorted(models - serving)
    )
    return found


def _lost(snapshot: PoolSnapshot, silent: Mapping[str, datetime]) -> list[tuple[str, str]]:
    """Notices of hosts that joined and that the scheduler has forgotten; `silent` has their last heartbeats."""
    live = {host.host_id for host in snapshot.hosts}
    return [
        (
            f"Host {host} is silent since {at:%Y-%m-%d %H:%M:%S} UTC",
            "Start its agent again, or revoke its right to report.",
        )
        for host, at in silent.items()
        if host not in live
    ]


async def _command(console: Console, viewer: Viewer, action: str, replica_id: str) -> None:
    """Confirm, then send the command to the scheduler. The admin function checks the role and writes the audit row."""
    replica = next(
        (one for one in console.scheduler.snapshot().replicas if one.replica_id == replica_id), None
    )
    if replica is None or action not in _CONFIRMATIONS:
        raise NotFound(f"there is no replica {replica_id!r} any more")
    running = replica.running + replica.waiting
    affected = f"{running} open request{'' if running == 1 else 's'}"
    title = f"{action.capitalize()} {replica_id}?"
    reason = await confirm(
        viewer,
        title,
        _CONFIRMATIONS[action].format(open=affected),
        action.capitalize(),
        danger=action in ("drain", "sleep", "restart"),
    )
    if reason is None:
        return
    toast_ok(f"{action.capitalize()}: {replica_id} was told.")
    outcome = await command_replica(
        console.database,
        viewer.actor,
        client=console.scheduler,
        replica_id=replica_id,
        action=action,
        reason=reason,
    )
    toast_ok(f"{replica_id}: {outcome.message or action + ' is done'}.")


def _freshness(snapshot: PoolSnapshot, connected: bool) -> str:
    if not connected:
        return "Scheduler away"
    at = datetime.fromtimestamp(snapshot.at_unix_ms / 1000, UTC)
    return f"Live · {at:%H:%M:%S} UTC"


def _ready(snapshot: PoolSnapshot) -> int:
    return sum(replica.state == ReplicaState.READY for replica in snapshot.replicas)


def _oldest(snapshot: PoolSnapshot) -> str:
    oldest = max((queue.oldest_s for queue in snapshot.queues if queue.waiting), default=None)
    return "none waiting" if oldest is None else f"oldest for {seconds(oldest).text}"


def _cache_use(snapshot: PoolSnapshot) -> Formatted:
    awake = [one for one in snapshot.replicas if one.state == ReplicaState.READY]
    room = sum(one.capacity.kv_cache_tokens for one in awake)
    used = sum(one.kv_usage * one.capacity.kv_cache_tokens for one in awake)
    return percent(used / room if room else None)


def _replica_row(replica: ReplicaStatus, may_act: bool) -> Row:
    acts = [(act, act.capitalize(), "") for act in _ACTIONS.get(replica.state, ())] if may_act else []
    engine = f"{replica.engine}, simulated" if replica.simulated else replica.engine
    return {
        "id": replica.replica_id,
        "replica": cell(
            replica.replica_id,
            sub=f"{replica.model} · {engine} · {basis_of(replica.capacity)} figures"
            + (f" · version {replica.version}" if replica.version else ""),
            text=True,
        ),
        "state": _state(replica),
        "kv": cell(percent(replica.kv_usage), bar=replica.kv_usage),
        "running": cell(count(replica.running)),
        "waiting": cell(count(replica.waiting)),
        "restarts": cell(count(replica.restarts)),
        "acts": actions_cell(acts, replica.replica_id),
    }


def _state(replica: ReplicaStatus) -> Cell:
    """The state; while weights come to the host, that phase and how far it is."""
    total = replica.weights_total_bytes
    return cell(
        (replica.phase if total else replica.state.value).capitalize(),
        tone=STATE_TONES[replica.state],
        sub=replica.detail,
        text=True,
        bar=replica.weights_done_bytes / total if total else None,
        progress=bool(total),
    )


def _acceptance(host: HostView) -> Cell:
    report = host.acceptance
    if report is None:
        return cell("–")
    reasons = "; ".join(each.text for each in report.findings if each.severity != "note")
    return cell(
        report.verdict.capitalize(), tone=ACCEPTANCE_TONES[report.verdict], sub=reasons, text=True, wrap=True
    )


def _host_row(host: HostView, registered: RegistrationView | None, now: datetime) -> Row:
    total = sum(host.state_seconds.values())
    shares = ", ".join(
        f"{name.replace('_', ' ')} {spent * 100 // total}%"
        for name, spent in sorted(host.state_seconds.items(), key=lambda item: -item[1])
        if total and spent
    )
    seen: Cell = cell(
        Formatted(f"{host.last_seen_s:.1f} s ago", "", host.last_seen_s),
        tone="bad" if host.last_seen_s > STALE_HOST_S else "ok",
    )
    return {
        "id": host.host_id,
        "host": cell(host.host_id, sub=host.agent_id),
        "kind": cell(host.host_kind),
        "region": cell(host.region),
        "gpus": cell(count(host.gpus)),
        "address": cell(
            (registered and registered.address) or "–",
            sub=f"agent {registered.agent_version}" if registered and registered.agent_version else "",
            text=True,
        ),
        "joined": cell(
            moment(registered.joined_at if registered else None, now),
            sub=registered.joining if registered else "",
        ),
        "accepted": _acceptance(host),
        "seen": seen,
        "life": cell(shares or "–", wrap=True),
    }
