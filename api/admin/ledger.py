"""Admin API: trial balance, journal, deferred revenue, and verification of the ledger."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from admin import ledger as admin_ledger
from admin.actor import Actor
from api.admin.deps import AdminDeps
from billing.ledger.journal import JournalLine, TransferLine
from billing.ledger.journal_files import write
from billing.usage.period import parse_instant

_MEDIA = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

Month = Annotated[
    str | None, Query(max_length=7, examples=["2026-11"], description="YYYY-MM; or from and to.")
]
From = Annotated[str | None, Query(alias="from", max_length=40, description="Date or UTC instant.")]
To = Annotated[str | None, Query(alias="to", max_length=40, description="Excluded.")]


def router(deps: AdminDeps) -> APIRouter:
    """Routes of the ledger."""
    routes = deps.router("ledger")
    _book_routes(routes, deps)
    _journal_route(routes, deps)
    return routes


def _book_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get(
        "/ledger/trial-balance",
        summary="Opening balance, debits, credits and closing balance of every account",
    )
    async def trial_balance(
        actor: Annotated[Actor, auth],
        month: Month = None,
        start: From = None,
        end: To = None,
        tenant_id: UUID | None = None,
    ) -> dict[str, Any]:
        period = admin_ledger.period_of(month, start, end)
        balance = await admin_ledger.trial_balance(
            deps.database, actor, start=period[0], end=period[1], tenant_id=tenant_id
        )
        shown: dict[str, Any] = msgspec.to_builtins(balance)
        return shown

    @routes.get("/ledger/deferred", summary="Deferred revenue: unused credit by lot and expiry")
    async def deferred(
        actor: Annotated[Actor, auth],
        at: Annotated[str | None, Query(max_length=40, description="Default: now.")] = None,
        tenant_id: UUID | None = None,
    ) -> dict[str, Any]:
        instant: datetime | None = None if at is None else parse_instant(at, "at")
        rows = await admin_ledger.deferred_revenue(deps.database, actor, at=instant, tenant_id=tenant_id)
        return {"data": msgspec.to_builtins(rows)}

    @routes.get("/ledger/verify", summary="Check every invariant of the ledger")
    async def verify(actor: Annotated[Actor, auth]) -> dict[str, Any]:
        books: dict[str, Any] = msgspec.to_builtins(await admin_ledger.verify_ledger(deps.database, actor))
        return books


def _journal_route(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get(
        "/ledger/journal",
        summary="The general-ledger journal by day, kind and account, or every transfer",
        response_class=Response,
        responses={200: {"content": {kind: {} for kind in _MEDIA.values()}}},
    )
    async def journal(
        actor: Annotated[Actor, auth],
        month: Month = None,
        start: From = None,
        end: To = None,
        tenant_id: UUID | None = None,
        detail: Annotated[bool, Query(description="Every transfer; at most 100,000.")] = False,
        format: Annotated[Literal["json", "csv", "xlsx"], Query()] = "json",
    ) -> Response:
        period = admin_ledger.period_of(month, start, end)
        facts: dict[str, Any] = {"start": period[0], "end": period[1], "tenant_id": tenant_id}
        rows: list[Any]
        if detail:
            lines = admin_ledger.transfers(deps.database, actor, limit=admin_ledger.MAX_DETAIL, **facts)
            rows = [line async for line in lines]
        else:
            rows = list(await admin_ledger.journal_lines(deps.database, actor, **facts))
        columns = (TransferLine if detail else JournalLine).__struct_fields__
        name = f"journal-{period[0]:%Y%m%d}-{period[1]:%Y%m%d}.{format}"
        return Response(
            write(rows, columns, format),
            media_type=_MEDIA[format],
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )
