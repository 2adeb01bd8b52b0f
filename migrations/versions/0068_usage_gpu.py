"""The class of GPU of usage: of rows through their dimensions, of the sums of hours and days, and of what is settled.

Rows of before have the empty class: it is not known. A process of before this revision waits with its settlement
(PostgreSQL refuses its records, which lack the last attribute) until it is replaced by one that settles its spool.
"""

from alembic import op

revision = "0068_usage_gpu"
down_revision = "0067_secret_rotation"
branch_labels = None
depends_on = None

_FACTS = "tenant_id, project_id, key_id, model, tier, region, price_version, list_price_version, simulated"


def upgrade() -> None:
    op.execute("ALTER TYPE settle_record ADD ATTRIBUTE gpu text")
    op.execute(
        "ALTER TABLE usage_dims ADD COLUMN gpu text NOT NULL DEFAULT '', DROP CONSTRAINT uq_usage_dims_facts, "
        f"ADD CONSTRAINT uq_usage_dims_facts UNIQUE ({_FACTS}, gpu)"
    )
    for table, period in (("usage_hours", "hour"), ("usage_days", "day")):
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN gpu text NOT NULL DEFAULT '', DROP CONSTRAINT pk_{table}, "
            f"ADD CONSTRAINT pk_{table} PRIMARY KEY ({period}, {_FACTS}, gpu)"
        )
    op.execute(
        "GRANT SELECT (gpu) ON usage_days TO penstock_app"
    )  # who may not see the days' share of the host cost
