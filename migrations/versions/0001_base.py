"""The two roles that sessions drop to, the outbox, and a range type for exclusion constraints over text."""

from alembic import op

from migrations.support import grant

revision = "0001_base"
down_revision = None


def upgrade() -> None:
    for role in ("penstock_app", "penstock_system"):
        # Roles belong to the whole server: another database's migration may be making them at this moment.
        op.execute(
            f"""
            DO $$ BEGIN
              CREATE ROLE {role} NOLOGIN;
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
            END $$
            """
        )
        op.execute(
            f"""
            DO $$ BEGIN
              IF NOT pg_has_role(current_user, '{role}', 'SET') THEN
                GRANT {role} TO CURRENT_USER;
              END IF;
            END $$
            """
        )
        op.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
    op.execute("ALTER DEFAULT PRIVILEGES GRANT USAGE ON SEQUENCES TO penstock_app, penstock_system")
    op.execute('CREATE TYPE textrange AS RANGE (subtype = text, collation = "C")')
    op.execute(
        """
        CREATE TABLE outbox (
            id bigserial,
            topic text NOT NULL,
            payload jsonb NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            done_at timestamptz,
            CONSTRAINT pk_outbox PRIMARY KEY (id)
        )
        """
    )
    op.execute("CREATE INDEX ix_outbox_open ON outbox (id) WHERE done_at IS NULL")
    grant(op, "outbox", app="INSERT")
