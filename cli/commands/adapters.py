"""`penstock adapters`: LoRA adapters of organisations."""

from pathlib import Path
from typing import Annotated

import typer

from admin.actor import Actor
from admin.adapter_hub import import_adapter
from admin.adapters import AdapterLimits, Upload, create_adapter, list_adapters, remove_adapter
from cli.context import AsJson, DataDir, perform
from cli.tenancy import MaybeReason, TenantRef, open_db_for_changes, parse_id, tenant_id_of
from core.db import Database
from core.errors import InvalidRequest
from core.settings import Settings
from workers.adapter_files import CONFIG, MAX_CONFIG_BYTES, WEIGHTS

app = typer.Typer(no_args_is_help=True, help="LoRA adapters: upload, import from the hub, list, delete.")

Model = Annotated[str, typer.Option(help="The model that it changes.")]
Name = Annotated[str, typer.Option(help="Its name: small letters, digits and hyphens.")]


@app.command("list", epilog="Example: penstock adapters list acme-robotics")
def list_(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the adapters of an organisation."""

    async def act(database: Database, who: Actor) -> object:
        return await list_adapters(database, who, tenant_id=await tenant_id_of(database, who, tenant))

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(
    epilog="Example: penstock adapters upload acme-robotics ./support --model llama-3.3-70b --name support"
)
def upload(
    tenant: TenantRef,
    directory: Annotated[Path, typer.Argument(help=f"With {CONFIG} and {WEIGHTS}, as PEFT writes them.")],
    model: Model,
    name: Name,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Store an adapter. Requests use it by the public name that this shows."""
    limits = AdapterLimits.of(Settings())

    async def act(database: Database, who: Actor) -> object:
        try:
            with (directory / CONFIG).open("rb") as config, (directory / WEIGHTS).open("rb") as weights:
                size = (directory / WEIGHTS).stat().st_size
                files = Upload(config.read(MAX_CONFIG_BYTES + 1), weights, size)
                tenant_id = await tenant_id_of(database, who, tenant)
                return await create_adapter(
                    database, who, tenant_id=tenant_id, model=model, name=name, upload=files, limits=limits
                )
        except OSError as error:
            raise InvalidRequest(f"cannot read {error.filename}: {error.strerror}") from None

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(
    "import",
    epilog="Example: penstock adapters import acme-robotics acme/support-lora --model llama-3.3-70b --name support",
)
def import_(
    tenant: TenantRef,
    repository: Annotated[str, typer.Argument(help="OWNER/NAME on the model hub.")],
    model: Model,
    name: Name,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit.")] = "main",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch an adapter from the model hub and store it."""
    limits = AdapterLimits.of(Settings())

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await import_adapter(
            database,
            who,
            tenant_id=tenant_id,
            model=model,
            name=name,
            repository=repository,
            revision=revision,
            limits=limits,
        )

    perform(act, data_dir, as_json, opening=open_db_for_changes)


@app.command(
    epilog='Example: penstock adapters delete 0198c0de-7a11-7000-8000-5f2b6c1d9e30 --reason "replaced"'
)
def delete(
    adapter_id: Annotated[str, typer.Argument(metavar="ADAPTER_ID", help="Id of the adapter.")],
    reason: MaybeReason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Delete an adapter: requests for it are refused within seconds, and hosts remove its files."""

    async def act(database: Database, who: Actor) -> object:
        return await remove_adapter(database, who, adapter_id=parse_id(adapter_id, "adapter"), reason=reason)

    perform(act, data_dir, as_json, opening=open_db_for_changes)
