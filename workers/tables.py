"""Tables of models, hosts and host-hours, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    Interval,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    false,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from core.columns import clock_instant, count, instant, pico, string, tenant
from core.db import metadata

models = Table(
    "models",
    metadata,
    Column("name", Text, primary_key=True),
    Column("status", Text, nullable=False, server_default="active"),
    Column("alias_of", Text, ForeignKey("models.name")),
    Column("note", Text),
    instant("created_at", now=True),
    Column("context_len", Integer),
    Column("max_output_tokens", Integer),
    Column("capabilities", ARRAY(Text)),
    instant("deprecated_at", nullable=True),
    instant("retires_at", nullable=True),
    Column("replacement", Text, ForeignKey("models.name")),
    Column("redirected", Boolean, nullable=False, server_default=false()),
    Column("wake_deadline_s", Double),
    CheckConstraint("status IN ('active', 'deprecated', 'retired')", name="status"),
    CheckConstraint("alias_of <> name", name="alias"),
    CheckConstraint("replacement <> name", name="replacement"),
    CheckConstraint("NOT redirected OR replacement IS NOT NULL", name="redirected"),
    CheckConstraint(
        "status <> 'active' OR num_nonnulls(deprecated_at, retires_at, replacement) = 0", name="life"
    ),
    CheckConstraint(
        "num_nonnulls(context_len, max_output_tokens, capabilities) IN (0, 3) AND context_len > 1 "
        "AND max_output_tokens BETWEEN 1 AND context_len",
        name="spec",
    ),
    CheckConstraint("wake_deadline_s BETWEEN 0 AND 600", name="wake_deadline"),
)
"""Models that customers may use. An alias refers to a model, never to another alias. A model that the catalog does not
have carries its own context length, longest answer and capabilities. From `retires_at` on a model is retired, whatever
its status says; then `replacement` answers requests for it, if `redirected` (workers/model_life.py).
`wake_deadline_s`: how long its requests wait while a replica wakes (NULL = as the catalog or the settings say)."""

added_models = Table(
    "added_models",
    metadata,
    Column("name", Text, ForeignKey("models.name"), primary_key=True),
    string("definition"),
    clock_instant("added_at"),
)
"""Entries of models that admins have added, as the catalog's, in JSON (workers/added_models.py)."""

adapters = Table(
    "adapters",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    Column("model", Text, ForeignKey("models.name"), nullable=False),
    string("name"),
    Column("public_name", Text, nullable=False, unique=True),
    string("source"),
    Column("rank", Integer, nullable=False),
    count("bytes"),
    Column("files", JSONB, nullable=False),
    instant("created_at", now=True),
    instant("deleted_at", nullable=True),
    Index(
        "uq_adapters_tenant_id_model_name",
        "tenant_id",
        "model",
        "name",
        unique=True,
        postgresql_where=text("deleted_at IS NULL"),
    ),
)
"""LoRA adapters of organisations for a model (workers/adapters.py). Requests and engines call one by its
`public_name`; `source` is `upload` or REPOSITORY@COMMIT of the hub. Rows of deleted ones stay for reports."""

adapter_parts = Table(
    "adapter_parts",
    metadata,
    Column("adapter_id", Uuid, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""The files of adapters in parts of workers.adapter_wire.PART_BYTES. Parts come before the row of their adapter, and go
with its deletion."""

model_targets = Table(
    "model_targets",
    metadata,
    Column("model", Text, ForeignKey("models.name"), nullable=False),
    string("tier"),
    Column("ttft_s", Double, nullable=False),
    Column("tpot_s", Double, nullable=False),
    PrimaryKeyConstraint("model", "tier"),
    CheckConstraint("tier IN ('priority', 'standard', 'batch')", name="tier"),
    CheckConstraint(
        "ttft_s BETWEEN 0.001 AND 3600 AND tpot_s BETWEEN 0.0001 AND 3600",
        name="seconds",
    ),
)
"""What an admin has promised a tier of a model in place of the catalog's figures, in seconds."""

model_scaling = Table(
    "model_scaling",
    metadata,
    Column("model", Text, ForeignKey("models.name"), primary_key=True),
    Column("min_awake", Integer, nullable=False),
    Column("max_awake", Integer, nullable=False),
    pico("budget_usd_pico_per_hour", nullable=True),
    Column("host_kinds", ARRAY(Text), nullable=False),
    Column("acting", Text),
    pico("budget_usd_pico_per_month", nullable=True),
    Column("profile", Text, nullable=False, server_default=""),
    Column("regions", JSONB, nullable=False, server_default="[]"),
    Column("kinds", JSONB, nullable=False, server_default="[]"),
    Column("shares", Text, nullable=False, server_default=""),
    CheckConstraint("0 <= min_awake AND min_awake <= max_awake AND max_awake <= 1024", name="replicas"),
    CheckConstraint("budget_usd_pico_per_hour >= 0", name="budget"),
    CheckConstraint("acting IN ('off', 'dry-run', 'on')", name="acting"),
    CheckConstraint("budget_usd_pico_per_month >= 0", name="month"),
)
"""What an admin allows the autoscaler to do for a model: replicas awake, picodollars per hour and UTC month (NULL = no
limit), the kinds of hosts that may be created, in the order in which they are tried, the profile with which they serve
it (empty = the first that fits), limits of single regions and of kinds of hosts, the models with which it shares hosts
(empty = none), and whether its plan is acted on (NULL = as the platform's)."""

rollouts = Table(
    "rollouts",
    metadata,
    Column("rollout_id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("model", Text, ForeignKey("models.name"), nullable=False),
    Column("before", JSONB, nullable=False),
    Column("after", JSONB, nullable=False),
    Column("image", JSONB),
    Column("strategy", JSONB, nullable=False),
    string("state"),
    string("reason"),
    Column("progress", JSONB, nullable=False),
    clock_instant("started_at"),
    clock_instant("changed_at"),
    instant("ended_at", nullable=True),
    CheckConstraint(
        "state IN ('canary', 'progressing', 'rolling_back', 'promoted', 'rolled_back')", name="state"
    ),
    CheckConstraint("(ended_at IS NULL) = (state NOT IN ('promoted', 'rolled_back'))", name="ended"),
    Index("uq_rollouts_active", "model", unique=True, postgresql_where=text("ended_at IS NULL")),
    Index("ix_rollouts_started_at", "started_at"),
)
"""Rollouts of new versions of models' engines, or of an image of hosts (workers/rollouts.py); a model has one at a
time."""

model_deployments = Table(
    "model_deployments",
    metadata,
    Column("model", Text, ForeignKey("models.name"), primary_key=True),
    Column("spec", JSONB, nullable=False),
    clock_instant("since"),
)
"""The version that a model's engines have to have since its last rollout ended (workers/engine_spec.py)."""

replica_holds = Table(
    "replica_holds",
    metadata,
    Column("model", Text, ForeignKey("models.name"), primary_key=True),
    Column("awake", Integer, nullable=False),
    instant("until"),
    string("reason"),
    CheckConstraint("awake BETWEEN 0 AND 1024", name="awake"),
)
"""How many replicas of a model are awake until an instant, by a person's decision, whatever the autoscaler needs."""

hosts = Table(
    "hosts",
    metadata,
    Column("host_id", Text, primary_key=True),
    string("host_kind"),
    string("region"),
    Column("gpus", Integer, nullable=False),
    instant("first_seen", now=True),
    instant("last_seen", now=True),
    Column("address", Text, nullable=False, server_default=""),
    Column("agent_version", Text, nullable=False, server_default=""),
)
"""Hosts that have ever sent a heartbeat. `address` is where their agents say that engines are reached."""

host_credentials = Table(
    "host_credentials",
    metadata,
    Column("host_id", Text, primary_key=True),
    instant("invited_at"),
    Column("join_hash", LargeBinary),
    instant("join_expires_at", nullable=True),
    Column("join_used_by", LargeBinary),
    Column("secret_hash", LargeBinary),
    instant("joined_at", nullable=True),
    instant("revoked_at", nullable=True),
    Column("earlier_join_hashes", ARRAY(LargeBinary), nullable=False, server_default=text("'{}'")),
    Column("previous_hash", LargeBinary),
    instant("previous_until", nullable=True),
    Column("rotation_overlap", Interval),
    instant("rotated_at", nullable=True),
    CheckConstraint("(join_hash IS NULL) = (join_expires_at IS NULL)", name="join"),
    CheckConstraint("(previous_hash IS NULL) = (previous_until IS NULL)", name="previous"),
)
"""Who may report as a host: SHA-256 of its join token, of those of earlier attempts at the same create, of the secret
that used it, of the secret that holds, and of the one before, which holds until `previous_until`. `rotation_overlap`:
an admin has asked for a new secret, and the old one is to hold so long."""

host_acceptances = Table(
    "host_acceptances",
    metadata,
    string("host_id"),
    instant("checked_at"),
    string("verdict"),
    Column("findings", JSONB, nullable=False),
    Column("figures", JSONB, nullable=False),
    clock_instant("stored_at"),
    PrimaryKeyConstraint("host_id", "checked_at"),
    CheckConstraint("verdict IN ('accepted', 'degraded', 'refused')", name="verdict"),
    Index("ix_host_acceptances_checked_at", "checked_at"),
)
"""What the checks of a GPU host found (workers/acceptance), a row for each; `checked_at` is by the host's clock."""

host_seconds = Table(
    "host_seconds",
    metadata,
    string("host_id"),
    string("boot_id"),
    instant("hour"),
    string("state"),
    count("seconds"),
    PrimaryKeyConstraint("host_id", "boot_id", "hour", "state"),
    CheckConstraint("seconds >= 0", name="seconds"),
    Index("ix_host_seconds_hour", "hour"),
)
"""Seconds of a host in each state, per UTC hour and run of its agent's accounting."""

model_seconds = Table(
    "model_seconds",
    metadata,
    string("host_id"),
    string("boot_id"),
    instant("hour"),
    string("model"),
    string("state"),
    count("seconds"),
    PrimaryKeyConstraint("host_id", "boot_id", "hour", "model", "state"),
    CheckConstraint("seconds >= 0", name="seconds"),
    Index("ix_model_seconds_hour", "hour"),
)
"""Replica seconds by model and state, weighted by the replica's share of its host."""

host_prices = Table(
    "host_prices",
    metadata,
    string("host_kind"),
    pico("usd_pico_per_hour"),
    instant("effective_from"),
    string("source"),
    PrimaryKeyConstraint("host_kind", "effective_from"),
    CheckConstraint("usd_pico_per_hour >= 0", name="price"),
)
"""Price of a host per hour from an instant on, in picodollars."""

engine_counters = Table(
    "engine_counters",
    metadata,
    Column("boot_id", Text, primary_key=True),
    string("replica_id"),
    string("model"),
    string("engine"),
    Column("simulated", Boolean, nullable=False),
    Column("version", Text, nullable=False, server_default=""),
    clock_instant("first_seen"),
    instant("last_seen"),
    instant("scraped_at"),
    instant("ended_at", nullable=True),
    count("prompt_tokens"),
    count("generation_tokens"),
    count("cached_prompt_tokens"),
    count("warmup_prompt_tokens"),
    count("warmup_generation_tokens"),
    Index("ix_engine_counters_last_seen", "last_seen"),
)
"""Cumulative token counters of each engine incarnation at its last scrape; they never decrease. `version` is that of
the last rollout: usage rows lead to it by their `boot_id`."""

engine_cuts = Table(
    "engine_cuts",
    metadata,
    Column("boot_id", Text, primary_key=True),
    Column("cut_at", DateTime(timezone=True), primary_key=True),
    count("prompt_tokens"),
    count("generation_tokens"),
)
"""Consistent cuts: instants at which an engine was idle with nothing placed on it, with its counters."""

maintenance = Table(
    "maintenance",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False, server_default="1"),
    string("notice"),
    clock_instant("began_at"),
    instant("expected_end", nullable=True),
    CheckConstraint("id = 1", name="one_row"),
)
"""The platform's maintenance. At most one row; none = requests are served."""
