"""Three months of a busy platform, and at the end ledger = Stripe = report = engine, to the picodollar.

The product's own processes and jobs go through crashes, late events, wrong prices and their corrections, disputes and
replays on a movable clock. Every job runs twice. A model that shares no code with the product computes the balance of
every account after each step. PENSTOCK_PLAY_SEEDS=1,2,3 runs more than one seed.
"""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from core.errors import PaymentRequired
from tests.support.platform_play import closing, crashes, finance, proof
from tests.support.platform_play.cards import Cards
from tests.support.platform_play.mistakes import Mistakes
from tests.support.platform_play.stage import MODELS, MONTHS, Stage, stage
from tests.support.platform_play.timeline import utc
from tests.support.platform_play.traffic import MAX_SECONDS

JANUARY, FEBRUARY, MARCH = MONTHS
SEEDS = [int(one) for one in os.environ.get("PENSTOCK_PLAY_SEEDS", "1").split(",")]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SEEDS)
async def test_three_months(pg_url: str, tmp_path: Path, seed: int) -> None:
    async with stage(pg_url, tmp_path, seed) as play:
        cards, mistakes = Cards(play), Mistakes(play)
        await finance.begin(play)
        lost, late = await january(play, cards)
        await close_january(play, late)
        told = {JANUARY: await closing.close(play, JANUARY)}
        await february(play, cards, mistakes, lost)
        await closing.invoice(play, FEBRUARY)
        told[FEBRUARY] = await closing.close(play, FEBRUARY)
        await march(play, cards, mistakes)
        await closing.invoice(play, MARCH)
        told[MARCH] = await closing.close(play, MARCH)
        await proof.everything(play)
        for month, digests in told.items():
            assert await closing.told(play, month) == digests
        assert play.traffic.count > 1500


async def days(play: Stage, *when: tuple[int, int]) -> None:
    """Traffic on days (month, day), and the jobs afterwards."""
    for month, day in when:
        await play.time.go(utc(2027, month, day, 9, 30))
        await play.serve()
        await play.time.later(hours=1, minutes=40)
        await play.jobs()


async def january(play: Stage, cards: Cards) -> tuple[crashes.Dead, crashes.Dead]:
    """Customers pay for the first time; a price changes; processes, a host and an engine die."""
    await play.time.go(utc(2027, 1, 1, 8))
    await cards.wires("duplicated", copies=3)
    await finance.give(play, "acorn", 15, utc(2027, 2, 14, 12))
    await finance.give(play, "hazel", 6, utc(2027, 2, 1, 12))
    for who, name, usd in (
        ("acorn", "acorn-1", 40), ("birch", "birch-1", 20), ("cedar", "cedar-1", 100), ("dogwood", "dogwood-1", 50),
        ("dogwood", "dogwood-2", 25),
    ):  # fmt: skip
        await cards.buy(who, name, usd)
    await play.save_card("elm", "pm_card_visa")
    play.paying.add("elm")
    await play.save_card("fir", "pm_card_chargeCustomerFail")
    await play.jobs()
    await cards.forged()
    await finance.auto_top_up(play, "birch", 15, 60)
    await finance.list_price(play, "lake-70b", (2_800_013, 280_003, 8_500_041, 10_500_043), utc(2027, 1, 16))
    await days(play, (1, 3), (1, 7), (1, 11))
    await cards.refund("cedar-1", 500)
    await cards.refund_and_crash()
    await play.jobs()
    # A price changes while requests run: each keeps the price at its admission.
    await play.time.go(utc(2027, 1, 15, 23, 59) + timedelta(seconds=20))
    await play.serve(1)
    await days(play, (1, 16), (1, 20))
    dead = await crashes.die(play, "host-a", ["acorn", "ginkgo", "cedar", "fir"])
    await play.time.later(seconds=30)
    await crashes.come_back(play, dead)
    await engine_dies(play)
    await days(play, (1, 24), (1, 28))
    await play.time.go(utc(2027, 1, 30, 18))
    await play.report_engines()
    lost = await crashes.die(play, "host-c", ["ginkgo", "cedar", "fir"])
    await play.report_engines(still=True)
    await crashes.reap(play, lost)
    await play.time.go(utc(2027, 1, 31, 18))
    await play.report_engines()
    await finance.give(play, "hazel", 2, utc(2027, 2, 1, 12))
    late = await crashes.die(play, "host-b", ["hazel", "hazel", "ginkgo", "cedar"])
    await play.report_engines(still=True)
    await crashes.reap(play, late)
    await play.jobs()
    # Requests that begin in January and end in February.
    await play.time.go(utc(2027, 1, 31, 23, 59) + timedelta(seconds=10))
    await play.serve(1)
    return lost, late


async def engine_dies(play: Stage) -> None:
    """An engine dies with tokens that were not scraped; its requests failed and are free."""
    await play.report_engines(still=True)
    engine = play.engines[MODELS[0]]
    async with play.process() as living:
        drawn = [
            play.traffic.draw(play.people[name], play.time.now(), kind="engine_failed", model=engine.model)
            for name in ("elm", "fir")
        ]
        failed = await play.wave(living, [one for one in drawn if one is not None])
    unseen = (sum(one.usage.input for one in failed), sum(one.usage.output for one in failed))
    await engine.die(play.database, unseen, scrape_age_s=MAX_SECONDS + 30)


async def close_january(play: Stage, late: crashes.Dead) -> None:
    """A spool adopted within the late window is billed in January; a lost one keeps the month open until accepted."""
    await play.time.go(utc(2027, 2, 2, 0, 10))
    await play.jobs()
    assert play.account("hazel").balance == 0
    await crashes.come_back(play, late)
    assert play.account("hazel").ledger["uncollectible"] > 0
    await play.time.later(hours=1)
    await play.jobs()
    await closing.invoice(play, JANUARY)
    assert "engines_explained" in await closing.red(play, JANUARY)
    await finance.accept_engines(play)


async def february(play: Stage, cards: Cards, mistakes: Mistakes, lost: crashes.Dead) -> None:
    """A wrong price of January, an invoice that is not paid, disputes, slow answers."""
    await cards.wires("reordered", window=7)
    play.people["elm"].ttft_us = 900_000
    await play.time.go(utc(2027, 2, 4, 8))
    await crashes.come_back(play, lost, FEBRUARY)
    await finance.give(play, "cedar", 10, utc(2027, 3, 10, 12))
    await cards.buy("acorn", "acorn-2", 60)
    await cards.buy("dogwood", "dogwood-3", 40)
    await cards.buy("hazel", "hazel-1", 30)
    await play.jobs()
    await days(play, (2, 4), (2, 7))
    await cards.dispute("dogwood-3")
    await cards.dispute("dogwood-1")
    await play.time.go(utc(2027, 2, 10, 9))
    play.account("fir").give_up(JANUARY)
    await play.jobs()
    assert await dunning(play, "fir") == "past_due"
    # January's list price of delta-moe was too high.
    right = (1_200_007, 120_001, 5_000_017, 5_000_017)
    await play.time.go(utc(2027, 2, 12, 14))
    await play.jobs()
    await mistakes.correct("delta", JANUARY, "delta-moe", right)
    await finance.list_price(play, "delta-moe", right, None)
    await play.jobs()
    await finance.list_price(play, "river-7b", (650_009, 65_003, 2_500_021, 2_600_023), utc(2027, 2, 15))
    await cards.decide("dogwood-3", won=True)
    await days(play, (2, 14), (2, 16))
    await cards.decide("dogwood-1", won=False)
    await play.jobs()
    await mistakes.correct("river", JANUARY, "river-7b", (700_001, 70_003, 2_700_007, 2_700_007))
    await mistakes.by_hand("acorn", "12.50", approved=False)
    await mistakes.by_hand("ginkgo", "-120.25", approved=True)
    await play.jobs()
    await play.time.go(utc(2027, 2, 20, 11))
    await cards.pay_invoice("ginkgo", JANUARY)
    await play.jobs()
    await play.time.go(utc(2027, 2, 25, 10))
    await play.jobs()
    assert await dunning(play, "fir") == "suspended"
    await finance.refused(play, "fir", PaymentRequired)
    await play.save_card("fir", "pm_card_visa")
    play.paying.add("fir")
    await cards.pay_invoice("fir", JANUARY)
    await play.jobs()
    assert await dunning(play, "fir") == "current"
    await cards.refund("acorn-2", None)
    await cards.buy("acorn", "acorn-3", 35)
    await play.jobs()
    await days(play, (2, 26))
    await play.time.go(utc(2027, 2, 28, 23, 58))
    await play.serve(1)


async def dunning(play: Stage, name: str) -> str:
    """The dunning state of a customer that does not pay."""
    tenant = play.people[name].tenant_id
    return str(
        await play.one("SELECT dunning FROM stripe_customers WHERE tenant_id = :tenant", tenant=tenant)
    )


async def march(play: Stage, cards: Cards, mistakes: Mistakes) -> None:
    """The reversal, lost webhooks, lost answers of Stripe."""
    await cards.wires("lost")
    play.people["elm"].ttft_us = 300_000
    await play.time.go(utc(2027, 3, 4, 8))
    await mistakes.reverse("river")
    await cards.buy("cedar", "cedar-2", 45)
    await play.jobs()
    await days(play, (3, 4), (3, 8))
    await play.time.go(utc(2027, 3, 12, 12))
    await cards.lost_top_up("birch")
    await days(play, (3, 12), (3, 16))
    await cards.crashed_top_up("birch")
    dead = await crashes.die(play, "host-a", ["acorn", "ginkgo", "cedar", "fir"])
    await crashes.come_back(play, dead)
    await cards.dispute("dogwood-2")
    await play.jobs()
    await cards.decide("dogwood-2", won=False)
    await play.jobs()
    await mistakes.correct("lake", FEBRUARY, "lake-70b", (2_700_001, 270_001, 8_400_001, 10_400_001))
    await play.jobs()
    await cards.wires("normal")
    await days(play, (3, 20), (3, 24), (3, 28))
