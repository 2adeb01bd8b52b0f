"""Tokens end and have scopes; sessions of the console are rows, so that they are listed and ended one by one.

Tokens of before keep what they could do, for a year at most. Who is signed in to the console signs in again.

Processes of the release before go on during a rolling upgrade. They write `users.sessions_from`, which a revision of
the next release drops, and insert tokens without `kind` and with a null `expires_at`: the trigger of
tenants/sql/old_tokens.sql fills in both.
"""

from alembic import op

revision = "0070_token_scopes"
down_revision = "0069_silent_hosts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE admin_tokens ADD COLUMN kind text "
        "CONSTRAINT ck_admin_tokens_kind CHECK (kind IN ('token', 'session', 'console')), "
        "ADD COLUMN scopes text[] NOT NULL DEFAULT '{read,write,access}', "
        "ADD COLUMN address text NOT NULL DEFAULT '', ADD COLUMN client text NOT NULL DEFAULT ''"
    )
    op.execute("UPDATE admin_tokens SET kind = CASE WHEN expires_at IS NULL THEN 'token' ELSE 'session' END")
    op.execute(
        "UPDATE admin_tokens SET expires_at = coalesce(revoked_at, now() + interval '365 days') "
        "WHERE expires_at IS NULL"
    )
    op.execute(
        "ALTER TABLE admin_tokens ALTER COLUMN kind SET NOT NULL, ALTER COLUMN expires_at SET NOT NULL, "
        "ALTER COLUMN expires_at SET DEFAULT now() + interval '365 days'"
    )
