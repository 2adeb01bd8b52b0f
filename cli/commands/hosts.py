"""`penstock hosts`: hosts from providers, what is desired, every call with its result, costs, notices of reclaims."""

import re
from datetime import datetime, timedelta
from typing import Annotated

import typer

from admin import host_costs, host_joining, host_owners, hosts
from admin.actor import Actor
from billing.ledger.months import bounds, parse_month
from billing.usage.period import parse_instant
from cli.commands.roles import load_settings
from cli.context import AsJson, DataDir, perform, warn
from cli.durations import parse_duration
from core.db import Database
from core.errors import InvalidRequest
from scheduler.authority import known_fingerprint

app = typer.Typer(
    no_args_is_help=True, help="Hosts from providers: desired, existing, their calls and what they cost."
)

Name = Annotated[str, typer.Argument(metavar="HOST", help="Name of the host, as `list` shows it.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the audit log.")]
Model = Annotated[str, typer.Option("--model", help="The model that they are for.")]
Ended = Annotated[bool, typer.Option("--ended", help="Those of the past, too.")]
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


@app.command("list", epilog="Example: penstock hosts list --ended --json")
def list_(ended: Ended = False, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show hosts with their price and what they have cost; those that joined by themselves are `static`.

    Warns of providers that a person has to look at, and of hosts that joined and are silent.
    """

    async def act(db: Database, actor: Actor) -> object:
        for line in await host_owners.list_notices(db, actor):
            warn(line)
        found = await hosts.list_hosts(db, actor, ended=ended)
        for host in found:
            if host.silent_since is not None:
                warn(
                    f"host {host.name} is silent since {host.silent_since:%Y-%m-%d %H:%M:%S} UTC; start its agent "
                    f"again, or end its right to report with `penstock hosts revoke {host.name}`"
                )
        return found

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock hosts intents")
def intents(ended: Ended = False, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what was written down before the first call for each host, and how far it is."""
    perform(lambda db, actor: hosts.list_intents(db, actor, ended=ended), data_dir, as_json)


@app.command(epilog="Example: penstock hosts events --host production-3f9a1c2b4d5e --json")
def events(
    host: Annotated[str | None, typer.Option("--host", help="Of one host only.")] = None,
    reads: Annotated[bool, typer.Option("--reads", help="Calls that only look, too.")] = False,
    limit: Annotated[int, typer.Option(help="Rows at most, the newest first.")] = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show calls of providers with their results, the newest first."""
    perform(
        lambda db, actor: hosts.list_events(db, actor, name=host, reads=reads, limit=limit), data_dir, as_json
    )


@app.command(epilog="Example: penstock hosts desired")
def desired(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show how many hosts of each group there should be, and are."""
    perform(hosts.list_desired, data_dir, as_json)


@app.command(
    "set-desired",
    epilog="Example: penstock hosts set-desired digitalocean nyc2 gpu-h100x8-640gb 2 --model llama-3.3-70b "
    '--reason "launch"',
)
def set_desired(
    provider: Annotated[str, typer.Argument(help="digitalocean | local")],
    region: Annotated[str, typer.Argument(help="The provider's name of the region.")],
    kind: Annotated[str, typer.Argument(help="The provider's name of the size, such as gpu-h100x8-640gb.")],
    count: Annotated[int, typer.Argument(help="Hosts that there should be; 0 destroys them.")],
    reason: Reason,
    model: Model = "",
    hold_for: Annotated[
        str | None,
        typer.Option(
            "--for", help="The autoscaler's plan decides afterwards; without it, never. As 90m or 2h."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set how many hosts of a group there should be; the next pass creates or destroys what differs.

    The autoscaler's plan leaves the group alone.
    """

    async def act(db: Database, actor: Actor) -> object:
        return await hosts.set_desired(
            db,
            actor,
            provider=provider,
            region=region,
            kind=kind,
            count=count,
            model=model,
            hold_for=None if hold_for is None else parse_duration(hold_for, "for"),
            reason=reason,
        )

    perform(act, data_dir, as_json)


@app.command(
    "set-image",
    epilog="Example: penstock hosts set-image digitalocean nyc2 gpu-h100x8-640gb 183456789 --model llama-3.3-70b "
    '--reason "driver 590"',
)
def set_image(
    provider: Annotated[str, typer.Argument(help="digitalocean")],
    region: Annotated[str, typer.Argument(help="The provider's name of the region.")],
    kind: Annotated[str, typer.Argument(help="The provider's name of the size.")],
    image: Annotated[
        str, typer.Argument(help="Id or slug; '' = PENSTOCK_DIGITALOCEAN_IMAGE, for new hosts.")
    ],
    reason: Reason,
    model: Model = "",
    surge: Annotated[
        bool,
        typer.Option(
            "--surge/--no-surge",
            help="Create the new host before an old one is given up, or afterwards, where there is no room.",
        ),
    ] = True,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set the image of a group's hosts: those made from another one are drained and replaced, one at a time.

    An image whose first two hosts fail is given up for the one of before.
    """
    perform(
        lambda db, actor: hosts.set_image(
            db,
            actor,
            provider=provider,
            region=region,
            kind=kind,
            image=image,
            model=model,
            surge=surge,
            reason=reason,
        ),
        data_dir,
        as_json,
    )


@app.command(
    epilog='Example: penstock hosts release digitalocean nyc2 gpu-h100x8-640gb --model llama-3.3-70b --reason "done"'
)
def release(
    provider: Annotated[str, typer.Argument(help="digitalocean | local")],
    region: Annotated[str, typer.Argument(help="The provider's name of the region.")],
    kind: Annotated[str, typer.Argument(help="The provider's name of the size.")],
    reason: Reason,
    model: Model = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Leave a group of hosts to the autoscaler's plan, as it is."""
    perform(
        lambda db, actor: hosts.release_desired(
            db, actor, provider=provider, region=region, kind=kind, model=model, reason=reason
        ),
        data_dir,
        as_json,
    )


@app.command(
    epilog="Example: penstock hosts reclaim production-3f9a1c2b4d5e --at 2026-11-27T18:00:00Z --reason "
    '"notice by e-mail"'
)
def reclaim(
    host: Name,
    reason: Reason,
    at: Annotated[
        str | None, typer.Option("--at", help="When the provider takes it back, with its zone.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="The notice was wrong.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write down a provider's notice that it takes a host back: a replacement is created at once.

    Nothing more is planned on the host. Its replicas stop five minutes before the instant, the last serving one of a
    model when another serves. The host is destroyed at the instant, or drained and destroyed before where it is not
    needed. After --cancel its replicas start again, and a host too many is drained and destroyed.
    """

    def when() -> datetime | None:
        if (at is None) != cancel:
            raise InvalidRequest("give either --at or --cancel")
        if at is None:
            return None
        parse_instant(at, "at")
        return datetime.fromisoformat(at)  # one without a zone is refused

    async def act(db: Database, actor: Actor) -> object:
        return await hosts.note_reclaim(db, actor, name=host, at=when(), reason=reason)

    perform(act, data_dir, as_json)


@app.command(
    epilog="Example: penstock hosts adopt digitalocean --fleet production --account "
    '5df3e3004a17e242b7c20ca6c9fc25b701a47ece --reason "restored here, the old one is stopped"'
)
def adopt(
    provider: Annotated[str, typer.Argument(help="digitalocean | local")],
    fleet: Annotated[str, typer.Option("--fleet", help="The fleet, as the warning of `list` names it.")],
    account: Annotated[str, typer.Option("--account", help="The account, as that warning names it.")],
    reason: Reason,
    leave_hosts: Annotated[
        bool,
        typer.Option(
            "--leave-hosts",
            help="Leave hosts of another fleet or account behind, which run on and cost money.",
        ),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Confirm that a provider's hosts are this installation's alone, after a change of fleet, account or database."""
    perform(
        lambda db, actor: host_owners.adopt(
            db, actor, provider=provider, fleet=fleet, account=account, leave_hosts=leave_hosts, reason=reason
        ),
        data_dir,
        as_json,
    )


@app.command(epilog='Example: penstock hosts invite b300-1 --for 1h --reason "rack 7"')
def invite(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Name that the host is to have: its host id.")],
    reason: Reason,
    valid: Annotated[str, typer.Option("--for", help="How long the token can be used: 30m, 1h, 2d.")] = "1h",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print a one-time token with which a host joins; PENSTOCK_JOIN_TOKEN of its agent takes it. It is shown once."""

    async def act(db: Database, actor: Actor) -> object:
        authority = await known_fingerprint(db, load_settings())
        return await host_joining.invite(
            db, actor, host=host, valid=_duration(valid, "for"), reason=reason, authority=authority
        )

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock hosts invitations --revoked")
def invitations(
    revoked: Annotated[bool, typer.Option("--revoked", help="Those whose right has ended, too.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show hosts that were invited to join, the newest first, and how far each is."""
    perform(lambda db, actor: host_joining.list_invitations(db, actor, revoked=revoked), data_dir, as_json)


@app.command(epilog='Example: penstock hosts revoke b300-1 --reason "sold"')
def revoke(host: Name, reason: Reason, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """End a host's secret and join token: its agent is turned away, and its replicas get no requests."""
    perform(lambda db, actor: host_joining.revoke(db, actor, host=host, reason=reason), data_dir, as_json)


@app.command(epilog='Example: penstock hosts rotate b300-1 --overlap 1h --reason "every quarter"')
def rotate(
    host: Name,
    reason: Reason,
    overlap: Annotated[
        str,
        typer.Option("--overlap", help="How long the present secret holds beside the new one: 30m, 1h, 2d."),
    ] = "1h",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Have a host's agent replace the secret with which it reports, without a restart.

    Where the present secret may have been read by others, use `revoke` and `invite` instead.
    """
    perform(
        lambda db, actor: host_joining.rotate(
            db, actor, host=host, overlap=_duration(overlap, "overlap"), reason=reason
        ),
        data_dir,
        as_json,
    )


def _duration(given: str, option: str) -> timedelta:
    """The time that 30m, 1h or 2d means. Raises InvalidRequest."""
    found = re.fullmatch(r"(\d{1,6})([mhd])", given)
    if found is None:
        raise InvalidRequest(f"--{option} is {given!r}; write it as 30m, 1h or 2d", param=option)
    return int(found[1]) * _UNITS[found[2]]


@app.command(epilog="Example: penstock hosts costs --month 2026-11")
def costs(
    month: Annotated[str, typer.Option(help="As 2026-11.")], data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show what hosts cost in a month, as their providers bill them, and the part for which no agent accounts."""

    async def act(db: Database, actor: Actor) -> object:
        start, end = bounds(parse_month(month))
        return await host_costs.host_costs(db, actor, start=start, end=end)

    perform(act, data_dir, as_json)
