"""A Stripe that equals our books and counts the calls, in this process; it answers at once."""

from typing import Any

from billing.payments.invoices import INVOICE_KEY
from billing.payments.stripe_types import BalanceTransaction, Invoice, InvoiceLine, MeterEventSummary


class StripeStub:
    """The reads that the comparison makes of `StripeGateway`."""

    def __init__(
        self, invoices: dict[str, Any], lines: dict[str, dict[str, int]], tokens: dict[str, int]
    ) -> None:
        self._invoices = invoices
        self._lines = lines
        self._tokens = tokens
        self.calls = 0

    async def invoice(self, invoice_id: str) -> Invoice:
        """Return the invoice as our books have it."""
        self.calls += 1
        row = self._invoices[invoice_id]
        return Invoice(
            id=invoice_id,
            status=row["status"],
            customer=None,
            currency="usd",
            number=None,
            total_cents=row["total_cents"],
            paid_cents=0,
            remaining_cents=row["total_cents"],
            credited_cents=0,
            applied_cents=0,
            mailed=False,
            metadata={INVOICE_KEY: row["id"]},
            paid_at=None,
            attempts=0,
            url=None,
        )

    async def invoice_lines(self, invoice_id: str) -> list[InvoiceLine]:
        """Return its lines."""
        self.calls += 1
        lines = self._lines[self._invoices[invoice_id]["id"]]
        return [InvoiceLine(id=key, cents=cents, metadata={}) for key, cents in lines.items()]

    async def balance_transactions(self, start: int, end: int) -> list[BalanceTransaction]:
        """Return no movement: nothing was paid."""
        self.calls += 1
        return []

    async def meter_event_summaries(
        self, meter_id: str, customer_id: str, start: int, end: int
    ) -> list[MeterEventSummary]:
        """Return the month's tokens of a customer."""
        self.calls += 1
        return [MeterEventSummary(start_at=start, end_at=end, tokens=self._tokens[customer_id])]
