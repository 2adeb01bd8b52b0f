"""A month's invoice fetched from a stand-in of DigitalOcean's billing API that answers as its description says."""

import json
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from aiohttp.test_utils import TestServer

from billing.economics.digitalocean import fetch_invoice
from core.errors import InvalidRequest, NotFound, Unavailable
from sim.digitalocean.billing import FakeBilling, FakeInvoice
from workers.catalog import load_catalog

TOKEN = "dop_v1_test"
KINDS = tuple(load_catalog().hosts)
SPEC = json.loads((Path(__file__).parents[3] / "data" / "digitalocean" / "invoices.json").read_text())


def item(description: str, amount: str, **fields: str) -> dict[str, str]:
    return {"product": "GPU Droplets", "description": description, "amount": amount, **fields}


def items() -> list[dict[str, str]]:
    hours = {"duration": "10", "duration_unit": "Hours"}
    many = [item(f"worker-{n} (gpu-h100x1-80gb)", "44.10", **hours) for n in range(250)]
    return [*many, item("big (gpu-h100x8-640gb)", "352.80", **hours), item("Volume", "1.20")]


@pytest.fixture
async def billing() -> AsyncIterator[tuple[FakeBilling, str]]:
    older = [FakeInvoice(f"u{n}", f"{n}", "1.00", f"{2000 + n // 12}-{n % 12 + 1:02d}") for n in range(300)]
    fake = FakeBilling(TOKEN, [*older, FakeInvoice("u-nov", "777", "11400.00", "2026-11", items())])
    server = TestServer(fake.app())
    await server.start_server()
    yield fake, str(server.make_url("")).rstrip("/")
    await server.close()


async def test_all_pages_make_one_invoice_that_adds_up(billing: tuple[FakeBilling, str]) -> None:
    fake, api = billing
    invoice = await fetch_invoice(TOKEN, date(2026, 11, 1), KINDS, api=api)
    assert (invoice.provider, invoice.number, invoice.total_usd) == ("DigitalOcean", "777", "11400.00")
    assert len(invoice.lines) == 253
    by_kind: dict[str, int] = {}
    for line in invoice.lines:
        by_kind[line.host_kind] = by_kind.get(line.host_kind, 0) + 1
    assert by_kind == {"gpu-h100x1-80gb": 250, "gpu-h100x8-640gb": 1, "": 2}
    assert invoice.lines[-1].amount_usd == "21.00"
    assert invoice.lines[0].hours == "10"
    assert len(fake.answers) == 4


async def test_the_stand_in_answers_as_described(billing: tuple[FakeBilling, str]) -> None:
    fake, api = billing
    await fetch_invoice(TOKEN, date(2026, 11, 1), KINDS, api=api)
    for path, answer in fake.answers:
        schema: dict[str, Any] = {**SPEC["answers"][path], "components": SPEC["components"]}
        jsonschema.validate(answer, schema)


async def test_refusals_are_told(billing: tuple[FakeBilling, str]) -> None:
    fake, api = billing
    with pytest.raises(NotFound, match="2026-12"):
        await fetch_invoice(TOKEN, date(2026, 12, 1), KINDS, api=api)
    with pytest.raises(InvalidRequest, match="token"):
        await fetch_invoice("wrong", date(2026, 11, 1), KINDS, api=api)
    fake.refuse = 429
    with pytest.raises(Unavailable, match="7 s"):
        await fetch_invoice(TOKEN, date(2026, 11, 1), KINDS, api=api)
    with pytest.raises(Unavailable, match="reached"):
        await fetch_invoice(TOKEN, date(2026, 11, 1), KINDS, api="http://127.0.0.1:1")
