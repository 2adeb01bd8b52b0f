"""DigitalOcean's billing API as far as Penstock uses it, for tests: pages, tokens and errors follow the
specification.
"""

from typing import Any

import msgspec
from aiohttp import web


class FakeInvoice(msgspec.Struct):
    """An invoice and its items, with DigitalOcean's field names."""

    invoice_uuid: str
    invoice_id: str
    amount: str
    invoice_period: str
    items: list[dict[str, str]] = []


class FakeBilling:
    """Serves GET /v2/customers/my/invoices and /{invoice_uuid}; `refuse` sets the status of the next response."""

    def __init__(self, token: str, invoices: list[FakeInvoice]) -> None:
        self.token = token
        self.invoices = invoices
        self.refuse = 0
        self.answers: list[tuple[str, dict[str, Any]]] = []
        """Path and body of every response, for validation against the specification."""

    def app(self) -> web.Application:
        """Return the application to serve."""
        app = web.Application()
        app.router.add_get("/v2/customers/my/invoices", self._list)
        app.router.add_get("/v2/customers/my/invoices/{invoice_uuid}", self._items)
        return app

    async def _list(self, request: web.Request) -> web.Response:
        rows = [
            {
                "invoice_uuid": one.invoice_uuid,
                "invoice_id": one.invoice_id,
                "amount": one.amount,
                "invoice_period": one.invoice_period,
            }
            for one in self.invoices
        ]
        return self._page(request, "/v2/customers/my/invoices", "invoices", rows)

    async def _items(self, request: web.Request) -> web.Response:
        wanted = request.match_info["invoice_uuid"]
        found = next((one for one in self.invoices if one.invoice_uuid == wanted), None)
        if found is None:
            return web.json_response({"id": "not_found", "message": "no such invoice"}, status=404)
        return self._page(request, "/v2/customers/my/invoices/{invoice_uuid}", "invoice_items", found.items)

    def _page(self, request: web.Request, path: str, name: str, rows: list[dict[str, str]]) -> web.Response:
        if self.refuse:
            status, self.refuse = self.refuse, 0
            body = {"id": "too_many_requests", "message": "API rate limit exceeded"}
            return web.json_response(body, status=status, headers={"retry-after": "7"})
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            body = {"id": "unauthorized", "message": "Unable to authenticate you"}
            return web.json_response(body, status=401)
        page, size = int(request.query.get("page", "1")), int(request.query.get("per_page", "20"))
        shown = rows[(page - 1) * size : page * size]
        more = page * size < len(rows)
        links = {"pages": {"next": str(request.url.update_query(page=str(page + 1)))}} if more else {}
        answer: dict[str, Any] = {name: shown, "links": links, "meta": {"total": len(rows)}}
        self.answers.append((path, answer))
        return web.json_response(answer)
