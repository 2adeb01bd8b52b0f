"""Tables of hosts from providers: what is desired, intents, and every call with its result."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)

from core.columns import clock_instant, instant, pico, string
from core.db import metadata

desired_hosts = Table(
    "desired_hosts",
    metadata,
    string("provider"),
    string("region"),
    string("kind"),
    string("model"),
    Column("count", Integer, nullable=False),
    Column("owner", Text, nullable=False, server_default="person"),
    instant("expires_at", nullable=True),
    Column("image", Text, nullable=False, server_default=""),
    Column("image_before", Text, nullable=False, server_default=""),
    instant("image_at", nullable=True),
    Column("surge", Boolean, nullable=False, server_default=text("true")),
    PrimaryKeyConstraint("provider", "region", "kind", "model"),
    CheckConstraint("count BETWEEN 0 AND 1024", name="count"),
    CheckConstraint("owner IN ('plan', 'person')", name="owner"),
)
"""How many hosts of a group there should be, and who says so: the autoscaler's plan, or a person (until an instant),
whose groups the plan leaves alone. `image`, where it is not empty, is the one from which its hosts are made, and
`image_before` the one that takes its place should it fail (workers/providers/images.py)."""

host_intents = Table(
    "host_intents",
    metadata,
    Column("intent_id", Uuid, primary_key=True),
    string("provider"),
    string("region"),
    string("kind"),
    string("model"),
    string("name"),
    instant("requested_at"),
    Column("version", Integer, nullable=False),
    Column("wanted", Boolean, nullable=False),
    string("why"),
    string("state"),
    instant("called_at", nullable=True),
    Column("calls", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    instant("failed_at", nullable=True),
    instant("next_at", nullable=True),
    Column("provider_id", Text),
    string("status"),
    instant("status_since", nullable=True),
    instant("running_at", nullable=True),
    instant("created_at", nullable=True),
    pico("usd_pico_per_hour", nullable=True),
    Column("billed", Boolean, nullable=False),
    instant("destroy_at", nullable=True),
    instant("missing_since", nullable=True),
    instant("ended_at", nullable=True),
    Column("end_recorded", Boolean, nullable=False),
    instant("reclaim_at", nullable=True),
    instant("drain_until", nullable=True),
    Column("must_join", Boolean, nullable=False),
    Column("image", Text, nullable=False, server_default=""),
    CheckConstraint("state IN ('written', 'called', 'exists', 'ended')", name="state"),
    CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name="ended"),
    Index("ix_host_intents_open", "provider", postgresql_where=text("state <> 'ended'")),
    Index("uq_host_intents_name", "name", unique=True),
    Index("uq_host_intents_provider_id", "provider", "provider_id", unique=True),
)
"""A row for every host that was ever wanted or found (workers/providers/intents.py). Rows are kept: they are costs."""

host_events = Table(
    "host_events",
    metadata,
    Column("event_id", BigInteger, Identity(always=True), primary_key=True),
    clock_instant("at"),
    string("provider"),
    Column("intent_id", Uuid),
    string("call"),
    string("outcome"),
    Column("status", Integer, nullable=False),
    string("detail"),
    Column("provider_id", Text),
    pico("usd_pico_per_hour", nullable=True),
    Index("ix_host_events_intent_id", "intent_id"),
    Index("ix_host_events_at", "at"),
)
"""Every call of a provider: for which intent, what it was, how it ended, and the price of the host per hour."""

host_providers = Table(
    "host_providers",
    metadata,
    Column("provider", Text, primary_key=True),
    instant("not_before", nullable=True),
    instant("whole_at", nullable=True),
    Column("fleet", Text),
    Column("account", Text),
    Column("database", Text),
    instant("confirmed_at", nullable=True),
    Column("notice", Text),
    instant("noticed_at", nullable=True),
)
"""What a pass leaves for the next one: no call before, the last complete list in which no host was missing, whose the
hosts are and when a person confirmed that (workers/providers/ownership.py), and a line for people."""
