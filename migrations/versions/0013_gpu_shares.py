"""Days of usage carry what their GPU time cost us, shared by hour (billing/usage/gpu_shares.py)."""

from pathlib import Path

from alembic import op

from core.db import APP_ROLE, SYSTEM_ROLE
from migrations.support import run

revision = "0013_gpu_shares"
down_revision = "0012_statements"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0013_gpu_shares_sql")
_PARTS = "gpu_input_cost, gpu_output_cost, gpu_us, machine_us"
_SEEN = (
    "day, tenant_id, project_id, key_id, model, tier, region, price_version, list_price_version, simulated, requests, "
    "outcomes, input_tokens, cached_input_tokens, output_tokens, reasoning_tokens, unbilled_input_tokens, "
    "unbilled_output_tokens, cost, list_cost, busy_us"
)


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    # What GPUs cost us is no customer's business: their sessions read every other column.
    op.execute(f"REVOKE SELECT ON usage_days FROM {APP_ROLE}")
    op.execute(f"GRANT SELECT ({_SEEN}) ON usage_days TO {APP_ROLE}")
    op.execute(f"GRANT UPDATE ({_PARTS}) ON usage_days TO {SYSTEM_ROLE}")
