"""The end of models as administrators decide it, and as the API processes and the organisations learn of it."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from admin import model_life, models, prices
from admin.actor import Actor
from core.db import Database
from core.errors import Conflict, InvalidRequest, ModelNotFound, ModelRetired, NotFound, PermissionDenied
from tests.support.clock import ManualClock
from tests.support.tenancy import ADMIN, audit_actions, make_organisation, member
from tests.support.waiting import until
from workers.models import ModelDirectory

OLD, NEW = "llama-3.3-70b", "qwen3.5-397b"
DATE = "2999-01-01"


@pytest.fixture
async def offered(database: Database) -> Database:
    """Two models, the old one with an alias."""
    for name in (OLD, NEW):
        await models.add_model(database, ADMIN, name=name)
        await prices.set_price(database, ADMIN, model=name, input="1", output="2")
    await models.set_alias(database, ADMIN, name="fast", target=OLD)
    return database


async def answers(database: Database, clock: ManualClock, *names: str) -> list[str]:
    """By which model each name is answered."""
    directory = ModelDirectory(database, today=clock.now)
    await directory.refresh()
    return [directory.resolve(name).name for name in names]


async def test_a_model_retires_at_its_date_without_another_read(offered: Database) -> None:
    await model_life.deprecate_model(
        offered, ADMIN, name=OLD, retires_at=DATE, replacement=NEW, note="The weights go"
    )
    clock = ManualClock(datetime.fromisoformat("2998-12-31T23:59:59+00:00"))
    directory = ModelDirectory(offered, today=clock.now)
    await directory.refresh()
    assert directory.resolve("fast").status == "deprecated"
    told = directory.deprecation("fast")
    assert told is not None
    assert (told.replacement, told.retired) == (NEW, False)
    clock.advance(1)
    for name in (OLD, "fast"):
        with pytest.raises(ModelRetired, match=f"retired on 2999-01-01. Use '{NEW}' instead. The weights go"):
            directory.resolve(name)
    assert [model.name for model in directory.list()] == [NEW]
    assert directory.largest_context([OLD]) == 0
    told = directory.deprecation(OLD)
    assert told is not None
    assert told.retired


async def test_a_replacement_answers_from_the_date_on(offered: Database) -> None:
    await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW, retires_at=DATE)
    clock = ManualClock(datetime.fromisoformat("2998-12-31T23:59:59+00:00"))
    assert await answers(offered, clock, OLD, "fast") == [OLD, OLD]
    clock.advance(1)
    assert await answers(offered, clock, OLD, "fast", NEW) == [NEW, NEW, NEW]
    directory = ModelDirectory(offered, today=clock.now)
    await directory.refresh()
    [model] = directory.list()
    assert model.aliases == ("fast", OLD)
    view = await model_life.retire_model(offered, ADMIN, name=OLD)
    assert (view.status, view.redirected) == ("retired", False), "retired means refused"
    with pytest.raises(ModelRetired):
        await answers(offered, clock, OLD)


async def test_a_retired_model_may_be_replaced_and_offered_again(offered: Database) -> None:
    retired = await model_life.retire_model(offered, ADMIN, name=OLD, note="gone")
    replaced = await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW)
    assert (replaced.retires_at, replaced.redirected) == (retired.retires_at, True)
    clock = ManualClock()
    assert await answers(offered, clock, "fast") == [NEW]
    again = await models.add_model(offered, ADMIN, name=OLD)
    assert (again.status, again.deprecated_at, again.replacement, again.redirected) == (
        "active", None, None, False,
    )  # fmt: skip
    assert await answers(offered, clock, "fast") == [OLD]


async def test_a_deprecation_is_called_off_by_offering_the_model_again(offered: Database) -> None:
    await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW, retires_at=DATE)
    again = await models.add_model(offered, ADMIN, name=OLD)
    assert (again.status, again.retires_at, again.redirected) == ("active", None, False)
    assert (await models.list_models(offered, ADMIN))[1] == again
    with pytest.raises(Conflict, match="already"):
        await models.add_model(offered, ADMIN, name=OLD)


async def test_an_act_that_changes_nothing_writes_nothing(offered: Database) -> None:
    before = await audit_actions(offered)
    for _ in range(2):
        await models.set_alias(offered, ADMIN, name="fast", target=OLD)
    assert await audit_actions(offered) == before
    for _ in range(2):
        await model_life.deprecate_model(offered, ADMIN, name=OLD, retires_at=DATE, replacement=NEW)
        await model_life.deprecate_model(offered, ADMIN, name=OLD)
    for _ in range(2):
        await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW)
    for _ in range(2):
        await model_life.retire_model(offered, ADMIN, name="fast")
    assert (await audit_actions(offered))[len(before) :] == [
        "model.deprecate",
        "model.replace",
        "model.retire",
    ]


async def test_a_date_and_a_replacement_can_be_taken_back(offered: Database) -> None:
    first = await model_life.deprecate_model(offered, ADMIN, name=OLD, retires_at=DATE, replacement=NEW)
    none = await model_life.deprecate_model(offered, ADMIN, name=OLD, retires_at="none", replacement="none")
    assert (none.retires_at, none.replacement, none.deprecated_at) == (None, None, first.deprecated_at)
    planned = await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW, retires_at=DATE)
    assert (planned.status, planned.redirected) == ("deprecated", True)
    later = await model_life.deprecate_model(offered, ADMIN, name=OLD, retires_at="2999-02-01")
    assert later.redirected, "another date changes nothing else"
    told = await model_life.deprecate_model(offered, ADMIN, name=OLD, replacement=NEW)
    assert not told.redirected


async def test_a_replacement_without_a_date_is_only_told(offered: Database) -> None:
    await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW, retires_at=DATE)
    stays = await model_life.deprecate_model(offered, ADMIN, name=OLD, retires_at="none")
    assert (stays.retires_at, stays.replacement, stays.redirected) == (None, NEW, False)


async def test_an_alias_that_is_saved_again_keeps_its_end(offered: Database) -> None:
    going = await model_life.deprecate_model(
        offered, ADMIN, name="fast", retires_at=DATE, note="Ask for it by name"
    )
    assert await models.set_alias(offered, ADMIN, name="fast", target=OLD) == going
    moved = await models.set_alias(offered, ADMIN, name="fast", target=NEW)
    assert (moved.alias_of, moved.status, moved.retires_at, moved.note) == (
        NEW, "deprecated", going.retires_at, going.note,
    )  # fmt: skip
    again = await models.add_model(offered, ADMIN, name="fast")
    assert (again.alias_of, again.status, again.retires_at) == (NEW, "active", None)
    with pytest.raises(Conflict, match="already"):
        await models.add_model(offered, ADMIN, name="fast")
    await model_life.retire_model(offered, ADMIN, name="fast")
    back = await models.set_alias(offered, ADMIN, name="fast", target=NEW)
    assert (back.status, back.retires_at) == ("active", None)


async def test_what_cannot_be_meant_is_refused(offered: Database) -> None:
    async def deprecate(**fields: Any) -> None:
        await model_life.deprecate_model(offered, ADMIN, name=OLD, **fields)

    with pytest.raises(InvalidRequest, match="which is past"):
        await deprecate(retires_at="2020-01-01")
    with pytest.raises(InvalidRequest, match="retires_at must be a date"):
        await deprecate(retires_at="soon")
    with pytest.raises(NotFound, match="no model 'nothing'"):
        await deprecate(replacement="nothing")
    with pytest.raises(Conflict, match="is an alias of"):
        await deprecate(replacement="fast")
    with pytest.raises(Conflict, match="is the model itself"):
        await deprecate(replacement=OLD)
    await model_life.deprecate_model(offered, ADMIN, name=NEW, retires_at=DATE)
    with pytest.raises(Conflict, match="to retire itself at 2999-01-01"):
        await deprecate(replacement=NEW, retires_at="2999-01-02")
    with pytest.raises(Conflict, match="is an alias; let it stand for another"):
        await model_life.replace_model(offered, ADMIN, name="fast", replacement=NEW)
    await model_life.retire_model(offered, ADMIN, name=NEW)
    with pytest.raises(Conflict, match=f"'{NEW}' is retired; name a model"):
        await deprecate(replacement=NEW)
    with pytest.raises(Conflict, match="leave the date out"):
        await model_life.replace_model(offered, ADMIN, name=NEW, replacement=OLD, retires_at=DATE)
    finance = Actor(kind="user", id="x", label="x", role="finance")
    with pytest.raises(PermissionDenied):
        await model_life.retire_model(offered, finance, name=OLD)
    assert {view.name: view.status for view in await models.list_models(offered, ADMIN)}[OLD] == "active"


async def test_a_replacement_needs_a_price_where_the_model_has_one(offered: Database) -> None:
    """A tier without a price would refuse each of its requests."""
    await prices.set_price(offered, ADMIN, model=OLD, tier="batch", input="1", output="1")
    with pytest.raises(
        Conflict, match=f"'{NEW}' would have no price when it answers for '{OLD}' \\(batch\\)"
    ):
        await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW)
    starts = datetime.fromisoformat(f"{DATE}T00:00+00:00")
    await prices.set_price(
        offered, ADMIN, model=NEW, tier="batch", input="1", output="1", effective_from=starts
    )
    with pytest.raises(Conflict, match="no price"):
        await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW, retires_at="2998-12-31")
    await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW, retires_at=DATE)
    with pytest.raises(Conflict, match="no price"):
        await model_life.deprecate_model(offered, ADMIN, name=OLD, retires_at="2998-12-31")
    for name in ("minimax-m2.5", "deepseek-v3.2"):
        await models.add_model(offered, ADMIN, name=name)
    with pytest.raises(Conflict, match=r"no price .* \(standard\)"):
        await model_life.replace_model(
            offered, ADMIN, name="deepseek-v3.2", replacement="minimax-m2.5", accept_loss=True
        )


async def test_a_replacement_that_can_do_less_must_be_accepted(offered: Database) -> None:
    with pytest.raises(Conflict) as less:
        await model_life.replace_model(offered, ADMIN, name=NEW, replacement=OLD)
    assert (less.value.code, less.value.param) == ("abilities_lost", "replacement")
    assert less.value.details["lost"] == [
        "reasoning",
        "a context of 262,144 tokens, of which it has 32,768",
        "the switch enable_thinking of the chat template",
    ]
    view = await model_life.replace_model(offered, ADMIN, name=NEW, replacement=OLD, accept_loss=True)
    assert view.redirected


async def test_other_acts_do_not_wait_while_usage_is_read(offered: Database) -> None:
    """The lock on models is taken when it is known who used the model."""
    async with offered.system() as holder:
        await holder.execute(text("LOCK TABLE usage_days IN ACCESS EXCLUSIVE MODE"))
        retiring = asyncio.create_task(model_life.retire_model(offered, ADMIN, name=OLD))

        async def reads_usage() -> bool:
            waiting = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'usage_days'::regclass)"
            return bool((await holder.execute(text(waiting))).scalar())

        await until(reads_usage)
        alias = asyncio.wait_for(models.set_alias(offered, ADMIN, name="quick", target=NEW), 30)
        assert (await alias).alias_of == NEW
    assert (await retiring).status == "retired"


async def test_usage_is_not_read_for_models_that_ended_before_the_days_that_count(
    offered: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    async def models_used(
        _connection: object, _tenant: object, among: Sequence[str], *_span: object
    ) -> set[str]:
        asked.append(among)
        return set(among)

    monkeypatch.setattr(model_life, "models_used", models_used)
    organisation = await make_organisation(offered)
    await model_life.retire_model(offered, ADMIN, name=OLD)
    endings = await model_life.endings_of(offered, member(organisation.tenant_id))
    assert [ending.model for ending in endings] == [OLD]
    async with offered.system() as connection:
        await connection.execute(
            text("UPDATE models SET retires_at = clock_timestamp() - interval '31 days' WHERE name = :name"),
            {"name": OLD},
        )
    assert await model_life.endings_of(offered, member(organisation.tenant_id)) == []
    assert asked == [[OLD]]


async def test_a_key_is_told_nothing_of_models_that_it_may_not_use(offered: Database) -> None:
    await models.set_alias(offered, ADMIN, name="quick", target=OLD)
    await model_life.retire_model(offered, ADMIN, name="quick")
    await model_life.retire_model(offered, ADMIN, name=OLD)
    directory = ModelDirectory(offered)
    await directory.refresh()
    for name in (OLD, "fast", "quick"):
        for allowed in (None, [OLD]):
            with pytest.raises(ModelRetired):
                directory.resolve(name, allowed)
            assert directory.deprecation(name, allowed) is not None
        with pytest.raises(ModelNotFound) as unknown:
            directory.resolve(name, [NEW])
        assert type(unknown.value) is ModelNotFound
        assert unknown.value.message.startswith(f"There is no model {name!r}.")
        assert directory.deprecation(name, [NEW]) is None
    await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW)
    await directory.refresh()
    assert [directory.deprecation(OLD, [name]) is None for name in (OLD, NEW, "other")] == [
        False,
        False,
        True,
    ]


async def test_a_date_that_has_passed_is_a_retired_model_for_administrators_too(offered: Database) -> None:
    await model_life.deprecate_model(offered, ADMIN, name=OLD, retires_at=DATE)
    async with offered.system() as connection:
        await connection.execute(
            text("UPDATE models SET retires_at = clock_timestamp() WHERE name = :name"), {"name": OLD}
        )
    states = {view.name: view.status for view in await models.list_models(offered, ADMIN)}
    assert states == {OLD: "retired", NEW: "active", "fast": "active"}
    with pytest.raises(Conflict, match="is retired; add it again"):
        await model_life.deprecate_model(offered, ADMIN, name=OLD)
    with pytest.raises(Conflict, match="is retired; an alias must stand for a live model"):
        await models.set_alias(offered, ADMIN, name="other", target=OLD)
    with pytest.raises(ModelRetired):
        await answers(
            offered, ManualClock(datetime.fromisoformat(DATE + "T00:00+00:00") - timedelta(days=9)), OLD
        )
    assert (await models.add_model(offered, ADMIN, name=OLD)).status == "active"


async def test_a_replacement_that_is_gone_is_not_recommended(offered: Database) -> None:
    await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW)
    await model_life.retire_model(offered, ADMIN, name=NEW)
    with pytest.raises(ModelRetired) as gone:
        await answers(offered, ManualClock(), "fast")
    assert "Use" not in gone.value.message
    assert f"The model '{OLD}', which the name 'fast' stood for, was retired" in gone.value.message
    assert gone.value.details["replacement"] is None


async def test_a_replacement_that_is_gone_keeps_no_model_from_retiring_and_replaces_none(
    offered: Database,
) -> None:
    await model_life.deprecate_model(offered, ADMIN, name=OLD, retires_at=DATE, replacement=NEW)
    await model_life.retire_model(offered, ADMIN, name=NEW)
    assert (await model_life.retire_model(offered, ADMIN, name=OLD)).status == "retired"
    with pytest.raises(Conflict, match="is retired; name a model as replacement that stays longer"):
        await model_life.replace_model(offered, ADMIN, name=OLD, replacement=NEW)
