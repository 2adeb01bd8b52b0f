"""Bounds of signing in: wrong codes of a second factor in a row, and whether an identity provider has been used.

Processes of the release before count no wrong codes, and a change of a provider by them leaves `used_at` as it is.
"""

from alembic import op

revision = "0082_sign_in_bounds"
down_revision = "0078_identity_providers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE second_factors ADD COLUMN wrong_codes integer NOT NULL DEFAULT 0, "
        "ADD COLUMN wrong_recorded_at timestamptz"
    )
    op.execute("ALTER TABLE identity_providers ADD COLUMN used_at timestamptz")
