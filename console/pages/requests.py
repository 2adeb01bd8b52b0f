"""The newest requests of an organisation; the address holds the filters."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from fastapi import Request
from nicegui import ui
from starlette.datastructures import QueryParams

from admin import keys as admin_keys
from admin import models as admin_models
from admin import requests as admin_requests
from admin import tenants as admin_tenants
from billing.metering.records import Outcome
from billing.usage.request_list import RequestFilter, RequestView
from console.components.base import box, card, link_button, page_head
from console.components.dialogs import primary
from console.components.table import Column, Row, cell, data_table
from console.deps import Console
from console.format import count, milliseconds, moment, money, percent, words
from console.viewer import Viewer, toast_error

PAGE_ROWS = 100
PERIODS = {"1": "Last day", "7": "Last 7 days", "30": "Last 30 days", "90": "Last 90 days", "400": "All kept"}
OUTCOME_TONES = {
    "completed": "ok",
    "length": "ok",
    "budget_stopped": "warn",
    "client_cancelled": "idle",
    "interrupted": "warn",
    "engine_failed": "bad",
    "zero_output": "bad",
}
_COLUMNS = (
    Column("request", "Request", sortable=False),
    Column("ended", "Ended", numeric=True),
    Column("key", "Key"),
    Column("model", "Model"),
    Column("outcome", "Outcome"),
    Column("input", "Input", numeric=True),
    Column("output", "Output", numeric=True),
    Column("ttft", "TTFT", numeric=True),
    Column("cost", "Cost", numeric=True),
)


class RequestFilters(msgspec.Struct, frozen=True):
    """The filters of the list."""

    tenant: str = ""
    key: str = ""
    model: str = ""
    outcome: str = ""
    days: str = "7"
    before: str = ""

    def query_string(self) -> str:
        """The filters as a query string."""
        return urlencode({name: value for name, value in msgspec.structs.asdict(self).items() if value})


def uuid_or_none(text: str) -> UUID | None:
    """`text` as an id; None when it is not one."""
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def read_filters(params: QueryParams, *, is_platform: bool) -> RequestFilters:
    """The filters of an address; invalid values are ignored."""

    def id_of(name: str) -> str:
        return str(uuid_or_none(params.get(name, "")) or "")

    outcome, days = params.get("outcome", ""), params.get("days", "7")
    return RequestFilters(
        tenant=id_of("tenant") if is_platform else "",
        key=id_of("key"),
        model=params.get("model", "")[:200],
        outcome=outcome if outcome in set(Outcome) else "",
        days=days if days in PERIODS else "7",
        before=id_of("before"),
    )


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the requests that match the address's filters."""
    choice = read_filters(request.query_params, is_platform=viewer.is_platform)
    tenant_id = viewer.scope or uuid_or_none(choice.tenant)
    now = console.clock.now()
    found = await admin_requests.list_requests(
        console.database,
        viewer.actor,
        tenant_id=tenant_id,
        chosen=RequestFilter(
            key_id=uuid_or_none(choice.key), model=choice.model or None, outcome=choice.outcome or None
        ),
        since=now - timedelta(days=int(choice.days)),
        before=uuid_or_none(choice.before),
        limit=PAGE_ROWS + 1,
    )
    rows, more = found[:PAGE_ROWS], len(found) > PAGE_ROWS
    with page_head("Requests", "Settled requests, the newest first. Open one to see what it cost and why."):
        pass
    await _filters(console, viewer, choice, tenant_id)
    with card(flush=True):
        data_table(
            _columns(with_tenant=tenant_id is None),
            request_rows(rows, now, with_tenant=tenant_id is None),
            label="Requests",
            nothing="No request was settled in this span. Widen it, or clear a filter.",
            page_size=PAGE_ROWS,
        )
    with box("div", "actions"):
        if choice.before:
            newest = msgspec.structs.replace(choice, before="")
            link_button("Newest", f"/requests?{newest.query_string()}", "first_page")
        if more:
            older = msgspec.structs.replace(choice, before=str(rows[-1].request_id))
            link_button("Older", f"/requests?{older.query_string()}", "chevron_right")


def _columns(*, with_tenant: bool) -> list[Column]:
    columns = list(_COLUMNS)
    if with_tenant:
        columns.insert(2, Column("tenant", "Tenant"))
    return columns


def request_rows(found: Sequence[RequestView], now: datetime, *, with_tenant: bool) -> list[Row]:
    """Table rows of requests; `with_tenant` adds the organisation."""
    rows = []
    for one in found:
        cached = one.cached_input_tokens / one.input_tokens if one.cached_input_tokens else None
        row: Row = {
            "id": str(one.request_id),
            "request": cell(f"…{str(one.request_id)[-8:]}", href=f"/requests/{one.request_id}"),
            "ended": cell(moment(one.ended_at, now)),
            "key": cell(f"…{one.key_last4}" if one.key_last4 else "–"),
            "model": cell(one.model, text=True, sub=one.tier if one.tier != "standard" else ""),
            "outcome": cell(words(one.outcome).capitalize(), tone=OUTCOME_TONES.get(one.outcome, "idle")),
            "input": cell(count(one.input_tokens), sub=f"{percent(cached).text} cached" if cached else ""),
            "output": cell(count(one.output_tokens)),
            "ttft": cell(milliseconds(one.ttft_us / 1000 if one.ttft_us else None)),
            "cost": cell(money(one.cost_usd)),
        }
        if with_tenant:
            row["tenant"] = cell(one.tenant or "–", href=f"/tenants/{one.tenant_id}")
        rows.append(row)
    return rows


async def _filters(console: Console, viewer: Viewer, choice: RequestFilters, tenant_id: UUID | None) -> None:
    """The form above the list. "Show" loads the page with the new filters, or the request whose id was entered."""
    models, keys, tenants = await _options(console, viewer, tenant_id)

    def go() -> None:
        if text := (wanted.value or "").strip():
            request_id = uuid_or_none(text)
            if request_id is None:
                toast_error("A request's id looks like 019a9f3c-7b7e-7c55-9d7d-2f6d5b8e4a10.")
                return
            ui.navigate.to(f"/requests/{request_id}")
            return
        changed = RequestFilters(
            tenant=tenant.value if tenant else "",
            key=key.value if key and (not tenant or tenant.value == choice.tenant) else "",
            model=model.value,
            outcome=outcome.value,
            days=days.value,
        )
        ui.navigate.to(f"/requests?{changed.query_string()}")

    tenant = key = None
    with box("div", "filters"):
        wanted = ui.input("Request id").props("outlined dense clearable").classes("search")
        wanted.on("keydown.enter", go)
        if viewer.is_platform:
            tenant = _select(tenants, choice.tenant, "Tenant")
        if tenant_id is not None:
            key = _select(keys, choice.key, "Key")
        model = _select(models, choice.model, "Model")
        outcomes = {"": "Any outcome", **{str(one): words(one).capitalize() for one in Outcome}}
        outcome = _select(outcomes, choice.outcome, "Outcome")
        days = _select(PERIODS, choice.days, "Since")
        primary("Show", go)


def _select(options: dict[str, str], value: str, label: str) -> ui.select:
    field = ui.select(options, value=value if value in options else next(iter(options)), label=label)
    return field.props("outlined dense")


async def _options(
    console: Console, viewer: Viewer, tenant_id: UUID | None
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Options for models, the organisation's keys, and organisations; the first of each is "any"."""
    database, actor = console.database, viewer.actor
    tenants = {"": "All tenants"}
    keys = {"": "Any key"}
    offered = await admin_models.list_models(database, actor)
    models = {"": "Any model", **{one.name: one.name for one in offered if not one.alias_of}}
    if viewer.is_platform:
        listed = await admin_tenants.list_tenants(database, actor)
        tenants |= {str(one.id): one.name for one in listed}
    if tenant_id is not None and (not viewer.is_platform or str(tenant_id) in tenants):
        found = await admin_keys.list_keys(database, actor, tenant_id=tenant_id)
        keys |= {str(one.id): f"{one.name} …{one.last4}" for one in found}
    return models, keys, tenants
