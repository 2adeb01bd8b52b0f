"""Mistakes of finance in the play and how they are put right: wrong prices, reversals, adjustments by hand."""

from datetime import date
from uuid import UUID

import pytest

from admin import adjustments as admin_adjustments
from admin import corrections as admin_corrections
from core.errors import Conflict
from core.money import usd_to_pico
from tests.support.platform_play.model import Group
from tests.support.platform_play.prices import Rates, in_words
from tests.support.platform_play.stage import ANN, BOB, Stage
from tests.support.platform_play.traffic import month_of


class Mistakes:
    """Corrections of the play; each is named, so that it can be undone."""

    def __init__(self, play: Stage) -> None:
        self.play = play
        self.done: dict[
            str,
            tuple[
                UUID, dict[str, list[tuple[int, int]]], dict[str, dict[tuple[date, Group | None, int], int]]
            ],
        ] = {}

    async def correct(self, name: str, month: date, model: str, rates: Rates) -> None:
        """A list price of a closed month was wrong: dry run, request, a second person's yes."""
        play = self.play
        spec = {"rates": [{"model": model, **in_words(rates)}]}
        dry = await admin_corrections.dry_run(play.database, ANN, month=month, spec=spec)
        asked = await admin_corrections.request_correction(
            play.database, ANN, month=month, spec=spec, reason=f"{name}: typing error"
        )
        with pytest.raises(Conflict):
            await admin_corrections.decide_correction(
                play.database, ANN, correction_id=asked.id, approve=True
            )
        await play.agree()
        await admin_corrections.decide_correction(play.database, BOB, correction_id=asked.id, approve=True)
        with pytest.raises(Conflict):
            await admin_corrections.decide_correction(
                play.database, BOB, correction_id=asked.id, approve=True
            )
        now = play.time.now()
        adjusted, lines, delta = {}, {}, 0
        for person in sorted(play.people.values(), key=lambda one: one.tenant_id):
            account = person.account
            before = dict(account.corrected)
            made = account.correct(month, model, rates, month_of(now), now, f"{name}-{account.name}")
            adjusted[account.name] = made
            lines[account.name] = {
                key: value - before.get(key, 0)
                for key, value in account.corrected.items()
                if value != before.get(key, 0)
            }
            delta += sum(lines[account.name].values())
        assert _signed(dry.delta_usd) == delta, f"{name}: {dry.delta_usd} is not {delta} picodollars"
        self.done[name] = (asked.id, adjusted, lines)
        told = await play.one(
            "SELECT count(*) FROM notices WHERE kind = 'correction.applied' AND facts->>'correction_id' = :id",
            id=str(asked.id),
        )
        assert told == sum(bool(one) for one in lines.values())

    async def reverse(self, name: str) -> None:
        """The correction was the mistake: its adjustments are mirrored, once."""
        play = self.play
        correction_id, adjusted, lines = self.done.pop(name)
        asked = await admin_corrections.request_reversal(
            play.database, ANN, correction_id=correction_id, reason="it was right"
        )
        await admin_corrections.decide_correction(play.database, BOB, correction_id=asked.id, approve=True)
        with pytest.raises(Conflict):
            await admin_corrections.request_reversal(
                play.database, ANN, correction_id=correction_id, reason="again"
            )
        now = play.time.now()
        for account in play.accounts():
            for amount, never_paid in sorted(adjusted[account.name]):
                undone = f"un-{name}-{account.name}-{amount}"
                account.adjust(month_of(now), -amount, now, name=undone, never_paid=never_paid)
            for key, delta in lines[account.name].items():
                account.corrected[key] -= delta

    async def by_hand(self, who: str, usd: str, *, approved: bool) -> None:
        """An adjustment by hand, asked for twice; above the limit it waits for a second person."""
        play = self.play
        person = play.people[who]
        for _ in range(1 if approved else 2):
            made = await admin_adjustments.request_adjustment(
                play.database, ANN, tenant_id=person.tenant_id, amount_usd=usd, reason="by hand",
                adjustment_id=play.hand_id(who, usd),
            )  # fmt: skip
        assert made.status == ("waiting" if approved else "booked")
        if approved:
            await play.agree()
            with pytest.raises(Conflict):
                await admin_adjustments.decide_adjustment(
                    play.database, ANN, approval_id=made.id, approve=True
                )
            await admin_adjustments.decide_adjustment(play.database, BOB, approval_id=made.id, approve=True)
        amount = _signed(usd)
        now = play.time.now()
        person.account.adjust(month_of(now), amount, now, name=f"by hand {usd}")


def _signed(usd: str) -> int:
    """Picodollars of an amount that may be below 0."""
    return usd_to_pico(usd.removeprefix("-")) * (-1 if usd.startswith("-") else 1)
