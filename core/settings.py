"""Settings: read once from the environment at an entry point, then passed down; never a global."""

from decimal import Decimal
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Everything a role can be told from outside. Unprefixed names are the customary ones of the tools behind them."""

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_", env_file=None, extra="ignore", populate_by_name=True
    )

    database_url: str = Field(default="", validation_alias="DATABASE_URL")
    """postgresql://user:password@host:port/name of an owner of the schema."""
    redis_url: str = Field(default="", validation_alias="REDIS_URL")
    """redis://:password@host:port/db."""
    stripe_api_key: SecretStr = Field(default=SecretStr(""), validation_alias="STRIPE_API_KEY")
    """Secret key of the Stripe account, or of the local stand-in; empty = no payments."""
    stripe_webhook_secret: SecretStr = Field(default=SecretStr(""), validation_alias="STRIPE_WEBHOOK_SECRET")
    """Signing secret of our webhook endpoint (whsec_...)."""
    stripe_base_url: str = ""
    """Where Stripe's API is; empty = the real one. `penstock up` points it at `penstock stripe-sim`."""
    smtp_url: SecretStr = SecretStr("")
    """smtp://user:password@host:587 (STARTTLS) or smtps://host:465; empty = mail stays in the console's outbox."""
    smtp_from: str = ""
    """Sender of our mail, such as billing@example.com."""
    webhook_allow_hosts: str = ""
    """Hosts with commas between that alert webhooks may reach although they are private or plain http."""
    signing_key: SecretStr = SecretStr("")
    """Ed25519 private key that signs statements and receipts: 64 hex digits; empty = a file in `data_dir`."""
    otlp_endpoint: str = Field(default="", validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    """Where traces go; empty = nowhere."""

    data_dir: Path = Path(".penstock")
    """State of this machine: embedded services, spools, logs, engine state."""
    host: str = "127.0.0.1"
    """Address that HTTP roles bind."""
    port: int = 8000
    """Customer API."""
    console_port: int = 8001
    public_url: str = ""
    """Base address of the customer API as customers see it, without /v1; empty = http://host:port."""
    api_workers: int = 1
    """API processes sharing `port`."""
    metrics_port: int = 0
    """This role's internal port for /metrics; 0 = any free one."""
    metrics_host: str = "127.0.0.1"
    """Address of the internal port; 0.0.0.0 where Prometheus scrapes over a private network."""
    region: str = "local"

    internal_token: SecretStr = SecretStr("")
    """Shared by our own processes: the scheduler's socket and internal ports demand it."""
    key_pepper: SecretStr = SecretStr("")
    """HMAC key of API-key hashes and cache salts. Losing it invalidates every key."""
    engine_key: SecretStr = SecretStr("")
    """Bearer key that engines demand."""
    console_secret: SecretStr = SecretStr("")
    """Signs console sessions."""

    scheduler_host: str = "127.0.0.1"
    scheduler_port: int = 8010
    """The scheduler's socket for agents and API processes."""

    engine: str = "auto"
    """auto | vllm | sim | external."""
    engine_url: str = ""
    """Base URL of an external OpenAI-compatible engine."""
    engine_env: Path = Path(".engine")
    """The engine's own virtual environment."""
    model: str = ""
    """Model to serve; empty = the default for this machine."""
    replicas: int = 1
    sim_speedup: float = 1.0
    """How much faster than the profile the simulated engine runs."""

    prefix: str = "auto"
    """How prompts are matched to warm caches: mirrored | exact (needs the models' tokenizers) | auto = each model as
    the catalog says."""
    tokenizer_dir: Path = Path()
    """Tokenizers for exact matching, one directory per model (`/` in its name written `--`); the default "." =
    `tokenizers` in the data directory. A model without one there has its tokenizer fetched from the hub."""

    trace_sample: float = 0.01
    """Share of requests traced from the start; errors always are."""
    queue_deadline_s: float = 30.0
    """How long a request may wait for a replica."""
    hold_ttl_s: float = 60.0
    """A hold not renewed for this long is reaped."""
    approval_limit_usd: Decimal = Field(default=Decimal(100), ge=0)
    """Manual adjustments above it, either way, need a second person."""
    log_level: str = "INFO"

    record_shapes: bool = True
    """Keep the shape of every request (times, counts, salted hashes; no text) for `penstock sim replay`."""
    shapes_keep_days: int = Field(default=7, ge=1, le=366)
    shapes_max_mb: int = Field(default=2048, ge=1)
    """The oldest shapes go when all take more."""

    archive_dir: Path = Path()
    """Closed months of usage in Parquet; the default "." = `archive` in the data directory."""
    export_dir: Path = Path()
    """Scheduled exports to folders stay below it; the default "." = `exports` in the data directory."""
    export_s3_endpoint: str = ""
    """S3-compatible store of scheduled exports, such as https://ams3.digitaloceanspaces.com; empty = AWS."""
    export_s3_region: str = "us-east-1"
    export_s3_key_id: SecretStr = SecretStr("")
    export_s3_secret: SecretStr = SecretStr("")
    """Credentials of the export store; never in the database."""
