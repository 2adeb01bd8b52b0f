"""Contracts for hosts: the table with the hosts that each covers; enter one, end one."""

from datetime import datetime
from uuid import UUID

from nicegui import ui

from admin import host_contracts
from admin.host_contracts import HostContractView
from billing.usage.period import parse_instant
from console.components.base import card
from console.components.dialogs import form_dialog, primary, text_input
from console.components.table import Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import count
from console.viewer import Viewer, toast_ok
from core.errors import InvalidRequest

STATE_TONES = {"scheduled": "info", "running": "ok", "ended": "idle"}
_COLUMNS = (
    Column("kind", "Kind"),
    Column("state", "State"),
    Column("hosts", "Hosts", numeric=True),
    Column("price", "Dollars per hour", numeric=True),
    Column("term", "Term"),
    Column("covers", "Covers now", sortable=False),
    Column("acts", ""),
)


class HostContractsPanel:
    """The table of contracts with its actions; `refresh` reads and shows them."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self._console, self._viewer = console, viewer
        sub = (
            "Paid for whether they run or not: their hosts are used first and kept, and count for no budget."
        )
        with card("Contracts for hosts", sub, flush=True) as actions:
            if viewer.is_admin:
                with actions:
                    primary("Add contract", viewer.act(self._add), icon="add")
            self._table = data_table(
                _COLUMNS,
                [],
                label="Contracts for hosts",
                nothing="No contract was entered yet.",
                on_action=viewer.act(self._end),
            )

    async def refresh(self) -> None:
        """Read and show the present state."""
        found = await host_contracts.list_contracts(self._console.database, self._viewer.actor)
        set_rows(self._table, [_row(one, self._viewer.is_admin) for one in found])

    async def _add(self) -> None:
        """Open the form of a new contract."""

        async def save() -> bool:
            view = await host_contracts.add_contract(
                self._console.database,
                self._viewer.actor,
                kind=kind.value.strip(),
                region=region.value.strip(),
                count=_whole(hosts.value),
                usd_per_hour=price.value.strip(),
                starts_at=_hour(start.value, "start"),
                ends_at=_hour(until.value, "end"),
                source=source.value.strip(),
                reason=reason.value.strip(),
            )
            toast_ok(f"The contract for {view.count} {view.kind} is entered.")
            await self.refresh()
            return True

        with form_dialog("Add a contract for hosts", "Add contract", self._viewer, save):
            with ui.element("div").classes("fields"):
                kind = text_input("Kind of host").props("autofocus maxlength=100")
                region = text_input("Region", hint="Empty = anywhere.").props("maxlength=100")
                hosts = text_input("Number of hosts", "1")
                price = text_input("Dollars per hour of one host")
                start = text_input("From", hint="A date or whole UTC hour; empty = now.")
                until = text_input("Until", hint="Empty = until it is ended.")
            source = text_input("Where it stands", hint="Such as its number.").props("maxlength=500")
            reason = text_input("Reason", hint="Kept in the audit log.").props("maxlength=500")

    async def _end(self, _act: str, contract: str) -> None:
        """Open the form of a contract's end."""

        async def save() -> bool:
            view = await host_contracts.end_contract(
                self._console.database,
                self._viewer.actor,
                contract_id=UUID(contract),
                ends_at=_hour(until.value, "end"),
                reason=reason.value.strip(),
            )
            toast_ok(f"The contract ends at {_instant(view.ends_at)}.")
            await self.refresh()
            return True

        with form_dialog("End the contract", "End contract", self._viewer, save):
            until = text_input("Until", hint="A date or whole UTC hour; empty = the end of the running hour.")
            reason = text_input("Reason", hint="Kept in the audit log.").props("maxlength=500")


def _row(one: HostContractView, may_end: bool) -> Row:
    acts = [("end", "End", "bad")] if may_end and one.state != "ended" else []
    return {
        "id": str(one.contract_id),
        "kind": cell(one.kind, sub=", ".join(filter(None, (one.region, one.source))), text=True),
        "state": cell(one.state.capitalize(), tone=STATE_TONES[one.state]),
        "hosts": cell(count(one.count)),
        "price": cell(one.usd_per_hour),
        "term": cell(f"{_instant(one.starts_at)} – {_instant(one.ends_at)}"),
        "covers": cell(", ".join(one.hosts) or "–", wrap=True),
        "acts": actions_cell(acts, f"contract for {one.kind}"),
    }


def _instant(at: datetime | None) -> str:
    return "open" if at is None else f"{at:%Y-%m-%d %H:%M} UTC"


def _hour(value: str, param: str) -> datetime | None:
    return parse_instant(value.strip(), param) if value.strip() else None


def _whole(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidRequest(f"the number of hosts must be a whole number, not {value[:40]!r}") from None
