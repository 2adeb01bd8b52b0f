"""What an act that waits consists of, for the person who decides: every stored fact, named and readable."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from billing.ledger.accounts import AccountView
from billing.ledger.approvals import Approval
from console.format import Formatted, money, per_mtok, words
from console.panels.contract import sla_words

Fact = tuple[str, Formatted | str]
"""The name of a fact and its value."""


def _instant(missing: str) -> Callable[[Any], str]:
    """A function that writes an instant out in UTC; None is `missing`."""

    def write(value: Any) -> str:
        if value is None:
            return missing
        return datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    return write


def _usd(missing: str) -> Callable[[Any], Formatted | str]:
    """A function that writes an amount; None is `missing`."""
    return lambda value: missing if value is None else money(value)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{words(name)} {_plain(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    return "none" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)


_FACTS: dict[str, tuple[str, Callable[[Any], Formatted | str]]] = {
    "amount_usd": ("Amount", _usd("none")),
    "delta_usd": ("Change", _usd("none")),
    "approval_limit_usd": ("Approval limit", _usd("none")),
    "approval_days": ("Acts may wait for", lambda days: f"{days} days"),
    "default_credit_limit_usd": ("Credit limit of new organisations", _usd("none")),
    "credit_limit_usd": ("Credit limit", _usd("no limit")),
    "kind": ("Kind of credit", _plain),
    "model": ("Model", _plain),
    "previous_tier": ("Tier until now", _plain),
    "tier": ("Tier", _plain),
    "input": ("Input", per_mtok),
    "cached_input": ("Cached input", per_mtok),
    "output": ("Output", per_mtok),
    "reasoning": ("Reasoning tokens", per_mtok),
    "discount_bps": ("Discount", lambda bps: f"{bps / 100:g} %"),
    "commit_monthly_usd": ("Committed spend a month", _usd("none")),
    "payment_days": ("Due after", lambda days: f"{days} days"),
    "automatic_payment": ("Charges the saved card", _plain),
    "sla": ("Service level", sla_words),
    "effective_from": ("Begins", _instant("when it is approved")),
    "effective_to": ("Ends", _instant("never")),
    "at": ("Takes effect", _instant("when it is approved")),
    "expires_at": ("Expires", _instant("never")),
    "priority": ("Used in the order", lambda order: "of its kind" if order is None else str(order)),
    "email": ("Person", _plain),
    "number": ("Invoice", _plain),
    "month": ("Month", _plain),
    "corrects": ("Corrects the month", _plain),
    "warning": ("Remains due", _plain),
    "below_cost": ("Warning", _plain),
    "reason": ("Reason", _plain),
}
"""Names and formats of facts, in the order in which they are shown. Others, such as ids, follow."""
_HIDDEN = frozenset({"sealed_client_secret"})


def approval_facts(one: Approval, account: AccountView | None) -> list[Fact]:
    """Every fact of an act; `account` is that of its organisation (None = an act without one)."""
    known = [(label, write(one.facts[name])) for name, (label, write) in _FACTS.items() if name in one.facts]
    others = [
        (words(name).capitalize(), _plain(value))
        for name, value in one.facts.items()
        if name not in _FACTS and name not in _HIDDEN
    ]
    if account is None:
        return [*known, *others]
    limit = "no limit" if account.credit_limit_usd is None else money(account.credit_limit_usd).text
    kind = "Prepaid" if account.mode == "prepaid" else f"Postpaid, credit limit {limit}"
    return [("Organisation", kind), *known, *others]


def in_one_line(facts: list[Fact]) -> str:
    """The facts as text."""
    return " · ".join(
        f"{label}: {value.text if isinstance(value, Formatted) else value}" for label, value in facts
    )
