"""Added models in the database: who sees them, what is refused, and what stays of a removed one."""

import asyncio
import os
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from admin import added_models, models, prices, scaling, targets
from admin.added_models import AddedView
from admin.breakeven import breakeven
from admin.breakeven_inputs import Choice
from billing.economics.weights import UNKNOWN, catalog_weights, weights_in_force
from core.db import Database
from core.errors import Conflict, EngineFailed, InvalidRequest, ModelNotFound, PermissionDenied, Unavailable
from core.ids import uuid7
from tests.integration.admin.rest import Caller
from tests.support.tenancy import ADMIN, audit_actions, member
from tests.support.waiting import until
from tests.unit.workers.test_model_config import LLAMA
from workers.added_models import AddedModelDirectory, decode_model, read_added
from workers.catalog import load_catalog
from workers.engine_args import MAX_CHECKS, check_arguments, check_on_host
from workers.model_definition import NewModel, define
from workers.models import ModelDirectory, ModelSpec
from workers.replica_view import EngineRefused

NAME = "acme/llama"
TODAY = date(2026, 11, 27)
FP8 = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}


def new(**changes: Any) -> NewModel:
    facts: dict[str, Any] = {
        "name": NAME,
        "config": FP8,
        "host_kind": "gpu-h100x8-640gb",
        "gpus": 2,
        "args": {"max-model-len": 8_192, "kv-cache-dtype": "fp8"},
    }
    return NewModel(**(facts | changes))


async def add(database: Database, *, engine_env: Path = Path("/nowhere"), **changes: Any) -> AddedView:
    unchecked = engine_env == Path("/nowhere")
    return await added_models.add(
        database, ADMIN, new=new(**changes), engine_env=engine_env, today=TODAY, unchecked=unchecked
    )


def engine(directory: Path, script: str) -> Path:
    """An engine environment whose Python is a shell script."""
    python = directory / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    (directory / "penstock-steps.json").write_text('{"kind": "cpu", "done": {"provided": "1"}}')
    return directory


async def test_everybody_who_knows_the_catalog_knows_the_model(database: Database) -> None:
    directory, scheduler = ModelDirectory(database), AddedModelDirectory(database)
    await directory.refresh()
    with pytest.raises(ModelNotFound):
        directory.resolve(NAME)
    assert scheduler.entry_of(NAME) == ""

    view = await add(database)
    assert (view.basis, view.layout, view.checked, view.status) == ("unvalidated", "4 x TP2", False, "active")
    await directory.refresh()
    info = directory.resolve(NAME)
    assert (info.context_len, info.quantization, "chat" in info.capabilities) == (131_072, "fp8", True)
    await scheduler.refresh()
    entry = decode_model(scheduler.entry_of(NAME))
    assert entry.profile().gpus == 2
    assert [row.tier for row in await targets.list_targets(database, ADMIN, model=NAME)]
    assert [row.model for row in await scaling.list_scaling(database, ADMIN, model=NAME)] == [NAME]
    async with database.read() as connection:
        weights = await weights_in_force(connection, catalog_weights())
    assert weights.of(NAME) != UNKNOWN
    assert weights.of("llama-3.3-70b") == catalog_weights().of("llama-3.3-70b")
    assert [(row.name, row.origin) for row in await models.list_models(database, ADMIN)] == [(NAME, "added")]


async def test_a_dry_run_shows_the_same_and_stores_nothing(database: Database, admin: Caller) -> None:
    shown = await added_models.add(
        database, ADMIN, new=new(), engine_env=Path("/nowhere"), today=TODAY, unchecked=True, dry_run=True
    )
    assert await models.list_models(database, ADMIN) == []
    assert "model.add" not in await audit_actions(database)
    body = {"name": NAME, "config": FP8, "host_kind": "gpu-h100x8-640gb", "gpus": 2, "unchecked": True}
    told = await admin("POST", "/models/added", body | {"dry_run": True})
    assert (told.status_code, told.json()["status"]) == (200, "not added")
    assert await models.list_models(database, ADMIN) == []
    stored = await add(database)
    assert msgspec.structs.replace(shown, status="active") == stored
    with pytest.raises(Conflict, match="there is a model"):
        await added_models.add(
            database, ADMIN, new=new(), engine_env=Path("/nowhere"), today=TODAY, unchecked=True, dry_run=True
        )


async def test_without_a_price_it_is_unpriced_and_break_even_proposes_one(database: Database) -> None:
    await add(database)
    assert [row.model for row in await prices.unpriced(database, ADMIN)] == [NAME]
    choice = Choice(model=NAME, input_tokens=4_000, output_tokens=500)
    view = await breakeven(database, ADMIN, choice=choice)
    assert view.price is None
    [row] = view.layouts
    assert row.revenue_usd_per_hour == "0.00"
    assert row.price is not None
    await prices.set_price(database, ADMIN, model=NAME, input="2", output="9")
    assert await prices.unpriced(database, ADMIN) == []
    assert (await breakeven(database, ADMIN, choice=choice)).price_source.startswith("list price in force")


async def test_a_name_that_is_taken_and_one_that_is_none(database: Database) -> None:
    await add(database)
    with pytest.raises(Conflict, match=r"there is a model 'acme/llama' already \(active\)"):
        await add(database)
    with pytest.raises(Conflict, match="is a model of the catalog"):
        await add(database, name="llama-3.3-70b")
    with pytest.raises(InvalidRequest, match="cannot name a model"):
        await add(database, name="a b")
    await models.add_model(database, ADMIN, name="ext/x", spec=ModelSpec(4_096, 4_096))
    with pytest.raises(Conflict, match="already"):
        await add(database, name="ext/x")
    with pytest.raises(Conflict, match="was not added by an admin"):
        await added_models.remove(database, ADMIN, name="ext/x")


async def test_a_removed_model_is_gone_for_customers_and_may_come_back_otherwise(database: Database) -> None:
    await add(database)
    assert (await added_models.remove(database, ADMIN, name=NAME, note="too slow")).status == "retired"
    directory = ModelDirectory(database)
    await directory.refresh()
    with pytest.raises(ModelNotFound):
        directory.resolve(NAME)
    async with database.read() as connection:
        assert NAME in await read_added(connection), "past hours are shared out by it"
    again = await add(database, gpus=4, args={"max-model-len": 16_384})
    assert (again.layout, again.fit.max_model_len) == ("2 x TP4", 16_384)
    await directory.refresh()
    assert directory.catalog.models[NAME].profile().gpus == 4
    assert await audit_actions(database) == ["model.add", "model.retire", "model.add"]


async def test_an_entry_that_cannot_be_read_hides_only_itself(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await add(database)
    await add(database, name="acme/newer")
    async with database.system() as connection:
        await connection.execute(
            text(
                "UPDATE added_models SET definition = '{\"from\": \"the future\"}' WHERE name = 'acme/newer'"
            )
        )
    scheduler = AddedModelDirectory(database)
    await scheduler.refresh()
    await scheduler.refresh()
    assert list(scheduler.models) == [NAME]
    assert caplog.text.count("acme/newer cannot be read") == 1


async def test_the_engines_parser_decides_on_arguments(database: Database, tmp_path: Path) -> None:
    wrong = engine(tmp_path / "a", 'echo usage; echo "vllm serve: error: no argument $4" >&2; exit 2')
    with pytest.raises(InvalidRequest, match="vLLM refuses the arguments: no argument acme/llama"):
        await add(database, engine_env=wrong)
    broken = engine(tmp_path / "b", 'echo "ImportError: torch" >&2; exit 1')
    with pytest.raises(Unavailable, match="parser failed: ImportError: torch"):
        await add(database, engine_env=broken)
    with pytest.raises(Unavailable, match="there is no engine in"):
        await add(database, engine_env=tmp_path / "c")
    assert await models.list_models(database, ADMIN) == []
    fine = engine(tmp_path / "d", f'echo "$@" > {tmp_path}/words')
    checked = await add(database, engine_env=fine)
    assert (checked.checked, checked.warning) == (True, None)
    words = (tmp_path / "words").read_text()
    assert "acme/llama --served-model-name acme/llama --max-model-len 8192" in words


async def test_the_first_host_checks_what_was_added_without_it(tmp_path: Path) -> None:
    """Before any weights are fetched, and once for each command line that the parser takes."""
    model, _ = define(load_catalog().hosts, new(), TODAY)
    profile = model.profile()
    refuses = engine(tmp_path / "a", "echo 'vllm serve: error: unrecognized arguments: --x' >&2; exit 2")
    with pytest.raises(EngineRefused, match="vLLM refuses the arguments: unrecognized arguments: --x"):
        await check_on_host(model, profile, refuses)
    with pytest.raises(EngineFailed, match="could not be checked: the engine's parser failed: killed"):
        await check_on_host(model, profile, engine(tmp_path / "b", "echo killed >&2; exit 1"))
    with pytest.raises(EngineFailed, match="could not be checked"):
        await check_on_host(model, profile, tmp_path / "none")
    takes = engine(tmp_path / "c", f"echo >> {tmp_path}/asked")
    for _ in range(2):
        await check_on_host(model, profile, takes)
    assert (tmp_path / "asked").read_text() == "\n"


async def test_few_checks_run_at_once_and_one_more_is_told_to_wait(tmp_path: Path) -> None:
    """Each check waits at a pipe: another one is refused before it starts, and there is room again afterwards."""
    os.mkfifo(tmp_path / "gate")
    model, _ = define(load_catalog().hosts, new(), TODAY)
    waits = engine(tmp_path / "a", f'echo >> {tmp_path}/begun; read line < "{tmp_path}/gate"; exit 0')
    checks = [asyncio.create_task(check_arguments(model, waits)) for _ in range(MAX_CHECKS)]
    await until(lambda: (tmp_path / "begun").exists() and len((tmp_path / "begun").read_text()) == MAX_CHECKS)
    with pytest.raises(Unavailable, match="2 checks of arguments run already; try again in 10 s") as refused:
        await check_arguments(model, waits)
    assert (refused.value.code, refused.value.retry_after_s) == ("engine_checks_busy", 10.0)
    with (tmp_path / "gate").open("w") as gate:
        gate.write("go\n" * MAX_CHECKS)
        gate.flush()
        await asyncio.gather(*checks)
    await check_arguments(model, engine(tmp_path / "b", "exit 0"))


async def test_only_admins_add_models(database: Database) -> None:
    with pytest.raises(PermissionDenied):
        await added_models.add(
            database, member(uuid7()), new=new(), engine_env=Path("/nowhere"), today=TODAY, unchecked=True
        )


async def test_rest_takes_the_configuration_and_reads_no_directory(database: Database, admin: Caller) -> None:
    body = {
        "name": NAME,
        "host_kind": "gpu-h100x8-640gb",
        "gpus": 2,
        "weights": "/etc",
        "args": {"max-model-len": 8_192, "kv-cache-dtype": "fp8"},
        "unchecked": True,
    }
    refused = await admin("POST", "/models/added", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "config")
    refused = await admin("POST", "/models/added", body | {"config": FP8, "args": {"x": [1]}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "args")
    made = await admin("POST", "/models/added", body | {"config": FP8})
    assert made.status_code == 201, made.text
    assert made.json()["command"].startswith("vllm serve /etc --served-model-name acme/llama")
    listed = (await admin("GET", "/models")).json()
    assert [(row["name"], row["origin"]) for row in listed] == [(NAME, "added")]
    gone = await admin("POST", "/models/removed", {"name": NAME})
    assert gone.json()["status"] == "retired"


async def test_a_model_of_the_hub_is_read_from_there(
    database: Database, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(
        hub_id: str, file: str, *, revision: str | None, dry_run: bool = False, local_dir: str = ""
    ) -> object:
        if dry_run:
            return SimpleNamespace(file_size=100, commit_hash=revision)
        asked.append((hub_id, file, revision))
        if hub_id == "acme/none":
            raise OSError("no network")
        (Path(local_dir) / file).write_bytes(msgspec.json.encode(FP8))
        return str(Path(local_dir) / file)

    monkeypatch.setattr("workers.model_config.hf_hub_download", download)
    body = {"name": NAME, "host_kind": "gpu-h100x8-640gb", "gpus": 4, "revision": "v2", "unchecked": True}
    made = await admin("POST", "/models/added", body)
    assert made.status_code == 201, made.text
    assert "--revision v2" in made.json()["command"]
    assert "no engine's parser has checked the arguments" in made.json()["warning"]
    missing = await admin("POST", "/models/added", body | {"name": "acme/none"})
    assert (missing.status_code, "could not be fetched" in missing.text) == (503, True)
    assert asked == [(NAME, "config.json", "v2"), ("acme/none", "config.json", "v2")]
