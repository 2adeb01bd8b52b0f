"""When a model was deprecated, when it retires, and what takes its place."""

from alembic import op

revision = "0063_model_life"
down_revision = "0062_scheduler_authority"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE models ADD COLUMN deprecated_at timestamptz, ADD COLUMN retires_at timestamptz, "
        "ADD COLUMN replacement text CONSTRAINT fk_models_replacement_models REFERENCES models (name), "
        "ADD COLUMN redirected boolean NOT NULL DEFAULT false, "
        "ADD CONSTRAINT ck_models_replacement CHECK (replacement <> name), "
        "ADD CONSTRAINT ck_models_redirected CHECK (NOT redirected OR replacement IS NOT NULL), "
        "ADD CONSTRAINT ck_models_life CHECK "
        "(status <> 'active' OR num_nonnulls(deprecated_at, retires_at, replacement) = 0)"
    )
