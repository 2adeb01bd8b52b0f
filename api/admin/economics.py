"""Admin API: GPU cost, margin, the margin bridge, host prices, provider invoices and reconciliation."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from admin import economics as admin_economics
from admin import reconcile as admin_reconcile
from admin.actor import Actor
from admin.breakeven import breakeven as compute_breakeven
from admin.breakeven_inputs import Choice
from api.admin.deps import AdminDeps, Limit, ReasonBody, RequestBody
from billing.economics.provider_invoices import InvoiceIn, InvoiceLineIn
from billing.ledger.months import parse_month
from billing.usage.period import parse_group_by, parse_instant, parse_period
from workers.service_level import Tier

From = Annotated[str | None, Query(alias="from", max_length=40, description="Date or whole UTC hour.")]
To = Annotated[str | None, Query(alias="to", max_length=40, description="Excluded.")]
Month = Annotated[str, Query(max_length=7, examples=["2026-11"])]
Since = Annotated[
    str | None, Query(max_length=40, description="Compare intervals again from this instant on.")
]
Usd = Annotated[str, Field(pattern=r"^-?[0-9]{1,15}(\.[0-9]{1,12})?$", max_length=30, examples=["1234.56"])]
Text = Annotated[str, Field(min_length=1, max_length=200)]
Amount = Annotated[str | None, Query(max_length=30, description="Dollars; default: the price in force.")]
Tokens = Annotated[int | None, Query(ge=0, le=2**31, description="Default: the mean of the last 30 days.")]


class Rows(BaseModel):
    """Rows of a report. Amounts are exact decimal dollars."""

    data: list[dict[str, Any]]


class HostPriceCreate(RequestBody):
    """The hourly price of a kind of host from a whole UTC hour on."""

    host_kind: Text
    usd_per_hour: Annotated[str, Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,12})?$", examples=["35.76"])]
    source: Annotated[str, Field(min_length=1, max_length=500, examples=["contract 17"])]
    effective_from: datetime | None = Field(default=None, description="Default: the running hour.")


class ProviderLine(RequestBody):
    """One line of a provider's invoice."""

    amount_usd: Usd
    host_kind: Annotated[str, Field(max_length=200)] = ""
    description: Annotated[str, Field(max_length=200)] = ""
    hours: Annotated[str, Field(max_length=20)] | None = None


class ProviderInvoice(RequestBody):
    """A provider's invoice. Its lines must add up to its total."""

    provider: Text
    number: Text
    month: Annotated[str, Field(max_length=7, examples=["2026-11"])]
    total_usd: Usd
    currency: Annotated[str, Field(max_length=10)] = "USD"
    lines: Annotated[list[ProviderLine], Field(min_length=1, max_length=1000)]


def router(deps: AdminDeps) -> APIRouter:
    """Routes of GPU economics and reconciliation."""
    routes = deps.router("economics")
    _margin_routes(routes, deps)
    _breakeven_route(routes, deps)
    _price_routes(routes, deps)
    _invoice_routes(routes, deps)
    _reconcile_routes(routes, deps)
    return routes


def _to_rows(views: object) -> Rows:
    return Rows(data=msgspec.to_builtins(views, str_keys=True))


def _to_object(view: object) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(view, str_keys=True)
    return shown


def _margin_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/economics/report", summary="GPU cost and margin by organisation, model, hour or day")
    async def report(
        actor: Annotated[Actor, auth],
        start: From = None,
        end: To = None,
        by: Annotated[str, Query(max_length=100)] = "tenant,model",
        fully_loaded: Annotated[
            bool, Query(description="Include the cost of idle, loading and sleeping hosts.")
        ] = False,
    ) -> Rows:
        period = parse_period(start, end)
        return _to_rows(
            await admin_economics.economics_report(
                deps.database,
                actor,
                start=period[0],
                end=period[1],
                by=parse_group_by(by),
                fully_loaded=fully_loaded,
            )
        )

    @routes.get("/economics/states", summary="Host-hours and cost by kind of host and state")
    async def states(actor: Annotated[Actor, auth], start: From = None, end: To = None) -> Rows:
        period = parse_period(start, end)
        return _to_rows(
            await admin_economics.host_states(deps.database, actor, start=period[0], end=period[1])
        )

    @routes.get("/economics/bridge", summary="The margin bridge between two periods")
    async def bridge(
        actor: Annotated[Actor, auth],
        before_from: Annotated[str, Query(max_length=40)],
        before_to: Annotated[str, Query(max_length=40)],
        after_from: Annotated[str, Query(max_length=40)],
        after_to: Annotated[str, Query(max_length=40)],
    ) -> dict[str, Any]:
        view = await admin_economics.margin_bridge(
            deps.database,
            actor,
            before=(parse_instant(before_from, "before_from"), parse_instant(before_to, "before_to")),
            after=(parse_instant(after_from, "after_from"), parse_instant(after_to, "after_to")),
        )
        return _to_object(view)


def _breakeven_route(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/economics/breakeven", summary="When a host is paid for, and which price and layout pay")
    async def read_breakeven(
        actor: Annotated[Actor, auth],
        model: Annotated[str, Query(min_length=1, max_length=200)],
        tier: Tier = "standard",
        profile: Annotated[str | None, Query(max_length=200)] = None,
        host_kind: Annotated[str | None, Query(max_length=200)] = None,
        host_price: Amount = None,
        input_price: Amount = None,
        cached_price: Amount = None,
        output_price: Amount = None,
        input_tokens: Tokens = None,
        output_tokens: Tokens = None,
        cached_share: Annotated[str | None, Query(max_length=20, description="0 to 1.")] = None,
        margin: Annotated[str, Query(max_length=20, description="Share of revenue that is left.")] = "0",
        utilisation: Annotated[str, Query(max_length=20, description="Share of full load.")] = "1",
        hosts: Annotated[int, Query(ge=1, le=1024)] = 1,
    ) -> dict[str, Any]:
        choice = Choice(
            model=model,
            tier=tier,
            profile=profile,
            host_kind=host_kind,
            host_price=host_price,
            input_price=input_price,
            cached_price=cached_price,
            output_price=output_price,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_share=cached_share,
            margin=margin,
            utilisation=utilisation,
            hosts=hosts,
        )
        return _to_object(await compute_breakeven(deps.database, actor, choice=choice))


def _price_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/economics/host-prices", summary="List dated prices of hosts")
    async def list_prices(
        actor: Annotated[Actor, auth], host_kind: Annotated[str | None, Query(max_length=200)] = None
    ) -> Rows:
        return _to_rows(await admin_economics.list_host_prices(deps.database, actor, host_kind=host_kind))

    @routes.post("/economics/host-prices", status_code=201, summary="Enter a dated price of a kind of host")
    async def set_price(actor: Annotated[Actor, auth], body: HostPriceCreate) -> dict[str, Any]:
        return _to_object(await admin_economics.set_host_price(deps.database, actor, **body.model_dump()))


def _invoice_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/economics/provider-invoices", summary="List provider invoices")
    async def list_invoices(
        actor: Annotated[Actor, auth], month: Annotated[str | None, Query(max_length=7)] = None
    ) -> Rows:
        wanted = None if month is None else parse_month(month)
        return _to_rows(await admin_economics.list_provider_invoices(deps.database, actor, month=wanted))

    @routes.post("/economics/provider-invoices", status_code=201, summary="Enter a provider's invoice")
    async def enter(actor: Annotated[Actor, auth], body: ProviderInvoice) -> dict[str, Any]:
        facts = body.model_dump()
        lines = [InvoiceLineIn(**line) for line in facts.pop("lines")]
        invoice = InvoiceIn(**facts, lines=lines)
        return _to_object(await admin_economics.enter_provider_invoice(deps.database, actor, invoice=invoice))

    @routes.post("/economics/provider-invoices/{invoice_id}/void", summary="Void a mistaken invoice")
    async def void(actor: Annotated[Actor, auth], invoice_id: UUID, body: ReasonBody) -> dict[str, Any]:
        return _to_object(
            await admin_economics.void_provider_invoice(
                deps.database, actor, invoice_id=invoice_id, reason=body.reason
            )
        )

    @routes.get("/economics/variance", summary="Compare a month's provider invoices with metered cost")
    async def variance(actor: Annotated[Actor, auth], month: Month) -> Rows:
        return _to_rows(
            await admin_economics.provider_variance(deps.database, actor, month=parse_month(month))
        )


def _reconcile_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/reconcile/engines", summary="Compare engines' counters with usage")
    async def engines(actor: Annotated[Actor, auth], limit: Limit = 100) -> Rows:
        return _to_rows(await admin_reconcile.list_engines(deps.database, actor, limit=limit))

    @routes.post("/reconcile/run", summary="Run the reconciliation now")
    async def run(actor: Annotated[Actor, auth], since: Since = None) -> dict[str, Any]:
        instant = None if since is None else parse_instant(since, "since")
        return _to_object(await admin_reconcile.run_now(deps.database, actor, since=instant))

    @routes.get("/reconcile/engines/{boot_id}", summary="List the intervals of one engine")
    async def list_intervals(actor: Annotated[Actor, auth], boot_id: str, limit: Limit = 100) -> Rows:
        return _to_rows(
            await admin_reconcile.list_intervals(deps.database, actor, boot_id=boot_id, limit=limit)
        )

    @routes.get(
        "/reconcile/engines/{boot_id}/trace", summary="List the requests of an interval that does not balance"
    )
    async def trace(
        actor: Annotated[Actor, auth], boot_id: str, start: From = None, limit: Limit = 200
    ) -> Rows:
        from_at = None if start is None else parse_instant(start, "from")
        return _to_rows(
            await admin_reconcile.trace(deps.database, actor, boot_id=boot_id, from_at=from_at, limit=limit)
        )

    @routes.post("/reconcile/engines/{boot_id}/accept", summary="Accept differences that cannot be resolved")
    async def accept(actor: Annotated[Actor, auth], boot_id: str, body: ReasonBody) -> Rows:
        return _to_rows(
            await admin_reconcile.accept(deps.database, actor, boot_id=boot_id, reason=body.reason)
        )

    @routes.get(
        "/reconcile/cross-check", summary="Cross-check gateway, ledger, invoices and Stripe for a month"
    )
    async def cross_check(actor: Annotated[Actor, auth], month: Month) -> Rows:
        return _to_rows(
            await admin_reconcile.cross_check_month(deps.database, actor, month=parse_month(month))
        )
