"""An adapter's own price: from the request over hold and ledger to invoice line, statement, exports and corrections."""

import random
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from admin import prices
from admin.keys import create_key
from admin.projects import list_projects
from admin.tenants import create_tenant
from billing.exports.datasets import DatasetQuery
from billing.exports.focus import focus_charges
from billing.exports.focus_columns import CHARGES
from billing.exports.openai_usage import UsageQuery, costs
from billing.invoicing.corrections import dry_run
from billing.invoicing.lines import CLASSES
from billing.invoicing.rerate import parse_spec
from billing.invoicing.run import make_invoices
from billing.ledger.months import bounds
from billing.pricing.prices import end_price
from billing.statements.body import statement_body
from billing.usage.rollups import roll_up
from core.money import usd_to_pico
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.metering.test_adapter_prices import MODELS, OWN, PICO, RATES
from tests.integration.billing.support import (
    MODEL,
    Customer,
    adapter_price,
    insert_adapter,
    make_customer,
    price,
)
from tests.support import api_process
from tests.support.adapters import write_adapter
from tests.support.tenancy import ADMIN, PEPPER


async def month_of_both(platform: Platform, seed: int) -> tuple[Customer, date, Counter[tuple[str, str]]]:
    """A month of random requests for the model and for its adapter, invoiced: tokens by price name and class."""
    rng = random.Random(seed)
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    own = await adapter_price(platform.database, acme, OWN, **RATES)
    tokens: Counter[tuple[str, str]] = Counter()
    records = []
    for _ in range(40):
        name, prompt, answer = rng.choice((MODEL, OWN)), rng.randrange(1, 90_000), rng.randrange(1, 40_000)
        cached, reasoning = rng.randrange(prompt), rng.randrange(answer)
        record = await platform.record(acme, input=prompt, cached=cached, output=answer, reasoning=reasoning)
        if name == OWN:
            record |= {"price_version": own, "list_price_version": own}
        records.append(record)
        for kind, count in zip(
            CLASSES, (prompt - cached, cached, answer - reasoning, reasoning), strict=True
        ):
            tokens[name, kind] += count
    assert await platform.settle(records) == ["settled"] * 40
    await roll_up(platform.database)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    return acme, month, tokens


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_invoice_statement_and_exports_have_the_exact_amounts_by_name(
    platform: Platform, seed: int
) -> None:
    acme, month, tokens = await month_of_both(platform, seed)
    rates = {MODEL: MODELS, OWN: PICO}
    expected = {key: count * rates[key[0]][key[1]] for key, count in tokens.items() if count}
    lines = await platform.lines(acme, month)
    assert {
        (line.description.split(" (")[0], line._mapping["class"]): int(line.exact) for line in lines
    } == expected
    assert {line.model for line in lines} == {MODEL}
    assert int((await platform.invoice(acme, month)).exact) == sum(expected.values())
    start, end = bounds(month)
    async with platform.database.read() as connection:
        body = await statement_body(connection, acme.tenant_id, month)
        charges = [
            dict(zip([column.name for column in CHARGES], record, strict=True))
            async for block in focus_charges(
                connection, DatasetQuery("focus_charges", start, end, tenant_id=acme.tenant_id)
            ).blocks
            for record in block
        ]
        page = await costs(
            connection, acme.tenant_id, UsageQuery(start, end, group_by=("line_item",), limit=31)
        )
    stated = {line.get("adapter", line["model"]): usd_to_pico(line["cost_usd"]) for line in body["usage"]}
    by_name = {
        name: sum(amount for key, amount in expected.items() if key[0] == name) for name in (MODEL, OWN)
    }
    assert stated == by_name
    skus = {one["SkuId"]: usd_to_pico(str(one["BilledCost"])) for one in charges if one["SkuId"]}
    assert skus == {f"{name}/standard/{kind}": amount for (name, kind), amount in expected.items()}
    items = {one["line_item"] for bucket in page["data"] for one in bucket["results"]}
    assert {f"{MODEL}, output tokens", f"{OWN}, output tokens"} <= items
    await platform.is_sound()


async def test_a_correction_names_the_adapter_or_the_model(platform: Platform) -> None:
    acme, month, tokens = await month_of_both(platform, 4)

    async def told(**spec: Any) -> int:
        async with platform.database.read() as connection:
            return usd_to_pico((await dry_run(connection, month, parse_spec(spec))).delta_usd)

    free = {"input": "0", "output": "0", "tenant_id": str(acme.tenant_id)}
    of_adapter = sum(tokens[OWN, kind] * PICO[kind] for kind in CLASSES)
    of_model = sum(tokens[MODEL, kind] * MODELS[kind] for kind in CLASSES)
    assert await told(rates=[{"model": OWN, **free}]) == -of_adapter
    assert await told(rates=[{"model": MODEL, **free}]) == -of_model
    listed = {name: value for name, value in free.items() if name != "tenant_id"}
    assert await told(rates=[{"model": MODEL, **listed}]) == -of_model
    assert await told(rates=[{"model": OWN, **free}], model=OWN) == -of_adapter
    # By the price book of an instant: each at its own name, and without a price of its own at the model's.
    now = (await platform.clock.now()).isoformat()
    assert await told(as_of=now) == 0
    assert await told(as_of=now, model=MODEL) == 0
    async with platform.database.system() as connection:
        await end_price(
            connection, model=OWN, tier="standard", tenant_id=acme.tenant_id, at=None, ended_by="t"
        )
    later = (await platform.clock.now() + timedelta(seconds=1)).isoformat()
    at_model = sum(tokens[OWN, kind] * MODELS[kind] for kind in CLASSES)
    assert await told(as_of=later, model=OWN) == at_model - of_adapter


async def test_from_http_to_the_invoice_line(
    platform: Platform, pg_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests over HTTP for a model and its adapter: each on lines of its own, at its own price, exactly."""
    database, model = platform.database, api_process.MODEL
    directory = write_adapter(tmp_path / "adapter")

    async def ask_agent(_: str) -> str:
        return str(directory)

    monkeypatch.setattr("sim.engine.adapters.ask_agent", ask_agent)  # tests may not open Unix sockets
    async with api_process.api_process(pg_url, redis_url, tmp_path / "api", max_adapters=4) as api:
        tenant = await create_tenant(database, ADMIN, name="Invoiced", billing_mode="postpaid")
        (project,) = await list_projects(database, ADMIN, tenant_id=tenant.id)
        key = await create_key(
            database, ADMIN, pepper=PEPPER, tenant_id=tenant.id, project_id=project.id, name="first"
        )
        public = f"{model}:support:abcd"
        acme = Customer(tenant.id)
        await insert_adapter(database, acme, public, model)
        await prices.set_price(database, ADMIN, model=public, **RATES)
        await api.deps.models.refresh()
        hello = {
            "messages": [{"role": "user", "content": "How does one price an adapter?"}],
            "max_tokens": 20,
        }
        for name in (model, public, public):
            status, answer, _ = await api.post({"model": name, **hello}, key=key.secret)
            assert status == 200, answer
        rows = await api.usage_rows(3)
    await roll_up(database)
    month = await platform.end_month()
    await make_invoices(database, month)
    # The whole is below the least that an invoice asks for, and is carried over.
    lines = [line for line in await platform.lines(acme, month) if line.kind == "usage"]
    told = {line.description.split(" (")[0] for line in lines}
    assert told == {model, public}
    of_adapter = [line for line in lines if line.description.startswith(f"{public} (")]
    assert {line._mapping["class"]: int(line.unit_price) for line in of_adapter} == {
        name: PICO[name] for name in ("input", "output")
    }
    used = [one for one in rows if one.price_version == of_adapter[0].price_version]
    assert {line._mapping["class"]: int(line.exact) for line in of_adapter} == {
        name: sum(getattr(one, f"{name}_tokens") for one in used) * PICO[name] for name in ("input", "output")
    }
    assert len(used) == 2
    assert sum(int(line.exact) for line in lines) == sum(int(one.cost) for one in rows)
    await platform.is_sound()
