"""Whose the hosts of a provider are, versions of intents, and one intent for each name."""

from alembic import op

revision = "0057_host_owners"
down_revision = "0056_added_models"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE host_intents ADD COLUMN version integer NOT NULL DEFAULT 0")
    op.execute("ALTER TABLE host_intents ALTER COLUMN version DROP DEFAULT")
    # The agents of hosts that exist may have another host id than the host's name.
    op.execute("ALTER TABLE host_intents ADD COLUMN must_join boolean NOT NULL DEFAULT false")
    op.execute("ALTER TABLE host_intents ALTER COLUMN must_join DROP DEFAULT")
    # Hosts that were adopted may have the name of an earlier intent.
    op.execute(
        "UPDATE host_intents i SET name = i.name || '.' || COALESCE(i.provider_id, i.intent_id::text) "
        "WHERE EXISTS (SELECT FROM host_intents o WHERE o.name = i.name "
        "AND (o.requested_at, o.intent_id) < (i.requested_at, i.intent_id))"
    )
    op.execute("DROP INDEX ix_host_intents_name")
    op.execute("CREATE UNIQUE INDEX uq_host_intents_name ON host_intents (name)")
    op.execute(
        "ALTER TABLE host_providers ADD COLUMN fleet text, ADD COLUMN account text, ADD COLUMN database text, "
        "ADD COLUMN confirmed_at timestamptz, ADD COLUMN notice text, ADD COLUMN noticed_at timestamptz"
    )
    # The names of hosts that were created say of which fleet they are.
    op.execute(
        "UPDATE host_providers p SET fleet = (SELECT left(i.name, -13) FROM host_intents i "
        "WHERE i.provider = p.provider AND i.calls > 0 AND i.name ~ '-[0-9a-f]{12}$' "
        "ORDER BY i.requested_at DESC LIMIT 1) WHERE p.provider <> 'local'"
    )
