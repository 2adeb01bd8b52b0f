"""What every amount of the play must be, told again by one thread with whole numbers and nothing of the product.

Credit is used up lot by lot at once (the product does it later, in the same order); invoices, notes, payments and
Stripe's balance are added up as the contract with the customer says. Picodollars, and cents where Stripe rounds.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import NamedTuple

from tests.support.platform_play.prices import Pinned, Rates, discounted

CENT = 10**10


def cents(exact: int) -> int:
    """Whole cents, half away from zero."""
    whole = (2 * abs(exact) + CENT) // (2 * CENT)
    return whole if exact >= 0 else -whole


def card_fee(paid: int) -> int:
    """What Stripe keeps of a card payment: 2.9 % half up, and 30 cents."""
    return (paid * 29 + 500) // 1000 + 30


class Group(NamedTuple):
    """What an invoice adds up: one kind of usage of one model at one price."""

    late: bool
    model: str
    price: Pinned


class LineOf(NamedTuple):
    """An invoice line as the model writes it."""

    kind: str
    model: str
    token_class: int
    tokens: int
    unit: int
    exact: int
    cents: int


@dataclass
class Lot:
    """Credit of one origin."""

    kind: str
    priority: int
    expires: datetime | None
    number: int
    remaining: int
    name: str


@dataclass
class Bill:
    """An invoice of the model."""

    lines: list[LineOf]
    total: int
    credited: int = 0
    open: bool = True
    paid_cash: int = 0
    written_off: int = 0


BREAKAGE = {
    "purchased": "breakage",
    "adjustment": "breakage",
    "promotional": "promotions",
    "sla": "sla_credits",
}
PRIORITY = {"promotional": 10, "sla": 20, "adjustment": 30, "purchased": 40}


@dataclass
class Account:
    """One customer."""

    name: str
    mode: str
    ledger: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Debits less credits by account."""
    lots: list[Lot] = field(default_factory=list)
    held: int = 0
    tokens: dict[date, dict[Group, list[int]]] = field(default_factory=dict)
    """By month of the books: tokens of the four classes, disjoint."""
    lost: dict[date, int] = field(default_factory=lambda: defaultdict(int))
    """Usage that nobody could pay, by month."""
    moves: dict[date, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """Adjustments and service-level credits by the month of their booking; above 0 = owes more."""
    booked: dict[date, int] = field(default_factory=lambda: defaultdict(int))
    """Revenue of a month that is no usage."""
    bills: dict[date, Bill] = field(default_factory=dict)
    corrected: dict[tuple[date, Group | None, int], int] = field(default_factory=lambda: defaultdict(int))
    late: dict[date, dict[date, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    """What late usage costs, by the month of the books and the month it belongs to."""
    met: dict[date, int] = field(default_factory=lambda: defaultdict(int))
    """Late usage on invoices, by the month it belongs to."""
    committed: dict[date, int] = field(default_factory=dict)
    """Commitments whose shortfall an invoice has billed; corrected under (month, None, -1)."""
    carried: tuple[int, int] = (0, 0)
    at_stripe: int = 0
    """Cents of credit on the customer's balance at Stripe."""
    cash: int = 0
    """Cents that Stripe holds because of this customer, after fees."""
    charges: list[int] = field(default_factory=list)
    """Cents of each charge that succeeded."""

    def book(self, debit: str, credit: str, amount: int) -> None:
        """Double entry."""
        assert amount >= 0
        self.ledger[debit] += amount
        self.ledger[credit] -= amount

    @property
    def balance(self) -> int:
        """Unused credit."""
        return -self.ledger["credit"]

    # -- usage -----------------------------------------------------------------------------------------------------

    def used(self, month: date, group: Group, tokens: list[int], hold: int | None, at: datetime) -> int:
        """A request that is charged in `month`; `hold` = what was reserved for it, None when that is gone."""
        sums = self.tokens.setdefault(month, {}).setdefault(group, [0, 0, 0, 0])
        for number, count in enumerate(tokens):
            sums[number] += count
        cost = sum(count * rate for count, rate in zip(tokens, group.price.rates, strict=True))
        if hold is not None:
            self.held -= hold
        if self.mode == "postpaid":
            self.book("receivable", "revenue", cost)
            return cost
        paid = min(cost, self.balance - self.held)
        self.book("credit", "revenue", paid)
        self.book("uncollectible", "revenue", cost - paid)
        self.lost[month] += cost - paid
        self._draw(paid, at)
        return cost

    def _draw(self, amount: int, at: datetime) -> None:
        """Use lots in their order; those that are over come last."""
        order = sorted(
            self.lots,
            key=lambda lot: (
                lot.expires is not None and lot.expires <= at,
                lot.priority,
                lot.expires is None,
                lot.expires or at,
                lot.number,
            ),
        )
        for lot in order:
            taken = min(lot.remaining, amount)
            lot.remaining -= taken
            amount -= taken
        assert amount == 0

    # -- credit ----------------------------------------------------------------------------------------------------

    def add_lot(self, name: str, kind: str, amount: int, expires: datetime | None = None) -> None:
        """Credit that is given, bought or adjusted."""
        source = {
            "purchased": "cash",
            "promotional": "promotions",
            "sla": "sla_credits",
            "adjustment": "revenue",
        }
        self.book(source[kind], "credit", amount)
        self.lots.append(Lot(kind, PRIORITY[kind], expires, len(self.lots), amount, name))

    def expire(self, at: datetime) -> None:
        """Lots whose time is over lose what no open request needs."""
        for lot in sorted(self.lots, key=lambda one: (one.expires or at, one.number)):
            if lot.expires is not None and lot.expires <= at and lot.remaining:
                gone = min(lot.remaining, self.balance - self.held)
                lot.remaining -= gone
                self.book("credit", BREAKAGE[lot.kind], gone)

    def bought(self, name: str, paid: int, *, fee: int | None = None) -> None:
        """A top-up of `paid` cents by card arrived."""
        self.add_lot(name, "purchased", paid * CENT)
        self.charged(paid, fee)

    def charged(self, paid: int, fee: int | None = None) -> None:
        """Stripe's side of a payment."""
        kept = card_fee(paid) if fee is None else fee
        self.book("fees", "cash", kept * CENT)
        self.cash += paid - kept
        self.charges.append(paid)

    def lot(self, name: str) -> Lot:
        """A lot by its name in the play."""
        return next(lot for lot in self.lots if lot.name == name)

    def refund(self, name: str, part: int | None) -> int:
        """Pay a purchase back: `part` cents, None = all whole cents that are left; returns the cents."""
        lot = self.lot(name)
        back = lot.remaining // CENT if part is None else part
        lot.remaining -= back * CENT
        self.book("credit", "cash", back * CENT)
        self.cash -= back
        return back

    def disputed(self, name: str, paid: int) -> int:
        """The bank takes a purchase back, with a fee; returns the credit that was still there."""
        lot = self.lot(name)
        clawed = min(lot.remaining, self.balance - self.held)
        self.book("disputed", "cash", paid * CENT)
        self.book("fees", "cash", 1500 * CENT)
        self.cash -= paid + 1500
        lot.remaining -= clawed
        self.book("credit", "disputed", clawed)
        return clawed

    def dispute_won(self, name: str, paid: int, clawed: int) -> None:
        """The money and the credit come back; the fee does not."""
        self.book("cash", "disputed", paid * CENT)
        self.cash += paid
        self.lot(name).remaining += clawed
        self.book("disputed", "credit", clawed)

    def dispute_lost(self, paid: int, clawed: int) -> None:
        """What was used of it is our loss."""
        self.book("dispute_losses", "disputed", paid * CENT - clawed)

    def adjust(
        self, month: date, amount: int, at: datetime, *, name: str = "", noted: int = 0, never_paid: int = 0
    ) -> int:
        """Above 0 = in the customer's favour; `noted` = what a credit note takes off an invoice already, `never_paid`
        = what the charge that this undoes could not collect. Returns what of a charge no money was there for.
        """
        self.booked[month] -= amount
        if self.mode == "postpaid":
            self.book(*(("revenue", "receivable") if amount > 0 else ("receivable", "revenue")), abs(amount))
            self.moves[month].append(("adjustment", noted - amount))
            return 0
        if amount > 0:
            if amount > never_paid:
                self.add_lot(name, "adjustment", amount - never_paid)
            self.book("revenue", "uncollectible", never_paid)
            return 0
        paid = min(-amount, self.balance - self.held)
        self.book("credit", "revenue", paid)
        self.book("uncollectible", "revenue", -amount - paid)
        self._draw(paid, at)
        return -amount - paid

    # -- invoices --------------------------------------------------------------------------------------------------

    def cost(self, month: date) -> int:
        """What a month's usage costs."""
        return sum(line.exact for line in self.usage_lines(month))

    def usage_lines(self, month: date) -> list[LineOf]:
        """One line per model, price and class with tokens."""
        return [
            LineOf(
                "late_usage" if group.late else "usage",
                group.model,
                number,
                count,
                group.price.rates[number],
                count * group.price.rates[number],
                cents(count * group.price.rates[number]),
            )
            for group, sums in self.tokens.get(month, {}).items()
            for number, count in enumerate(sums)
            if count
        ]

    def lack(self, month: date) -> int:
        """What a month's usage, as corrected by now, lacks to the commitment that its invoice billed."""
        used = sum(line.exact for line in self.usage_lines(month) if line.kind == "usage")
        changed = sum(
            change
            for (of, group, _), change in self.corrected.items()
            if of == month and group is not None and not group.late
        )
        return max(self.committed.get(month, 0) - used - changed - self.met[month], 0)

    def bill(self, month: date, committed: int | None) -> None:
        """Make the month's invoice."""
        lines = self.usage_lines(month)
        if committed is not None:
            self.committed[month] = committed
        if self.mode == "postpaid":
            lack = (committed or 0) - sum(line.exact for line in lines if line.kind == "usage")
            if lack > 0:
                lines.append(LineOf("commit", "", -1, 0, 0, lack, cents(lack)))
                self.book("receivable", "revenue", lack)
                self.booked[month] += lack
            for earlier, cost in sorted(self.late[month].items()):
                was = self.lack(earlier)
                self.met[earlier] += cost
                if spared := was - self.lack(earlier):
                    lines.append(LineOf("commit", "", -1, 0, 0, -spared, cents(-spared)))
                    self.book("revenue", "receivable", spared)
                    self.booked[month] -= spared
            lines += [LineOf(kind, "", -1, 0, 0, one, cents(one)) for kind, one in self.moves[month] if one]
            if self.carried != (0, 0):
                lines.append(LineOf("carried", "", -1, 0, 0, *self.carried))
                self.carried = (0, 0)
        if not lines:
            return
        exact, total = sum(line.exact for line in lines), sum(line.cents for line in lines)
        if self.mode == "prepaid":
            self.bills[month] = Bill(lines, total, open=False)
            return
        if not (exact > 0 and total >= 0) and (exact, total) != (0, 0):
            self.carried = (exact, total)
            lines.append(LineOf("carried", "", -1, 0, 0, -exact, -total))
            exact = total = 0
        self.book("invoiced", "receivable", exact)
        self._round(total * CENT - exact)
        self.bills[month] = Bill(lines, total, open=total > 0)

    def _round(self, amount: int) -> None:
        self.book(*(("invoiced", "rounding") if amount > 0 else ("rounding", "invoiced")), abs(amount))

    def due(self, month: date) -> int:
        """Cents that are still to be paid of an invoice, before the balance at Stripe."""
        bill = self.bills[month]
        return bill.total - bill.credited - bill.paid_cash

    def pay(self, month: date) -> None:
        """The card is charged for an invoice, less the balance at Stripe; a written-off one comes back."""
        bill = self.bills[month]
        wanted = self.due(month)
        if not bill.written_off:
            covered = min(self.at_stripe, wanted)
            self.at_stripe -= covered
            wanted -= covered
        if wanted:
            self.book("cash", "invoiced", wanted * CENT)
            self.charged(wanted)
        self.book("invoiced", "uncollectible", bill.written_off * CENT)
        bill.paid_cash, bill.open, bill.written_off = bill.paid_cash + wanted, False, 0

    def give_up(self, month: date) -> None:
        """Nobody paid: what is open becomes an expense."""
        bill = self.bills[month]
        bill.written_off, bill.open = self.due(month), False
        self.book("uncollectible", "invoiced", bill.written_off * CENT)

    # -- corrections -----------------------------------------------------------------------------------------------

    def correct(
        self, month: date, model: str, rates: Rates, now: date, at: datetime, name: str
    ) -> list[tuple[int, int]]:
        """A list price of a past month was wrong; returns the adjustments, each with what it could not collect."""
        deltas, credit, charge, lower = [], 0, 0, 0
        was_lacking = self.lack(month)
        for group, sums in self.tokens.get(month, {}).items():
            if group.model != model or group.price.book == "own":
                continue
            new = discounted(rates, group.price.bps) if group.price.bps else rates
            for number, count in enumerate(sums):
                key = (month, group, number)
                was = count * group.price.rates[number] + self.corrected[key]
                delta = count * new[number] - was
                self.corrected[key] += delta
                deltas.append(delta)
                credit += max(-delta, 0)
                charge += max(delta, 0)
                lower += cents(was) - cents(was + delta) if delta < 0 else 0
        if month in self.committed and sum(deltas):
            # What costs more lacks less to the commitment, and the other way round.
            was, lack = was_lacking, self.lack(month)
            self.corrected[month, None, -1] += lack - was
            credit += max(was - lack, 0)
            charge += max(lack - was, 0)
            lower += cents(was) - cents(lack) if lack < was else 0
        bill = self.bills.get(month)
        noted = bill is not None and self.mode == "postpaid" and not bill.written_off
        if not noted or bill is None or not 0 < lower <= bill.total - bill.credited:
            net = credit - charge
            return [(net, self.adjust(now, net, at, name=name))] if net else []
        self.adjust(now, credit, at, noted=credit)
        self.book("receivable", "invoiced", credit)
        self._round(credit - lower * CENT)
        bill.credited += lower
        if not bill.open:
            self.at_stripe += lower
        made = [(credit, 0)]
        if charge:
            made.append((-charge, self.adjust(now, -charge, at, name=name)))
        return made
