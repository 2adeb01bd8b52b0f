"""Second factors of people, their backup codes, and by what a session or token was proved.

Sessions and tokens of before, and those that processes of the release before open, count as proved by a password.
"""

from alembic import op

revision = "0075_second_factors"
down_revision = "0074_region_limits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE second_factors (user_id uuid NOT NULL, sealed_secret bytea NOT NULL, "
        "created_at timestamptz NOT NULL DEFAULT now(), confirmed_at timestamptz, last_step bigint NOT NULL DEFAULT 0, "
        "CONSTRAINT pk_second_factors PRIMARY KEY (user_id), "
        "CONSTRAINT fk_second_factors_user_id FOREIGN KEY (user_id) REFERENCES users (id))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON second_factors TO penstock_system")
    op.execute(
        "CREATE TABLE backup_codes (user_id uuid NOT NULL, hash bytea NOT NULL, used_at timestamptz, "
        "CONSTRAINT pk_backup_codes PRIMARY KEY (user_id, hash), "
        "CONSTRAINT fk_backup_codes_user_id FOREIGN KEY (user_id) REFERENCES second_factors (user_id) "
        "ON DELETE CASCADE)"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON backup_codes TO penstock_system")
    op.execute(
        "ALTER TABLE admin_tokens ADD COLUMN proved_by text NOT NULL DEFAULT 'password' "
        "CONSTRAINT ck_admin_tokens_proved_by CHECK (proved_by IN ('password', 'second_factor', 'oidc'))"
    )
