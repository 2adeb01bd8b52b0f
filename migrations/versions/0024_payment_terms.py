"""Automatic payment as a term of contracts and invoices, and what Stripe did with the customer's balance.

`invoices.applied_cents` is the part of an invoice that Stripe took from the customer's balance, or, below 0, an earlier
debt that it added. `credit_notes.balance_cents` and `refund_cents` are the parts of a credit note that do not lower its
invoice: credit on the customer's balance, and money paid back.
"""

from alembic import op

revision = "0024_payment_terms"
down_revision = "0023_settle_record"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE contracts ADD COLUMN automatic_payment boolean NOT NULL DEFAULT false")
    op.execute(
        "ALTER TABLE invoices ADD COLUMN automatic_payment boolean NOT NULL DEFAULT false, "
        "ADD COLUMN applied_cents bigint NOT NULL DEFAULT 0"
    )
    op.execute("GRANT UPDATE (applied_cents) ON invoices TO penstock_system")
    op.execute(
        "ALTER TABLE credit_notes ADD COLUMN balance_cents bigint NOT NULL DEFAULT 0, "
        "ADD COLUMN refund_cents bigint NOT NULL DEFAULT 0, "
        "ADD CONSTRAINT ck_credit_notes_parts CHECK (balance_cents >= 0 AND refund_cents >= 0 "
        "AND balance_cents + refund_cents <= cents)"
    )
    op.execute("GRANT UPDATE (pays, balance_cents, refund_cents) ON credit_notes TO penstock_system")
    op.execute(
        "UPDATE credit_notes SET balance_cents = CASE pays WHEN 'balance' THEN cents ELSE 0 END, "
        "refund_cents = CASE pays WHEN 'refund' THEN cents ELSE 0 END WHERE status = 'pushed'"
    )
