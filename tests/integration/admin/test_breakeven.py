"""When a host is paid for, and the warning before a price below cost: function, REST and command."""

import asyncio
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from admin import contracts, economics, models, prices, scaling
from admin.approval_limit import Acting
from admin.breakeven import BreakevenView, LayoutView, breakeven
from admin.breakeven_inputs import Choice
from admin.price_losses import catalog_losses
from admin.targets import set_targets
from admin.transactions import write
from cli.bootstrap import offer_models
from cli.main import app
from core.db import Database
from core.errors import Conflict, InvalidRequest, PermissionDenied
from core.ids import uuid7
from tests.integration.admin.rest import Caller
from tests.support.tenancy import ADMIN, PEPPER, make_organisation, member
from workers.catalog import load_catalog

DEEPSEEK = "deepseek-v3.2"


async def seen(database: Database, **facts: Any) -> BreakevenView:
    """The calculation for 8k/1k, nothing cached, unless `facts` say otherwise."""
    mix = {"input_tokens": 8_000, "output_tokens": 1_000, "cached_share": "0"}
    return await breakeven(database, ADMIN, choice=Choice(**({"model": DEEPSEEK} | mix | facts)))


def row_of(view: BreakevenView, profile: str) -> LayoutView:
    return next(row for row in view.layouts if row.profile == profile)


async def use(database: Database, model: str, requests: int, tokens: tuple[int, int, int]) -> None:
    """Usage of one hour, now."""
    prompt, cached, answer = (requests * each for each in tokens)
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO usage_hours (hour, tenant_id, project_id, key_id, model, tier, region, price_version, "
                "list_price_version, simulated, requests, outcomes, input_tokens, cached_input_tokens, output_tokens, "
                "reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us) "
                "VALUES (date_trunc('hour', now(), 'UTC'), :id, :id, :id, :model, 'standard', 'local', 1, 1, false, "
                ":requests, '{}', :prompt, :cached, :answer, 0, 0, 0, 0, 0, 0)"
            ),
            {
                "id": uuid7(),
                "model": model,
                "requests": requests,
                "prompt": prompt,
                "cached": cached,
                "answer": answer,
            },
        )


async def test_tp8_of_deepseek_loses_at_its_list_price_and_dp8_earns(database: Database) -> None:
    """Full batches earn the published $47 an hour on a host of $64; within the targets of 25 ms a token it is less."""
    view = await seen(database, input_price="0.50", output_price="1.60")
    tp8, dp8 = row_of(view, "tp8"), row_of(view, "dp8")
    assert Decimal(tp8.saturated_usd_per_hour) == pytest.approx(Decimal(47), rel=Decimal("0.03"))
    assert tp8.host_usd_per_hour == dp8.host_usd_per_hour == "64.00"
    assert 15 < Decimal(tp8.revenue_usd_per_hour) < 25
    assert Decimal(tp8.breakeven_utilisation or 0) > 2
    assert Decimal(dp8.breakeven_utilisation or 0) < 1
    assert (tp8.layout, dp8.layout, row_of(view, "tp4").layout) == ("TP8", "DP8 EP", "2 x TP4")
    assert view.best == "dp8"
    assert row_of(view, "tp4-gb200").host_usd_per_hour is None
    assert row_of(view, "tp4-gb200").breakeven_utilisation is None


async def test_the_proposed_price_pays_when_it_is_put_in(database: Database) -> None:
    asked = {"profile": "tp8", "margin": "0.2", "utilisation": "0.6"}
    price = row_of(await seen(database, **asked), "tp8").price
    assert price is not None
    again = await seen(
        database,
        **asked,
        input_price=price.input,
        cached_price=price.cached_input,
        output_price=price.output,
    )
    paid = Decimal(row_of(again, "tp8").breakeven_utilisation or 9)
    assert Decimal("0.59") < paid <= Decimal("0.6")


async def test_prices_mix_and_targets_are_those_in_force(database: Database) -> None:
    await models.add_model(database, ADMIN, name=DEEPSEEK)
    first = await breakeven(database, ADMIN, choice=Choice(model=DEEPSEEK))
    assert first.price_source == "list price of the catalog"
    assert (first.mix.input_tokens, first.mix.output_tokens) == (8_000, 1_000)
    assert "stand-in" in first.mix.source
    kind = row_of(first, "tp8").host_kind
    await economics.set_host_price(database, ADMIN, host_kind=kind, usd_per_hour="20", source="contract")
    await prices.set_price(database, ADMIN, model=DEEPSEEK, input="9", output="9", below_cost=True)
    await set_targets(database, ADMIN, model=DEEPSEEK, tier="standard", tpot_s=1.0)
    await use(database, DEEPSEEK, 99, (1, 1, 1))
    second = await breakeven(database, ADMIN, choice=Choice(model=DEEPSEEK))
    assert second.mix == first.mix, "99 requests are too few"
    assert second.price_source == "list price in force"
    assert (second.price and second.price.output) == "9.00"
    tp8 = row_of(second, "tp8")
    assert tp8.host_usd_per_hour == "20.00"
    assert Decimal(tp8.requests_per_hour) > Decimal(row_of(first, "tp8").requests_per_hour)
    await use(database, DEEPSEEK, 901, (2_000, 1_000, 100))
    third = await breakeven(database, ADMIN, choice=Choice(model=DEEPSEEK, input_tokens=4_000))
    assert (third.mix.input_tokens, third.mix.cached_input_tokens, third.mix.output_tokens) == (
        4_000,
        2_000,
        90,
    )
    assert third.mix.source.startswith("as given; the rest: mean of 1,000 requests")


async def test_a_kind_of_host_with_the_same_gpus_takes_its_place(database: Database) -> None:
    view = await seen(database, host_kind="gpu-b300x8-2304gb-spot", host_price="30")
    assert {row.profile for row in view.layouts} == {"tp8", "dp8", "tp4"}
    assert {row.host_usd_per_hour for row in view.layouts} == {"30.00"}
    with pytest.raises(
        InvalidRequest, match=r"no profile of deepseek-v3.2 has figures of the GPUs of gpu-h100x8"
    ):
        await seen(database, host_kind="gpu-h100x8-640gb")
    with pytest.raises(InvalidRequest, match="no kind of host 'gpu-x'"):
        await seen(database, host_kind="gpu-x")


@pytest.mark.parametrize(
    ("facts", "param"),
    [
        ({"model": "nothing"}, "model"),
        ({"profile": "tp3"}, "profile"),
        ({"margin": "1"}, "margin"),
        ({"margin": "-0.1"}, "margin"),
        ({"margin": "1e-999999999"}, "margin"),
        ({"margin": "nan"}, "margin"),
        ({"utilisation": "0"}, "utilisation"),
        ({"utilisation": "1.2"}, "utilisation"),
        ({"cached_share": "half"}, "cached_share"),
        ({"input_tokens": 0}, "input_tokens"),
        ({"output_tokens": 200_000}, "input_tokens"),
        ({"host_price": "-1"}, "host_price"),
        ({"input_price": "0.0000001"}, "input_price"),
        ({"cached_price": "x"}, "cached_price"),
        ({"hosts": 0}, "hosts"),
        ({"tier": "gold"}, "tier"),
    ],
)
async def test_what_is_out_of_range_is_named(database: Database, facts: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await seen(database, **facts)
    assert refused.value.param == param


async def test_customers_do_not_see_what_a_host_costs(database: Database) -> None:
    with pytest.raises(PermissionDenied):
        await breakeven(database, member(uuid7()), choice=Choice(model=DEEPSEEK))


async def test_a_price_below_cost_waits_for_a_confirmation(database: Database) -> None:
    low = {"model": DEEPSEEK, "input": "0.50", "cached_input": "0.10", "output": "1.60"}
    with pytest.raises(Conflict, match=r"below cost: at full load .* costs \$64\.00") as warned:
        await prices.set_price(database, ADMIN, **low)
    assert warned.value.code == prices.PRICE_BELOW_COST
    assert "these profiles pay: dp8" in warned.value.message
    assert await prices.list_prices(database, ADMIN, model=DEEPSEEK) == []
    assert (await prices.set_price(database, ADMIN, **low, below_cost=True)).input == "0.50"


async def test_the_profile_of_new_hosts_is_the_one_that_has_to_pay(database: Database) -> None:
    await models.add_model(database, ADMIN, name=DEEPSEEK)
    await scaling.set_scaling(database, ADMIN, model=DEEPSEEK, profile="dp8")
    low = {"model": DEEPSEEK, "input": "0.50", "cached_input": "0.10", "output": "1.60"}
    assert (await prices.set_price(database, ADMIN, **low)).input == "0.50"


async def test_a_discount_below_cost_waits_for_a_confirmation(database: Database) -> None:
    tenant_id = (await make_organisation(database, "Acme")).tenant_id
    await prices.set_price(database, ADMIN, model=DEEPSEEK, input="3", output="9")
    await prices.set_price(database, ADMIN, model="river-7b", input="1", output="1")
    terms = {"tenant_id": tenant_id, "reason": "a deal", "effective_to": datetime(2030, 1, 1, tzinfo=UTC)}
    with pytest.raises(
        Conflict, match=f"below cost: with 90 % off, .* by the price of {DEEPSEEK};"
    ) as warned:
        await contracts.add_contract(database, ADMIN, **terms, discount_bps=9_000)
    assert warned.value.code == prices.PRICE_BELOW_COST
    assert await contracts.list_contracts(database, ADMIN, tenant_id=tenant_id) == []
    made = await contracts.add_contract(database, ADMIN, **terms, discount_bps=9_000, below_cost=True)
    assert made.discount_bps == 9_000
    other = (await make_organisation(database, "Other")).tenant_id
    await contracts.add_contract(database, ADMIN, tenant_id=other, reason="a deal", discount_bps=100)
    # A price that pays, but not with the discount that holds.
    with pytest.raises(Conflict, match="below cost with the 90 % off of a contract") as later:
        await prices.set_price(database, ADMIN, model=DEEPSEEK, input="2.9", output="9")
    assert later.value.code == prices.PRICE_BELOW_COST


async def test_a_discount_concerns_neither_own_prices_nor_those_of_other_times(database: Database) -> None:
    tenant_id = (await make_organisation(database, "Acme")).tenant_id
    await prices.set_price(database, ADMIN, model=DEEPSEEK, input="8.125", cached_input="0.075", output="24")
    terms = {"tenant_id": tenant_id, "reason": "a deal", "discount_bps": 9_000}
    with pytest.raises(Conflict, match="below cost"):
        await contracts.add_contract(database, ADMIN, **terms)
    await contracts.add_contract(database, ADMIN, **terms | {"discount_bps": 333})  # no whole picodollars
    await contracts.end_contract(
        database, ADMIN, contract_id=(await contracts.list_contracts(database, ADMIN, tenant_id=tenant_id))[0].id,
        reason="over",
    )  # fmt: skip
    await prices.set_price(database, ADMIN, model=DEEPSEEK, tenant_id=tenant_id, input="9", output="24")
    await contracts.add_contract(database, ADMIN, **terms)


async def test_a_discount_that_has_come_below_cost_before_its_approval_is_refused(database: Database) -> None:
    tenant_id = (await make_organisation(database, "Acme")).tenant_id
    await prices.set_price(database, ADMIN, model=DEEPSEEK, input="8", output="24")
    facts = {
        "effective_from": None, "effective_to": None, "discount_bps": 4_000, "commit_monthly_usd": None,
        "payment_days": 30, "automatic_payment": False, "sla": None, "reason": "a deal",
    }  # fmt: skip
    await prices.set_price(database, ADMIN, model=DEEPSEEK, input="2", output="6.4", below_cost=True)
    async with write(database, ADMIN) as connection:
        with pytest.raises(Conflict, match="since it was asked for"):
            await contracts.apply_contract(connection, Acting(ADMIN, "ada"), tenant_id, facts)


async def test_a_price_that_pays_and_a_model_of_unknown_cost_need_none(database: Database) -> None:
    await prices.set_price(database, ADMIN, model=DEEPSEEK, input="3", output="9")
    await prices.set_price(database, ADMIN, model="river-7b", input="0", output="0")


async def test_the_second_person_reads_the_warning(database: Database, admin: Caller) -> None:
    body = {"model": DEEPSEEK, "input": "0.5", "output": "1.6"}
    refused = await admin("POST", "/prices", body)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "price_below_cost"
    assert (await admin("POST", "/prices", body | {"below_cost": True})).status_code == 201
    waiting = await admin("POST", "/prices", body | {"below_cost": True, "output": "1.7"})
    assert waiting.status_code == 202
    [one] = [row for row in (await admin("GET", "/approvals")).json()["data"] if row["kind"] == "price.set"]
    assert one["facts"]["below_cost"].startswith("below cost: at full load")


async def test_rest_and_command_say_the_same(
    database: Database,
    admin: Caller,
    pg_url: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    query = {
        "model": DEEPSEEK,
        "profile": "dp8",
        "input_tokens": "8000",
        "output_tokens": "1000",
        "margin": "0.1",
    }
    answer = await admin("GET", "/economics/breakeven", params=query)
    assert answer.status_code == 200, answer.text
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", PEPPER.decode())
    words = [word for name, value in query.items() for word in (f"--{name.replace('_', '-')}", value)]

    def command(*more: str) -> Result:
        return CliRunner().invoke(app, ["economics", "breakeven", *words, *more])

    plot = tmp_path / "even.svg"
    shown = await asyncio.to_thread(command, "--json", "--plot", str(plot))
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == answer.json()
    assert "DP8 EP" in plot.read_text()
    table = await asyncio.to_thread(command)
    assert "cheapest tokens: dp8, DP8 EP" in table.stdout
    wrong = await asyncio.to_thread(command, "--plot", str(tmp_path / "even.xyz"))
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)


async def test_prices_of_the_catalog_below_cost_are_named_until_they_are_mended(
    database: Database, admin: Caller
) -> None:
    await offer_models(database, ADMIN, load_catalog())
    losses = {loss.model: loss for loss in await catalog_losses(database, ADMIN)}
    assert set(losses) == {DEEPSEEK}
    told = (await admin("GET", f"/economics/breakeven?model={DEEPSEEK}")).json()["loss"]
    assert told == msgspec.to_builtins(losses[DEEPSEEK])
    assert (told["price"]["output"], told["host_usd_per_hour"]) == ("1.60", "64.00")
    assert (await breakeven(database, ADMIN, choice=Choice(model=DEEPSEEK, profile="tp8"))).loss is None

    words = told["command"].split()
    given = dict(zip(words[4::2], words[5::2], strict=True))
    await prices.set_price(
        database,
        ADMIN,
        model=words[3],
        tier=given["--tier"],
        input=given["--input"],
        cached_input=given["--cached-input"],
        output=given["--output"],
    )
    assert await catalog_losses(database, ADMIN) == []
    assert (await breakeven(database, ADMIN, choice=Choice(model=DEEPSEEK))).loss is None


async def test_a_price_that_a_person_confirmed_is_not_named_again(database: Database) -> None:
    await models.add_model(database, ADMIN, name=DEEPSEEK)
    await prices.set_price(database, ADMIN, model=DEEPSEEK, input="0.10", output="0.20", below_cost=True)
    assert await catalog_losses(database, ADMIN) == []
    view = await breakeven(database, ADMIN, choice=Choice(model=DEEPSEEK))
    assert view.loss is not None
    assert view.loss.price.output == "0.20"
