"""What an invoice's month was committed to, and late usage by the month it counts for.

`invoices.committed` is the committed spend of the month in picodollars, by the time that contracts held; null = none.
`commitment_usage` is usage on an invoice that counts towards the commitment of another month. Invoices from before
this revision counted late usage for the month in which it arrived, and commitments only of contracts that held all
month long; both stays true for them.
"""

from alembic import op

revision = "0028_prorated_commitments"
down_revision = "0027_approval_limit"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE invoices ADD COLUMN committed numeric(38,0), "
        "ADD CONSTRAINT ck_invoices_committed CHECK (committed IS NULL OR (committed > 0 AND kind = 'postpaid'))"
    )
    op.execute(
        "CREATE TABLE commitment_usage ("
        "tenant_id uuid NOT NULL, month date NOT NULL, invoice_id uuid NOT NULL, cost numeric(38,0) NOT NULL, "
        "CONSTRAINT pk_commitment_usage PRIMARY KEY (tenant_id, month, invoice_id), "
        "CONSTRAINT fk_commitment_usage_invoice_id FOREIGN KEY (invoice_id) REFERENCES invoices (id), "
        "CONSTRAINT ck_commitment_usage_month CHECK (extract(day FROM month) = 1), "
        "CONSTRAINT ck_commitment_usage_cost CHECK (cost > 0))"
    )
    op.execute("CREATE INDEX ix_commitment_usage_invoice_id ON commitment_usage (invoice_id)")
    op.execute("GRANT SELECT, INSERT ON commitment_usage TO penstock_system")
    op.execute(
        "UPDATE invoices i SET committed = c.commit_monthly FROM contracts c WHERE c.tenant_id = i.tenant_id "
        "AND i.kind = 'postpaid' AND c.withdrawn_at IS NULL AND c.commit_monthly IS NOT NULL "
        "AND c.effective @> tstzrange(i.month::timestamp AT TIME ZONE 'UTC', "
        "(i.month + interval '1 month') AT TIME ZONE 'UTC')"
    )
    op.execute(
        "INSERT INTO commitment_usage (tenant_id, month, invoice_id, cost) "
        "SELECT i.tenant_id, i.month, i.id, sum(l.exact) FROM invoices i JOIN invoice_lines l ON l.invoice_id = i.id "
        "WHERE i.committed IS NOT NULL AND l.kind = 'late_usage' GROUP BY i.id HAVING sum(l.exact) > 0"
    )
