"""A month's invoice from DigitalOcean's billing API (GET /v2/customers/my/invoices and /{invoice_uuid}).

An item's kind of host is the size slug in its description or product. The difference between the invoice's amount and
the sum of its items (taxes, credits) becomes a line of its own, so that the lines add up to the amount.
"""

from collections.abc import Collection
from datetime import date
from typing import Any, TypeVar

import aiohttp
import msgspec

from billing.economics.provider_invoices import InvoiceIn, InvoiceLineIn
from billing.ledger.months import month_name
from core.errors import InvalidRequest, NotFound, Unavailable
from core.money import pico_to_usd, usd_to_pico

API = "https://api.digitalocean.com"
PER_PAGE = 200
MAX_PAGES = 50
MAX_TEXT = 200
TIMEOUT_S = 30.0
PROVIDER = "DigitalOcean"

T = TypeVar("T")


class _Preview(msgspec.Struct):
    invoice_uuid: str
    invoice_id: str
    amount: str
    invoice_period: str


class _Item(msgspec.Struct):
    product: str = ""
    description: str = ""
    amount: str = "0"
    duration: str = ""
    duration_unit: str = ""


class _Pages(msgspec.Struct, frozen=True):
    next: str = ""


class _Links(msgspec.Struct, frozen=True):
    pages: _Pages = _Pages()


class _InvoicePage(msgspec.Struct):
    invoices: list[_Preview]
    links: _Links = _Links()


class _ItemPage(msgspec.Struct):
    invoice_items: list[_Item]
    links: _Links = _Links()


async def fetch_invoice(token: str, month: date, kinds: Collection[str], *, api: str = API) -> InvoiceIn:
    """The invoice of `month` (its first day), with lines ready for `enter_invoice`.

    `token` is an API token that may read billing, `kinds` the host kinds to look for in the items, `api` the base URL.
    Raises NotFound when the month has no invoice (the present month never has), InvalidRequest when the token is
    refused, Unavailable when the API cannot be reached, answers an error or lists more than MAX_PAGES pages.
    """
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(
        timeout=timeout, headers={"Authorization": f"Bearer {token}"}
    ) as session:
        wanted = month_name(month)
        for number in range(1, MAX_PAGES + 1):
            page = await _get(session, f"{api}/v2/customers/my/invoices", number, _InvoicePage)
            for found in page.invoices:
                if found.invoice_period == wanted:
                    return _invoice(found, await _items(session, api, found.invoice_uuid), kinds)
            if not page.links.pages.next:
                break
    raise NotFound(f"DigitalOcean has no invoice for {wanted} (yet)")


async def _items(session: aiohttp.ClientSession, api: str, invoice_uuid: str) -> list[_Item]:
    items: list[_Item] = []
    for number in range(1, MAX_PAGES + 1):
        page = await _get(session, f"{api}/v2/customers/my/invoices/{invoice_uuid}", number, _ItemPage)
        items += page.invoice_items
        if not page.links.pages.next:
            return items
    raise Unavailable(f"the invoice has more than {MAX_PAGES * PER_PAGE} items; enter it from a file")


async def _get(session: aiohttp.ClientSession, url: str, page: int, shape: type[T]) -> T:
    query = {"page": str(page), "per_page": str(PER_PAGE)}
    try:
        async with session.get(url, params=query, allow_redirects=False) as answer:
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(f"DigitalOcean cannot be reached: {error or type(error).__name__}") from error
    if answer.status in (401, 403):
        raise InvalidRequest("DigitalOcean refuses the token; it needs the right to read billing")
    if answer.status != 200:
        wait = answer.headers.get("retry-after", "")
        hint = f"; try again in {wait} s" if wait.isdecimal() else ""
        raise Unavailable(f"DigitalOcean answered {answer.status}{hint}")
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"DigitalOcean's answer cannot be read: {error}") from error


def _invoice(found: _Preview, items: list[_Item], kinds: Collection[str]) -> InvoiceIn:
    lines = [_line(item, kinds) for item in items]
    try:
        rest = usd_to_pico(found.amount) - sum(usd_to_pico(line.amount_usd) for line in lines)
    except ValueError as error:
        raise Unavailable(f"DigitalOcean's answer cannot be read: {error}") from error
    if rest or not lines:
        lines.append(
            InvoiceLineIn(pico_to_usd(rest), description="taxes, credits and what the items do not show")
        )
    return InvoiceIn(PROVIDER, found.invoice_id, found.invoice_period, found.amount, lines)


def _line(item: _Item, kinds: Collection[str]) -> InvoiceLineIn:
    label = f"{item.product} {item.description}".strip()
    named: list[Any] = sorted((kind for kind in kinds if kind in label), key=len)
    return InvoiceLineIn(
        amount_usd=item.amount,
        host_kind=named[-1] if named else "",
        description=label[:MAX_TEXT],
        hours=item.duration if item.duration_unit == "Hours" else None,
    )
