"""LoRA adapters as organisations create, see and delete them, and as agents and API processes read them."""

import io
import socket
import time
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from sqlalchemy import text

from admin import models, prices
from admin.adapter_hub import import_adapter
from admin.adapters import (
    AdapterLimits,
    AdapterView,
    Upload,
    create_adapter,
    list_adapters,
    remove_adapter,
)
from admin.model_life import retire_model
from api.customer.prices import PriceBook
from core.db import Database
from core.errors import (
    Conflict,
    InvalidRequest,
    ModelNotFound,
    ModelRetired,
    NotFound,
    PermissionDenied,
    RequestTooLarge,
    Unavailable,
)
from core.ids import uuid7
from scheduler.adapter_answers import AdapterAnswers
from sim.hub import COMMIT, FakeHub
from tests.integration.admin.rest import Caller
from tests.integration.billing.support import Customer, insert_adapter
from tests.support.adapters import adapter_files
from tests.support.approving import approve_all
from tests.support.tenancy import ADMIN, Organisation, audit_actions, make_organisation, member
from tests.support.waiting import until
from workers.adapter_files import CONFIG, WEIGHTS
from workers.adapter_wire import (
    PART_BYTES,
    AdapterAnswer,
    AdapterPartAnswer,
    AdapterPartQuestion,
    AdapterQuestion,
    AdaptersGone,
    AdaptersKept,
    Answer,
    Question,
)
from workers.adapters import insert_parts
from workers.models import ModelDirectory

MODEL = "penstock/tiny"
LIMITS = AdapterLimits(2, 10**6)
FILES = adapter_files()
WIDE = FILES[CONFIG].replace(b'"r": 4', b'"r": 32')


@pytest.fixture
async def acme(database: Database) -> Organisation:
    await models.add_model(database, ADMIN, name=MODEL)
    return await make_organisation(database)


async def create(
    database: Database, acme: Organisation, name: str = "support", **given: object
) -> AdapterView:
    weights = FILES[WEIGHTS]
    upload = Upload(FILES[CONFIG], io.BytesIO(weights), len(weights))
    facts = {"model": MODEL, "upload": upload, "limits": LIMITS, "tenant_id": acme.tenant_id, **given}
    actor = member(acme.tenant_id, "tenant_developer")
    return await create_adapter(database, actor, name=name, **facts)  # type: ignore[arg-type]


async def answer(database: Database, question: Question) -> Answer:
    found: list[Answer] = []
    answers = AdapterAnswers(database)
    answers.ask(question, found.append)  # type: ignore[arg-type]
    await until(lambda: found)
    await answers.close()
    return found[0]


async def parts(database: Database) -> int:
    async with database.system() as connection:
        return int((await connection.execute(text("SELECT count(*) FROM adapter_parts"))).scalar_one())


async def test_an_adapter_is_stored_called_and_deleted(database: Database, acme: Organisation) -> None:
    made = await create(database, acme)
    assert (made.rank, made.bytes, made.source) == (4, sum(map(len, FILES.values())), "upload")
    assert made.public_name.startswith(f"{MODEL}:support:")
    directory = ModelDirectory(database)
    await directory.refresh()
    found = directory.resolve_for(made.public_name, acme.tenant_id)
    assert (found.name, found.adapter) == (MODEL, made.public_name)
    assert [each.name for each in directory.adapters_of(acme.tenant_id)] == ["support"]
    assert directory.resolve_for(MODEL, acme.tenant_id).adapter == ""

    facts = await answer(database, AdapterQuestion("1", made.public_name))
    assert isinstance(facts, AdapterAnswer)
    for file in facts.files:
        count = -(-file.size // PART_BYTES)
        got = [
            await answer(database, AdapterPartQuestion("2", facts.adapter_id, file.path, part))
            for part in range(count + 1)
        ]
        assert [type(each) for each in got] == [AdapterPartAnswer] * (count + 1)
        assert b"".join(each.data for each in got) == FILES[file.path]  # type: ignore[union-attr]

    await remove_adapter(database, member(acme.tenant_id), adapter_id=made.id, reason="replaced")
    await directory.refresh()
    with pytest.raises(ModelNotFound):
        directory.resolve_for(made.public_name, acme.tenant_id)
    assert await answer(database, AdapterQuestion("3", made.public_name)) == AdapterAnswer("3")
    kept = [str(made.id), str(uuid4())]
    assert await answer(database, AdaptersKept("4", kept)) == AdaptersGone("4", kept)
    assert (await parts(database), await list_adapters(database, ADMIN)) == (0, [])
    assert (await audit_actions(database))[-2:] == ["adapter.create", "adapter.delete"]
    again = await create(database, acme)  # the name is free, and the public name another one
    assert again.public_name != made.public_name


async def test_another_organisation_neither_sees_calls_nor_deletes_it(
    database: Database, acme: Organisation
) -> None:
    made, other = await create(database, acme), await make_organisation(database, "Other")
    theirs = await create(database, other)
    assert theirs.public_name != made.public_name
    directory = ModelDirectory(database)
    await directory.refresh()
    assert directory.deprecation(made.public_name) is None
    with pytest.raises(ModelNotFound) as unknown:
        directory.resolve_for(made.public_name, other.tenant_id)
    assert "support" not in str(unknown.value.details)
    assert [each.id for each in await list_adapters(database, member(other.tenant_id))] == [theirs.id]
    with pytest.raises(NotFound):
        await remove_adapter(database, member(other.tenant_id), adapter_id=made.id)
    with pytest.raises(PermissionDenied):
        await remove_adapter(database, member(acme.tenant_id, "tenant_viewer"), adapter_id=made.id)
    with pytest.raises(PermissionDenied):
        await create(database, acme, "more", tenant_id=other.tenant_id)
    assert {each.id for each in await list_adapters(database, ADMIN)} == {made.id, theirs.id}
    assert [each.id for each in await list_adapters(database, ADMIN, tenant_id=acme.tenant_id)] == [made.id]


async def test_an_adapter_ends_with_its_model_and_is_not_used_for_the_replacement(
    database: Database, acme: Organisation
) -> None:
    made = await create(database, acme)
    await models.add_model(database, ADMIN, name="llama-3.3-70b")
    await retire_model(database, ADMIN, name=MODEL)
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE models SET replacement = 'llama-3.3-70b', redirected = true WHERE name = :name"),
            {"name": MODEL},
        )
    directory = ModelDirectory(database)
    await directory.refresh()
    assert directory.resolve_for(MODEL, acme.tenant_id).name == "llama-3.3-70b"
    with pytest.raises(ModelRetired, match="was retired"):
        directory.resolve_for(made.public_name, acme.tenant_id)
    told = directory.deprecation(made.public_name)
    assert told is not None
    assert told.model == MODEL


@pytest.mark.parametrize(
    ("given", "error", "problem"),
    [
        ({"name": "Support"}, InvalidRequest, "small letters"),
        ({"name": "a:b"}, InvalidRequest, "small letters"),
        ({"model": "no-such"}, NotFound, "no-such"),
        ({"model": "penstock/tiny-embed"}, Conflict, "no engine of the model 'penstock/tiny-embed' takes adapters"),
        ({"limits": AdapterLimits(2, 100)}, RequestTooLarge, "at most 100 are accepted"),
        ({"limits": AdapterLimits(0, 10**6)}, Conflict, "0 adapters, the most it may have"),
        ({"upload": Upload(b"{}", io.BytesIO(b""), 0)}, InvalidRequest, "cannot be read"),
        ({"upload": Upload(FILES[CONFIG], io.BytesIO(b"text"), 4)}, InvalidRequest, "no safetensors file"),
        (
            {"upload": Upload(WIDE, io.BytesIO(FILES[WEIGHTS]), len(FILES[WEIGHTS]))},
            InvalidRequest,
            "has the rank 32, and engines of 'penstock/tiny' load at most 16",
        ),
    ],
)  # fmt: skip
async def test_what_cannot_be_used_is_refused_and_leaves_nothing(
    database: Database, acme: Organisation, given: dict[str, object], error: type[Exception], problem: str
) -> None:
    await models.add_model(database, ADMIN, name="penstock/tiny-embed")
    with pytest.raises(error, match=problem):
        await create(database, acme, **given)  # type: ignore[arg-type]
    assert (await parts(database), await list_adapters(database, ADMIN)) == (0, [])


async def test_a_name_is_taken_once_and_the_number_is_bounded(database: Database, acme: Organisation) -> None:
    await create(database, acme)
    with pytest.raises(Conflict, match="there is an adapter 'support'"):
        await create(database, acme)
    await create(database, acme, "sales")
    with pytest.raises(Conflict, match="2 adapters, the most it may have"):
        await create(database, acme, "third")
    assert await parts(database) == 2 * 2


async def test_parts_of_an_upload_that_never_ended_are_removed_a_day_later(
    database: Database, acme: Organisation
) -> None:
    old, young = uuid7(1_000), uuid7()
    async with database.system() as connection:
        for lost in (old, young):
            await insert_parts(connection, lost, WEIGHTS, [(0, b"x")])
    await create(database, acme)
    assert await parts(database) == 2 + 1


async def test_an_adapter_is_imported_from_the_hub(
    database: Database, acme: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub("acme/support-lora", FILES | {"README.md": b"hello"})
    actor = member(acme.tenant_id)

    async def import_(repository: str = hub.repo, limits: AdapterLimits = LIMITS) -> AdapterView:
        return await import_adapter(
            database, actor, tenant_id=acme.tenant_id, model=MODEL, name="hub", repository=repository,
            revision="main", limits=limits,
        )  # fmt: skip

    with hub.serve() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(RequestTooLarge):
            await import_(limits=AdapterLimits(2, 1000))
        with pytest.raises(NotFound, match="no acme/other"):
            await import_("acme/other")
        with pytest.raises(InvalidRequest, match="OWNER/NAME"):
            await import_("../etc/passwd")
        made = await import_()
        assert made.source == f"acme/support-lora@{COMMIT}"
        assert sorted(hub.downloads) == [CONFIG, WEIGHTS]
        asked = len(hub.downloads)
        with pytest.raises(Conflict, match="there is an adapter 'hub'"):
            await import_()
        assert len(hub.downloads) == asked  # it is known before the hub is asked


async def test_a_hub_that_is_not_reached(
    database: Database, acme: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(Unavailable, match="upload its files") as refused:
        await import_adapter(
            database, member(acme.tenant_id), tenant_id=acme.tenant_id, model=MODEL, name="hub",
            repository="acme/support-lora", revision="main", limits=LIMITS,
        )  # fmt: skip
    assert refused.value.code == "hub_unreachable"


async def test_an_adapter_has_a_price_of_its_own_until_it_is_deleted(
    database: Database, acme: Organisation, admin: Caller
) -> None:
    made, plain = await create(database, acme), await create(database, acme, "plain")
    price = {
        "model": made.public_name,
        "input": "900",
        "cached_input": "90",
        "output": "900",
        "reasoning": "901",
    }
    other = await make_organisation(database, "Other")
    refused = await admin("POST", "/prices", price | {"tenant_id": str(other.tenant_id)})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tenant_id")
    for body in (price, price | {"tier": "batch", "output": "450"}):
        asked = await admin("POST", "/prices", body)
        assert asked.status_code == 202, "as every price of a customer it waits for a second person"
    assert len(await approve_all(database)) == 2
    assert "price.set" in await audit_actions(database)

    seen = {each["name"]: each for each in (await admin("GET", "/adapters")).json()}
    assert [(one["tier"], one["output"], one["status"]) for one in seen["support"]["prices"]] == [
        ("batch", "450.00", "current"), ("standard", "900.00", "current"),
    ]  # fmt: skip
    assert seen["plain"]["prices"] == []
    for_owner = await list_adapters(database, member(acme.tenant_id))
    assert [len(each.prices) for each in for_owner] == [0, 2]
    book = PriceBook(database, 60.0, now=time.monotonic, today=lambda: datetime.now(UTC))
    await book.refresh()
    assert set(book.tiers(acme.tenant_id, MODEL, made.public_name)) == {"standard", "batch"}
    assert not book.tiers(other.tenant_id, MODEL, made.public_name)

    ended = await admin(
        "POST", "/prices/end", {"model": made.public_name, "tier": "batch", "reason": "one price for all"}
    )
    assert ended.status_code == 202, ended.text
    await approve_all(database)
    await remove_adapter(database, member(acme.tenant_id), adapter_id=made.id)
    await remove_adapter(database, member(acme.tenant_id), adapter_id=plain.id)
    history = await prices.list_prices(database, ADMIN, model=made.public_name, history=True)
    assert [(one.tier, one.status) for one in history] == [("batch", "ended"), ("standard", "ended")]


async def test_a_price_of_an_adapter_below_the_cost_of_its_model_is_asked_about(database: Database) -> None:
    await models.add_model(database, ADMIN, name="llama-3.3-70b")
    acme = Customer((await make_organisation(database)).tenant_id)
    await insert_adapter(database, acme, "llama-3.3-70b:support:abcd", "llama-3.3-70b")
    price = {"model": "llama-3.3-70b:support:abcd", "input": "0.01", "output": "0.01"}
    with pytest.raises(Conflict, match=r"below cost: at full load .* with llama-3\.3-70b") as refused:
        await prices.set_price(database, ADMIN, **price)
    assert refused.value.code == "price_below_cost"
    assert (await prices.set_price(database, ADMIN, **price, below_cost=True)).tenant_id == acme.tenant_id
