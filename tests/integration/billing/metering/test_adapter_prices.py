"""Holds and settlement of requests for an adapter: its own price, the model's where it has none."""

import asyncpg
import msgspec
from sqlalchemy import text

from admin import prices
from billing.invoicing.lines import CLASSES
from billing.metering.holds import HoldManager
from billing.pricing.prices import end_price
from core.db import Database
from core.tokens import TokenUsage
from tests.integration.billing.metering.settling import all_sound, settle
from tests.integration.billing.support import (
    MODEL,
    adapter_price,
    insert_adapter,
    make_customer,
    price,
    transfers,
    usage_rows,
)
from tests.support.tenancy import ADMIN

OWN = f"{MODEL}:support:abcd"
RATES = {"input": "0.3", "cached_input": "0.07", "output": "3.1", "reasoning": "4.000001"}
PICO = {"input": 300_000, "cached_input": 70_000, "output": 3_100_000, "reasoning": 4_000_001}
"""Of the adapter, in dollars per million and in picodollars per token."""
MODELS = {"input": 1_000_000, "cached_input": 100_000, "output": 10_000_000, "reasoning": 20_000_000}
USAGE = TokenUsage(input=1_000, cached_input=400, output=500, reasoning=200)


def cost(usage: TokenUsage, rates: dict[str, int]) -> int:
    """Tokens times price, by class."""
    tokens = (usage.uncached_input, usage.cached_input, usage.output - usage.reasoning, usage.reasoning)
    return sum(count * rates[name] for count, name in zip(tokens, CLASSES, strict=True))


async def test_a_request_for_an_adapter_is_held_and_charged_at_its_own_price(
    database: Database, manager: HoldManager, hot: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    listed = await price(database)
    acme, other = await make_customer(database, "1"), await make_customer(database, "1")
    own = await adapter_price(database, acme, OWN, **RATES)
    with_own, without, strange = [
        await manager.place(customer.hold(input_tokens=10, output_tokens=100, adapter=name))
        for customer, name in ((acme, OWN), (acme, f"{MODEL}:plain:wxyz"), (other, OWN))
    ]
    assert [one.price.id for one in (with_own, without, strange)] == [own, listed, listed]
    assert with_own.amount == 10 * PICO["input"] + 100 * PICO["reasoning"]
    assert with_own.list_price == with_own.price, "it is the customer's own, not a discount"
    assert without.amount == 10 * MODELS["input"] + 100 * MODELS["reasoning"]
    plain = await manager.place(acme.hold())
    assert plain.price.id == listed
    # It ends while a request runs, which keeps it.
    async with database.system() as connection:
        await end_price(
            connection, model=OWN, tier="standard", tenant_id=acme.tenant_id, at=None, ended_by="t"
        )
    assert (await manager.place(acme.hold(adapter=OWN))).price.id == listed
    assert list((await settle(hot, acme.ended(with_own, USAGE), acme.ended(plain, USAGE))).values()) == [
        "settled", "settled"
    ]  # fmt: skip
    rows = await usage_rows(database, acme)
    charged = {one.amount for one in await transfers(database, acme) if one.kind == "usage"}
    assert charged == {cost(USAGE, PICO), cost(USAGE, MODELS)}
    row = rows[with_own.request_id]
    assert (row.model, row.price_version, row.cost, row.list_cost) == (MODEL, own, *[cost(USAGE, PICO)] * 2)
    await all_sound(database)


async def test_each_tier_has_its_own_price_or_the_models(database: Database, manager: HoldManager) -> None:
    listed = await price(database)
    acme = await make_customer(database, "1")
    await insert_adapter(database, acme, OWN)
    await prices.set_price(database, ADMIN, model=OWN, tier="priority", **RATES)
    batch = await prices.set_price(database, ADMIN, model=MODEL, tier="batch", input="0.5", output="5")
    assert (await manager.place(acme.hold(adapter=OWN))).price.id == listed
    found = await manager.place(msgspec.structs.replace(acme.hold(adapter=OWN), tier="batch"))
    assert found.price.id == batch.id
    first = await manager.place(msgspec.structs.replace(acme.hold(adapter=OWN), tier="priority"))
    assert first.price.output == PICO["output"], "the model has no price in this tier"


async def test_a_record_at_the_price_of_another_adapter_is_parked(
    database: Database, manager: HoldManager, hot: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await price(database)
    await price(database, "lake-70b")
    acme, other = await make_customer(database, "1"), await make_customer(database, "1")
    own = await adapter_price(database, acme, OWN, **RATES)
    for customer, changes in (
        (other, {"price_version": own}),
        (acme, {"price_version": own, "model": "lake-70b"}),
    ):
        granted = await manager.place(customer.hold())
        assert list((await settle(hot, customer.ended(granted, USAGE), **changes)).values()) == ["parked"]
    async with database.system() as connection:
        reasons = list((await connection.execute(text("SELECT reason FROM settle_errors"))).scalars())
    assert all(f"price version {own} is not one of model" in one for one in reasons)
    assert len(reasons) == 2
