"""`penstock pools`: hosts and replicas, and the actions on them."""

import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from admin import acting as admin_acting
from admin import pools
from cli.commands import host_contracts
from cli.commands.roles import load_settings
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run, runtime, shell_actor
from core.addresses import parse_addresses
from core.clock import SystemClock
from core.private_tls import read_authority
from scheduler.authority import trusted
from scheduler.client import SchedulerClient
from scheduler.client_tls import ClientTls
from scheduler.wire import PlanView
from workers.host_acceptances import StoredAcceptance

app = typer.Typer(help="Hosts and replicas: what runs where; drain, wake, restart.", no_args_is_help=True)
app.add_typer(host_contracts.app, name="contract")

ReplicaId = Annotated[str, typer.Argument(metavar="REPLICA", help="Id of the replica, as `list` shows it.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the audit log.")]
Deadline = Annotated[float, typer.Option("--deadline", help="Seconds it may take.")]
DEADLINE_S = 120.0


@asynccontextmanager
async def open_scheduler(data_dir: Path | None) -> AsyncIterator[SchedulerClient]:
    """A connection to the schedulers of PENSTOCK_SCHEDULER* and PENSTOCK_INTERNAL_TOKEN, else those of `penstock up`.

    Raises Unavailable when neither exists.
    """
    token, settings = os.environ.get("PENSTOCK_INTERNAL_TOKEN"), load_settings()

    async def authority() -> bytes:
        if settings.scheduler_ca.name:
            return read_authority(settings.scheduler_ca)
        async with open_db(data_dir) as database:
            return await trusted(database, settings)

    if token:
        addresses = settings.scheduler_addresses
    else:
        facts = runtime(data_dir)
        addresses = parse_addresses(str(facts["schedulers"]), "schedulers in runtime.json")
        token = str(facts["internal_token"])
    rng = random.Random()  # noqa: S311 - spreads reconnects, keeps no secret
    tls = ClientTls(settings.scheduler_tls, authority)
    client = SchedulerClient(addresses, token, name="cli", clock=SystemClock(), rng=rng, tls=tls)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@app.command("list", epilog="Example: penstock pools list --json")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show replicas, hosts and queues now."""

    async def act() -> pools.PoolsView:
        async with open_scheduler(data_dir) as client:
            return await pools.get_pools(shell_actor(), client=client)

    view = run(act)
    if as_json:
        emit(view, as_json)
        return
    replicas = [msgspec.to_builtins(replica) for replica in view.replicas]
    for replica in replicas:  # the detail says it in words
        del replica["weights_done_bytes"], replica["weights_total_bytes"]
    emit(replicas, as_json, title="Replicas")
    hosts = [msgspec.to_builtins(host) for host in view.hosts]
    for host in hosts:
        host["acceptance"] = (host["acceptance"] or {}).get("verdict", "")
        host["state_seconds"] = ", ".join(f"{state} {s} s" for state, s in host["state_seconds"].items())
    emit(hosts, as_json, title="Hosts")
    emit(view.queues, as_json, title="Queues")


@app.command(epilog="Example: penstock pools plan --json")
def plan(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what the autoscaler plans now, and where: replicas by model, moves, hosts to create, destroy and keep."""

    async def act() -> PlanView:
        async with open_scheduler(data_dir) as client:
            return await pools.get_plan(shell_actor(), client=client)

    found = run(act)
    if as_json:
        emit(found, as_json)
        return
    models = [
        {
            "model": row.model,
            "awake": row.awake,
            "pending": row.pending,
            "target": row.target,
            "places": ", ".join(f"{place.target} {place.words}" for place in row.places),
            "most": ", ".join(f"{most} on hosts of kind {kind}" for kind, most in row.most.items()),
            "reason": row.reason,
        }
        for row in found.models
    ]
    emit(models, as_json, title="Models")
    emit(found.changes, as_json, title=f"Moves, of {found.changes_total}")
    emit(found.kinds, as_json, title="Kinds of hosts")
    creations = [
        msgspec.to_builtins(row) | {"regions": " or ".join(row.regions) or "any"} for row in found.create
    ]
    emit(creations, as_json, title="Hosts to create")
    emit(found.destroy, as_json, title="Hosts to destroy")
    emit(found.kept, as_json, title="Hosts that are kept")


@app.command(epilog="Example: penstock pools acceptances --host b300-1-3f9a")
def acceptances(
    host: Annotated[str | None, typer.Option("--host", help="Of one host only.")] = None,
    limit: Annotated[int, typer.Option(help="Checks at most, the newest first.")] = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what the checks of GPU hosts found before they served: a row for each finding."""

    async def act() -> Sequence[StoredAcceptance]:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await pools.list_acceptances(database, who, host_id=host, limit=limit)

    found = run(act)
    if as_json:
        emit(found, as_json)
        return
    rows = [
        {"host": each.host_id, "at": each.at, "verdict": each.verdict, "finding": finding["text"]}
        for each in found
        for finding in each.findings or [{"text": ""}]
    ]
    emit(rows, as_json, title="Acceptances")


@app.command(epilog="Example: penstock pools timeline --model llama-3.3-70b --limit 20")
def timeline(
    model: Annotated[str | None, typer.Option("--model", help="For one model only.")] = None,
    limit: Annotated[int, typer.Option(help="Acts at most, the newest first.")] = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what was done for the autoscaler's plan, would have been done, or was refused, with the reasons."""
    perform(lambda db, actor: admin_acting.timeline(db, actor, model=model, limit=limit), data_dir, as_json)


@app.command("acting", epilog="Example: penstock pools acting --json")
def show_acting(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show whether the autoscaler's plan is acted on, and the platform's budget per month."""
    perform(admin_acting.get_acting, data_dir, as_json)


@app.command(
    "set-acting",
    epilog='Example: penstock pools set-acting dry-run --month-budget 20000 --reason "look first"',
)
def set_acting(
    reason: Reason,
    acting: Annotated[str | None, typer.Argument(help="off | dry-run | on")] = None,
    month_budget: Annotated[
        str | None,
        typer.Option(
            "--month-budget",
            help="Most dollars in a UTC month for all hosts that no contract covers: none is created beyond it, and "
            "the newest are destroyed, down to the models' minima; none = no limit.",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set whether the autoscaler's plan is acted on, for models with limits of their own.

    A model's own switch, `models set-scaling --acting`, can only be weaker.
    """
    perform(
        lambda db, actor: admin_acting.set_acting(
            db, actor, acting=acting, budget_usd_per_month=month_budget, reason=reason
        ),
        data_dir,
        as_json,
    )


def _command(
    action: str,
    replica_id: str,
    reason: str,
    deadline_s: float,
    data_dir: Path | None,
    as_json: bool,
    level: int | None = None,
) -> None:
    async def act() -> pools.CommandOutcome:
        async with open_db(data_dir) as database, open_scheduler(data_dir) as client:
            who = await acting(database, data_dir)
            return await pools.command_replica(
                database,
                who,
                client=client,
                replica_id=replica_id,
                action=action,
                reason=reason,
                deadline_s=deadline_s,
                level=level,
            )

    emit(run(act), as_json)


@app.command(epilog='Example: penstock pools drain host-1/tiny-0 --reason "new driver"')
def drain(
    replica: ReplicaId,
    reason: Reason,
    deadline: Deadline = DEADLINE_S,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let a replica finish what it has and give it nothing new."""
    _command("drain", replica, reason, deadline, data_dir, as_json)


@app.command(epilog='Example: penstock pools resume host-1/tiny-0 --reason "driver is in"')
def resume(
    replica: ReplicaId,
    reason: Reason,
    deadline: Deadline = DEADLINE_S,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Route to a drained replica again."""
    _command("resume", replica, reason, deadline, data_dir, as_json)


@app.command(epilog='Example: penstock pools sleep host-1/tiny-0 --level 2 --reason "night"')
def sleep(
    replica: ReplicaId,
    reason: Reason,
    level: Annotated[
        int,
        typer.Option(
            "--level",
            min=1,
            max=2,
            help="1 keeps the weights in the host's memory; 2 drops them, and a wake reads them again.",
        ),
    ] = 1,
    deadline: Deadline = DEADLINE_S,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Park a replica's weights, so that its GPUs serve another model."""
    _command("sleep", replica, reason, deadline, data_dir, as_json, level)


@app.command(epilog='Example: penstock pools wake host-1/tiny-0 --reason "morning"')
def wake(
    replica: ReplicaId,
    reason: Reason,
    deadline: Deadline = DEADLINE_S,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Bring a sleeping replica back."""
    _command("wake", replica, reason, deadline, data_dir, as_json)


@app.command(epilog='Example: penstock pools restart host-1/tiny-0 --reason "stuck"')
def restart(
    replica: ReplicaId,
    reason: Reason,
    deadline: Deadline = DEADLINE_S,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Stop a replica's engine and start it anew; what runs on it is lost."""
    _command("restart", replica, reason, deadline, data_dir, as_json)
