"""`penstock pools contract`: contracts for hosts, which are paid for whether they run or not."""

from typing import Annotated
from uuid import UUID

import typer

from admin import host_contracts
from admin.actor import Actor
from billing.usage.period import parse_instant
from cli.context import AsJson, DataDir, perform
from core.db import Database

app = typer.Typer(
    no_args_is_help=True,
    help="Contracts for hosts: paid for whether they run or not, used first and kept.",
    epilog="Example: penstock pools contract list",
)

Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the audit log.")]


@app.command("list", epilog="Example: penstock pools contract list --json")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show contracts for hosts with the hosts that they cover."""
    perform(host_contracts.list_contracts, data_dir, as_json)


@app.command(
    epilog="Example: penstock pools contract add gpu-b300x8-2304gb-contracted 2 48.00 --from 2026-12-01 "
    '--until 2027-12-01 --source "contract 17" --reason "signed"'
)
def add(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of host.")],
    count: Annotated[int, typer.Argument(metavar="COUNT", help="Hosts.")],
    usd_per_hour: Annotated[str, typer.Argument(metavar="USD", help="Dollars per hour of one host.")],
    source: Annotated[str, typer.Option(help="Where it stands.")],
    reason: Reason,
    starts_at: Annotated[
        str | None, typer.Option("--from", help="Date or whole UTC hour; default: the running hour.")
    ] = None,
    ends_at: Annotated[
        str | None, typer.Option("--until", help="Date or whole UTC hour; default: until it is ended.")
    ] = None,
    region: Annotated[str, typer.Option(help="Where the hosts have to be; default: anywhere.")] = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Enter a contract: its hosts come first, are kept, and count for no budget while it runs."""

    async def act(database: Database, who: Actor) -> host_contracts.HostContractView:
        return await host_contracts.add_contract(
            database,
            who,
            kind=kind,
            count=count,
            usd_per_hour=usd_per_hour,
            starts_at=None if starts_at is None else parse_instant(starts_at, "--from"),
            ends_at=None if ends_at is None else parse_instant(ends_at, "--until"),
            region=region,
            source=source,
            reason=reason,
        )

    perform(act, data_dir, as_json)


@app.command(
    epilog="Example: penstock pools contract end 0199c0de-0000-7000-8000-000000000000 --until 2027-01-01 "
    '--reason "not renewed"'
)
def end(
    contract: Annotated[UUID, typer.Argument(metavar="CONTRACT", help="Its id, as `list` shows it.")],
    reason: Reason,
    ends_at: Annotated[
        str | None,
        typer.Option("--until", help="Date or whole UTC hour; default: the end of the running hour."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set when a contract ends; its hosts are ordinary ones from then on. At its start, it never was."""

    async def act(database: Database, who: Actor) -> host_contracts.HostContractView:
        return await host_contracts.end_contract(
            database,
            who,
            contract_id=contract,
            ends_at=None if ends_at is None else parse_instant(ends_at, "--until"),
            reason=reason,
        )

    perform(act, data_dir, as_json)
