"""The facts of an act that waits, as the person who decides reads them."""

from typing import Any
from uuid import UUID

from billing.ledger.accounts import AccountView
from billing.ledger.approvals import Approval
from console.format import Formatted
from console.panels.approval_facts import approval_facts, in_one_line

TENANT = UUID(int=1)


def approval(act: str, /, **facts: Any) -> Approval:
    return Approval(
        UUID(int=2), act, TENANT, facts, "ada", "1", "2026-11-01T00:00:00+00:00", None, None, None, None
    )


def account(mode: str, limit: str | None = None) -> AccountView:
    return AccountView(TENANT, mode, "0", "0", None, 0, "0", "0", limit, None, "0")


def shown(one: Approval, held: AccountView | None = None) -> dict[str, str]:
    facts = approval_facts(one, held)
    return {label: value.text if isinstance(value, Formatted) else value for label, value in facts}


def test_a_price_shows_every_rate_and_when_it_begins() -> None:
    one = approval(
        "price.set", model="m", tier="batch", input="1", cached_input="0.1", output="2", reasoning="7.5",
        effective_from="2026-12-01T00:00:00+00:00", reason="r",
    )  # fmt: skip
    assert shown(one, account("postpaid", "1000")) == {
        "Organisation": "Postpaid, credit limit $1,000.00",
        "Model": "m",
        "Tier": "batch",
        "Input": "$1.00",
        "Cached input": "$0.10",
        "Output": "$2.00",
        "Reasoning tokens": "$7.50",
        "Begins": "2026-12-01 00:00:00 UTC",
        "Reason": "r",
    }


def test_a_contract_shows_its_terms() -> None:
    sla = {"metric": "ttft", "percentile": 95, "threshold": 800, "credit_percent": 10}
    one = approval(
        "contract.add", effective_from=None, effective_to="2027-01-01T00:00:00+00:00", discount_bps=1250,
        commit_monthly_usd="5000", payment_days=60, automatic_payment=True, sla=sla, reason="deal",
    )  # fmt: skip
    assert shown(one, account("prepaid")) == {
        "Organisation": "Prepaid",
        "Discount": "12.5 %",
        "Committed spend a month": "$5,000.00",
        "Due after": "60 days",
        "Charges the saved card": "yes",
        "Service level": "95% of first tokens within 800 ms, else 10% of the month's charges come back",
        "Begins": "when it is approved",
        "Ends": "2027-01-01 00:00:00 UTC",
        "Reason": "deal",
    }


def test_a_grant_shows_its_kind_and_expiry_and_unknown_facts_are_shown_too() -> None:
    one = approval(
        "credit.grant", amount_usd="500", kind="purchased", expires_at=None, priority=None, grant_id="g-1",
        reason="r", anything_new={"deep": [1, None]},
    )  # fmt: skip
    assert shown(one) == {
        "Amount": "$500.00",
        "Kind of credit": "purchased",
        "Expires": "never",
        "Used in the order": "of its kind",
        "Reason": "r",
        "Grant id": "g-1",
        "Anything new": "deep 1, none",
    }
    assert in_one_line(approval_facts(one, None)).startswith("Amount: $500.00 · Kind of credit: purchased")
    assert shown(approval("credit_limit.set", credit_limit_usd=None)) == {"Credit limit": "no limit"}
