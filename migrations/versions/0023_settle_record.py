"""The type of a record that `penstock_settle` takes, in place of JSON that it had to parse."""

from alembic import op

revision = "0023_settle_record"
down_revision = "0022_account_checks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TYPE settle_record AS ("
        "request_id uuid, tenant_id uuid, project_id uuid, key_id uuid, model text, tier text, region text, "
        "replica_id text, boot_id text, admitted_at timestamptz, outcome usage_outcome, free boolean, "
        "attempts smallint, stream boolean, simulated boolean, price_version bigint, list_price_version bigint, "
        "input_tokens bigint, cached_input_tokens bigint, output_tokens bigint, reasoning_tokens bigint, "
        "unbilled_input_tokens bigint, unbilled_output_tokens bigint, queue_us bigint, ttft_us bigint, "
        "duration_us bigint)"
    )
