"""Settings, read once from the environment at an entry point and passed down as an argument."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.addresses import Address, parse_addresses

_CREDENTIALS = ("DATABASE_URL", "REDIS_URL", "STRIPE_", "DIGITALOCEAN_")
"""Beginnings of the variables with credentials of servers and providers."""


def without_credentials(variables: Mapping[str, str], *others: str) -> dict[str, str]:
    """Variables for a child process that needs no server and no provider; names that begin with one of `others` are
    left out, too."""
    return {name: value for name, value in variables.items() if not name.startswith((*_CREDENTIALS, *others))}


class Settings(BaseSettings):
    """All settings of a role. Variables have the prefix PENSTOCK_, except names that are established elsewhere."""

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_", env_file=None, env_ignore_empty=True, extra="ignore", populate_by_name=True
    )

    database_url: str = Field(default="", validation_alias="DATABASE_URL")
    """postgresql://user:password@host:port/name; the user owns the schema."""
    redis_url: str = Field(default="", validation_alias="REDIS_URL")
    """redis://:password@host:port/db."""
    stripe_api_key: SecretStr = Field(default=SecretStr(""), validation_alias="STRIPE_API_KEY")
    """Secret key of the Stripe account, or of the local simulator; empty = no payments."""
    stripe_webhook_secret: SecretStr = Field(default=SecretStr(""), validation_alias="STRIPE_WEBHOOK_SECRET")
    """Signing secret of Penstock's webhook endpoint at Stripe (whsec_...)."""
    stripe_base_url: str = ""
    """Base URL of Stripe's API; empty = the real one. `penstock up` sets it to the simulator's."""
    smtp_url: SecretStr = SecretStr("")
    """smtp://user:password@host:587 (STARTTLS) or smtps://host:465; empty = mail is only shown in the console."""
    smtp_from: str = ""
    """Sender of mail, such as billing@example.com."""
    webhook_allow_hosts: str = ""
    """Comma-separated hosts that alert webhooks may reach although they are private or use plain HTTP."""
    oidc_allow_hosts: str = ""
    """Comma-separated hosts of identity providers that may be asked although they are private, or use plain HTTP on
    loopback."""
    signing_key: SecretStr = SecretStr("")
    """Ed25519 private key that signs statements and receipts: 64 hex digits; empty = a file in `data_dir`."""
    otlp_endpoint: str = Field(default="", validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    """OTLP/HTTP endpoint for traces; empty = no export."""

    data_dir: Path = Path(".penstock")
    """Directory for this machine's state: embedded services, spools, logs, engine state."""
    host: str = "127.0.0.1"
    """Address that HTTP roles bind."""
    advertise_host: str = ""
    """Address at which API processes reach the engines of this host; empty = `host`, or where that is 0.0.0.0 the one
    that the machine's name has. Engines bind it where it is this machine's, and `host` where it is not (behind NAT)."""
    port: int = 8000
    """Port of the customer API."""
    console_port: int = 8001
    """Port of the console."""
    public_url: str = ""
    """Base URL of the customer API as customers see it, without /v1; empty = http://host:port."""
    responses_kept_days: int = Field(default=30, ge=0, le=3650)
    """Days that responses are stored; 0 = none is stored, whatever requests say."""
    background_per_project: int = Field(default=64, ge=0)
    """Responses of a project that may run in the background at a time; 0 = none, whatever requests say."""
    drain_s: int = Field(default=600, ge=0)
    """Seconds that an API process that is stopped leaves to open answers; what is left then is cut with an error."""
    shutdown_delay_s: float = Field(default=0, ge=0, le=60)
    """Seconds that an API process that is stopped still serves while its readiness check fails, so that load balancers
    send new requests elsewhere before connections are closed; `drain_s` begins afterwards."""
    api_workers: int = 1
    """Number of API processes that share `port`."""
    metrics_port: int = 0
    """This role's internal port for /metrics and /healthz; 0 = any free one."""
    metrics_host: str = "127.0.0.1"
    """Address that the internal port binds; 0.0.0.0 where Prometheus scrapes over a private network."""
    supervisor_pid: int = 0
    """Process id of the `penstock up` that runs this role, which ends with it; 0 = none."""
    supervisor_lock: int = -1
    """File descriptor of its data directory's lock, which this role holds until it has ended; -1 = none."""
    region: str = "local"
    """Name of the region that this role runs in."""

    internal_token: SecretStr = SecretStr("")
    """Secret shared by Penstock's processes, for the scheduler's socket and internal ports."""
    join_token: SecretStr = SecretStr("")
    """One-time token with which an agent gets a secret of its own in place of the internal token; it may also stand in
    the file `join-token` of the data directory."""
    join_required: Literal["remote", "always", "never"] = "remote"
    """Which agents the scheduler accepts by a secret of their own alone, and not by the internal token: remote = those
    that do not connect over loopback."""
    key_pepper: SecretStr = SecretStr("")
    """HMAC key of API-key hashes and cache salts; without it all API keys are invalid."""
    engine_key: SecretStr = SecretStr("")
    """API key that engines require; of external engines it is the operator's."""
    console_secret: SecretStr = SecretStr("")
    """Secret that signs console sessions."""

    scheduler_host: str = "127.0.0.1"
    """Address that the scheduler's socket binds, and where it is found without `schedulers`."""
    scheduler_port: int = 8010
    """Port of that socket."""
    scheduler_tls: Literal["remote", "never"] = "remote"
    """Which connections between schedulers and other processes are by TLS: remote = those not over loopback, on which
    nothing else is accepted."""
    scheduler_ca: Path = Path()
    """Certificates of the authority that signs schedulers'; "." = the private one that schedulers make."""
    scheduler_cert: Path = Path()
    """Certificate of a scheduler, which names scheduler.penstock.internal; "." = issued by the private authority."""
    scheduler_key: Path = Path()
    """Key of that certificate."""
    schedulers: str = ""
    """Addresses of all schedulers for agents, API processes and the console, as host:port,host:port; empty = one, at
    `scheduler_host` and `scheduler_port`."""

    engine: Literal["auto", "vllm", "sim", "external"] = "auto"
    """Which engine serves: auto | vllm | sim | external."""
    engine_url: str = ""
    """Base URLs of external OpenAI-compatible engines, separated by commas."""
    max_num_seqs: int = Field(default=256, ge=1)
    """Sequences that an external engine may run at a time, for each of its models."""
    engine_fleet: int = Field(default=0, ge=0)
    """Engines behind each address of `engine_url`, where a router does not list them itself as vllm-router does; 0 = an
    address is one engine's."""
    context_len: int = Field(default=0, ge=0)
    """Context length, in tokens, of external engines' models that do not state theirs; 0 = assume 131,072."""
    engine_env: Path = Path(".engine")
    """Directory of the engine's own virtual environment."""
    weights_cache_gb: float = Field(default=0.0, ge=0.0)
    """Gigabytes of weights in the hub's cache of a GPU host; beyond it, before a download, the least recently used
    models that no replica of the host needs are removed. 0 = no limit."""
    adapters_per_tenant: int = Field(default=20, ge=0)
    """LoRA adapters that an organisation may have."""
    adapter_max_mb: int = Field(default=512, ge=1, le=1024)
    """Megabytes that one may have."""
    adapters_gb: float = Field(default=20.0, gt=0.0)
    """Gigabytes of LoRA adapters that a host keeps on its disk; beyond it, those that were asked for longest ago go."""
    model: str = ""
    """Model to serve, or several as `NAME,NAME[FIRST-LAST]` with the numbers of their GPUs; empty = the default of this
    machine."""
    profile: str = ""
    """Engine profile of that model, by its name in the catalog; empty = one that fits this machine."""
    replicas: int = Field(default=1, ge=0)
    """Number of replicas on this host; 0 = as many as its GPUs hold."""
    host_kind: str = ""
    """Kind of GPU host that this machine is, by the catalog; empty = found by its GPUs, so that none can be missing."""
    acceptance: Literal["auto", "off"] = "auto"
    """auto = a GPU host is checked before it serves, and one that is not fit serves nothing | off."""
    sim_speedup: float = 1.0
    """Factor by which the simulated engine is faster than its profile."""

    prefix: Literal["auto", "mirrored", "exact"] = "auto"
    """How prompts are matched to prefix caches: mirrored | exact (needs the models' tokenizers) | auto (the catalog
    decides per model)."""
    tokenizer_dir: Path = Path()
    """Tokenizers for exact matching, one directory per model (its name with `--` for `/`); "." = `tokenizers` in the
    data directory. A missing tokenizer is downloaded from the hub."""

    trace_sample: float = 0.01
    """Share of requests whose trace is exported, 0 to 1; traces with an error always are."""
    queue_deadline_s: float = 30.0
    """Longest time that a request waits for a replica."""
    wake_deadline_s: float = Field(default=120.0, ge=0.0, le=600.0)
    """Longest time that a request waits for a model none of whose replicas is awake, in seconds."""
    wake_deadline_priority_s: float | None = Field(default=None, ge=0.0, le=600.0)
    """The same for the priority tier; unset = as `wake_deadline_s`."""
    wake_deadline_batch_s: float | None = Field(default=None, ge=0.0, le=600.0)
    """The same for the batch tier; unset = as `wake_deadline_s`."""
    catalog_max_age_s: float = Field(default=600.0, ge=10.0)
    """Seconds for which models and prices last read from PostgreSQL are used while reading them fails; then requests
    get 503 and the API process is unready."""
    listings_per_min: int = Field(default=600, ge=0)
    """Requests per minute of a credential, in each API process, on all routes beside inference; 0 = no limit."""
    invalid_per_address_per_min: int = Field(default=300, ge=0)
    """Invalid requests per minute of a client address in each API process, above which the keys that sent them are
    refused; 0 = no limit."""
    trusted_proxies: str = ""
    """Addresses and networks, separated by commas, of proxies whose X-Forwarded-For names the client, for the console
    also X-Forwarded-Proto; empty = none, for the console loopback."""
    request_memory_mb: int = Field(default=512, ge=64)
    """MiB of requests in each API process: half for large bodies, half for answers that are not streamed."""
    default_requests_per_min: int = Field(default=3_000, ge=0)
    """Requests per minute of a new organisation; 0 in one of these settings = no such limit."""
    default_input_tokens_per_min: int = Field(default=2_000_000, ge=0)
    """Input tokens per minute of a new organisation."""
    default_output_tokens_per_min: int = Field(default=500_000, ge=0)
    """Output tokens per minute of a new organisation."""
    default_concurrency: int = Field(default=512, ge=0)
    """Requests in progress of a new organisation."""
    default_tokens_per_day: int = Field(default=0, ge=0)
    """Tokens per UTC day of a new organisation."""
    default_credit_limit_usd: Decimal = Field(default=Decimal(1_000), ge=0, le=10**12)
    """US dollars that a new postpaid organisation may owe, unpaid invoices included. Like the next two, it is stored in
    the database by the first start; later changes: `penstock approvals set-rules`."""
    approval_limit_usd: Decimal = Field(default=Decimal(100), ge=0, le=10**12)
    """US dollars that one person may grant, adjust, refund, write off or lend an organisation alone within 30 days."""
    approval_days: int = Field(default=14, ge=1, le=366)
    """Days that an act may wait for another person."""
    token_days: int = Field(default=90, ge=1, le=3650)
    """Days that a token of the admin REST lives when none are stated."""
    token_longest_days: int = Field(default=365, ge=1, le=3650)
    """Days that one may live at most."""
    hold_ttl_s: float = 60.0
    """Time after which a hold that is not renewed expires."""
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR|CRITICAL)$")
    """Level name of the logging module."""

    fleet: str = Field(default="", pattern="^([a-z][a-z0-9-]{0,30}[a-z0-9])?$")
    """Name of this installation at providers of hosts. Hosts carry it in their names and as a tag; those of other
    fleets are never touched. Without it no hosts are created."""
    hosts_dry_run: bool = False
    """Look at providers' hosts and write down what would be done, but create and destroy nothing. `scheduler` and
    `jobs` need the same."""
    hosts_max: int = Field(default=16, ge=0)
    """Hosts that there may be at each provider, those that start and end included; 0 = none are created."""
    hosts_max_usd_per_hour: Decimal = Field(default=Decimal(100), ge=0, le=10**6)
    """US dollars per hour that the hosts of each provider may cost together. A create beyond that is refused."""
    local_hosts: bool = False
    """Run the desired hosts of the provider `local` as processes on this machine; `penstock up` sets it."""
    host_places: str = ""
    """Where the autoscaler's plan creates hosts, by kind: KIND=PROVIDER/REGION,PROVIDER/REGION;KIND=..., tried in this
    order; `*` is for other kinds. Empty = it creates none. `scheduler` and `jobs` need the same."""
    autoscaler_stabilization_s: float = Field(default=300.0, ge=2.0)
    """Seconds for which all observations must allow the removal of a replica."""
    autoscaler_host_idle_s: float = Field(default=0.0, ge=0.0)
    """Most seconds for which a host without awake replicas is kept; 0 = as long as its price and that of a new one
    suggest."""
    digitalocean_token: SecretStr = Field(default=SecretStr(""), validation_alias="DIGITALOCEAN_TOKEN")
    """API token that may read and write droplets, tags and actions; not stored in the database."""
    digitalocean_token_file: Path = Path()
    """File with that token, in place of DIGITALOCEAN_TOKEN."""
    digitalocean_url: str = "https://api.digitalocean.com"
    """Base URL of DigitalOcean's API; plain HTTP is for tests."""
    digitalocean_image: str = ""
    """Id or slug of the image of droplets, such as a snapshot's; empty = DigitalOcean's base image for the GPUs."""
    digitalocean_ssh_keys: str = ""
    """Ids or fingerprints of SSH keys, separated by commas. A key that was just added is refused for a while."""
    digitalocean_vpc: str = ""
    """UUID of the droplets' VPC; empty = the account's default of the region."""
    digitalocean_user_data: Path = Path()
    """File with the operator's own script or cloud-config for the first start of a droplet. What lets it join is added;
    together they have at most 64 KiB."""
    host_schedulers: str = ""
    """Addresses of the schedulers as created hosts reach them, like `schedulers`; empty = hosts are not told to join:
    the operator's own script starts their agents."""

    record_request_traces: bool = True
    """Record every request (times, counts, salted hashes; no text) for `penstock sim replay`."""
    request_traces_keep_days: int = Field(default=7, ge=1, le=366)
    """Retention of recorded requests."""
    request_traces_max_mb: int = Field(default=2048, ge=1)
    """MiB that recorded requests may take; the oldest are deleted first."""

    archive_dir: Path = Path()
    """Directory for closed months of usage in Parquet; "." = `archive` in the data directory."""
    export_dir: Path = Path()
    """Directory that scheduled exports to folders stay below; "." = `exports` in the data directory."""
    export_s3_endpoint: str = ""
    """S3-compatible store of scheduled exports, such as https://ams3.digitaloceanspaces.com; empty = AWS."""
    export_s3_region: str = "us-east-1"
    """Region of the export store."""
    export_s3_key_id: SecretStr = SecretStr("")
    """Access key id of the export store; not stored in the database."""
    export_s3_secret: SecretStr = SecretStr("")
    """Secret access key of the export store; not stored in the database."""
    audit_syslog_url: str = ""
    """Syslog receiver of the audit log: tcp://HOST:PORT, tls://HOST:PORT or udp://HOST:PORT; empty = none."""

    def wake_deadline_of(self, tier: str) -> float:
        """Longest time that a request of `tier` waits for a model none of whose replicas is awake, in seconds."""
        own = {"priority": self.wake_deadline_priority_s, "batch": self.wake_deadline_batch_s}.get(tier)
        return self.wake_deadline_s if own is None else own

    @property
    def schedulers_for_hosts(self) -> tuple[Address, ...]:
        """Where created hosts find schedulers; empty = they are not told. Raises InvalidRequest."""
        return parse_addresses(self.host_schedulers, "PENSTOCK_HOST_SCHEDULERS")

    @property
    def scheduler_addresses(self) -> tuple[Address, ...]:
        """Where schedulers are found. Raises InvalidRequest when `schedulers` is not a list of addresses."""
        listed = parse_addresses(self.schedulers, "PENSTOCK_SCHEDULERS")
        return listed or (Address(self.scheduler_host, self.scheduler_port),)
