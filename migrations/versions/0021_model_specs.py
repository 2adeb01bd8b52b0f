"""A model that the catalog does not have is described by its own row: context length, longest answer, capabilities."""

from alembic import op

revision = "0021_model_specs"
down_revision = "0020_request_traces"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE models ADD COLUMN context_len integer, ADD COLUMN max_output_tokens integer, "
        "ADD COLUMN capabilities text[], ADD CONSTRAINT ck_models_spec CHECK ("
        "num_nonnulls(context_len, max_output_tokens, capabilities) IN (0, 3) AND context_len > 1 "
        "AND max_output_tokens BETWEEN 1 AND context_len)"
    )
