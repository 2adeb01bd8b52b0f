"""Rollouts as administrators begin and decide them, and as a scheduler reads and writes them."""

import msgspec
import pytest
from sqlalchemy import text

from admin import models, rollouts
from admin.actor import Actor
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from scheduler.rollout_store import RolloutStore
from tests.support.tenancy import ADMIN, audit_actions
from workers.engine_spec import EngineSpec
from workers.rollouts import Progress, Rollout, RolloutState, RolloutUpdate, read_rollouts

MODEL = "llama-3.3-70b"
NEW = EngineSpec(engine_version="0.33.0")


@pytest.fixture
async def offered(database: Database) -> Database:
    await models.add_model(database, ADMIN, name=MODEL)
    return database


async def begin(database: Database, **given: object) -> rollouts.RolloutView:
    facts = {"engine_version": "0.33.0", "reason": "faster", **given}
    return await rollouts.start_rollout(database, ADMIN, model=MODEL, **facts)  # type: ignore[arg-type]


async def scheduler(database: Database, term: int = 1) -> RolloutStore:
    store = RolloutStore(database, term)
    await store.write()
    return store


def decided(store: RolloutStore, state: RolloutState) -> None:
    rollout = store.active[MODEL]
    store.put(
        rollout, RolloutUpdate(rollout.rollout_id, rollout.state, state, "because", Progress(3, 3, 3, 3))
    )


async def test_a_model_has_one_rollout_whose_promoted_version_the_next_one_begins_with(
    offered: Database,
) -> None:
    made = await begin(offered)
    assert (made.state, made.old_version, made.new_version) == ("progressing", "base", NEW.version)
    assert made.strategy.same_answer
    with pytest.raises(Conflict, match="is being rolled out"):
        await begin(offered, engine_version="0.34.0")
    store = await scheduler(offered)
    decided(store, RolloutState.PROMOTED)
    assert store.is_deciding(MODEL)
    await store.write()
    assert (store.active, store.deployed) == ({}, {MODEL: NEW})
    ended = await rollouts.last_rollout(offered, ADMIN, model=MODEL)
    assert (ended.state, ended.reason, ended.wanted) == ("promoted", "because", 3)
    assert ended.ended_at is not None
    with pytest.raises(Conflict, match="have this version already"):
        await begin(offered)
    second = await begin(offered, engine_version=None, args={"max-num-seqs": 8}, profile=None)
    assert (second.old_version, second.new_spec) == (
        NEW.version, {"engine_version": "0.33.0", "args": {"max-num-seqs": 8}}
    )  # fmt: skip
    assert [each.state for each in await rollouts.list_rollouts(offered, ADMIN)] == [
        "progressing",
        "promoted",
    ]


async def test_a_canary_is_promoted_or_aborted_once(offered: Database) -> None:
    with pytest.raises(NotFound, match="never had a rollout"):
        await rollouts.abort_rollout(offered, ADMIN, model=MODEL, reason="x")
    made = await begin(offered, strategy={"canary_percent": 10})
    assert made.state == "canary"
    promoted = await rollouts.promote_rollout(offered, ADMIN, model=MODEL, reason="good")
    assert (promoted.state, promoted.reason) == ("progressing", f"{ADMIN.label}: good")
    with pytest.raises(Conflict, match="is progressing, so it cannot be promoted"):
        await rollouts.promote_rollout(offered, ADMIN, model=MODEL, reason="x")
    aborted = await rollouts.abort_rollout(offered, ADMIN, model=MODEL, reason="bad")
    assert aborted.state == "rolling_back"
    with pytest.raises(Conflict, match="cannot be aborted"):
        await rollouts.abort_rollout(offered, ADMIN, model=MODEL, reason="x")
    store = await scheduler(offered)
    decided(store, RolloutState.ROLLED_BACK)
    await store.write()
    assert store.deployed == {MODEL: EngineSpec()}
    with pytest.raises(Conflict, match="the last one was rolled_back"):
        await rollouts.abort_rollout(offered, ADMIN, model=MODEL, reason="x")
    acts = [act for act in await audit_actions(offered) if act.startswith("model.rollout")]
    assert acts == ["model.rollout_start", "model.rollout_promote", "model.rollout_abort"]


async def test_an_admin_who_is_faster_and_a_later_scheduler_win(offered: Database) -> None:
    await begin(offered)
    store = await scheduler(offered)
    decided(store, RolloutState.PROMOTED)
    await rollouts.abort_rollout(offered, ADMIN, model=MODEL, reason="bad")
    await store.write()
    assert (store.active[MODEL].state, store.deployed) == (RolloutState.ROLLING_BACK, {})
    async with offered.system() as connection:
        await connection.execute(text("UPDATE scheduler_lease SET term = 2"))
    decided(store, RolloutState.ROLLED_BACK)
    await store.write()
    assert store.active[MODEL].state is RolloutState.ROLLING_BACK
    later = await scheduler(offered, term=2)
    decided(later, RolloutState.ROLLED_BACK)
    await later.write()
    assert later.active == {}


async def test_a_decision_on_a_state_that_has_just_ended_is_refused(
    offered: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(offered, strategy={"canary_percent": 10})
    stale = (await read_stored(offered))[0]
    store = await scheduler(offered)
    decided(store, RolloutState.ROLLED_BACK)
    await store.write()

    async def seen_before(*_: object) -> Rollout:
        return stale

    monkeypatch.setattr(rollouts, "_last", seen_before)
    for decide in (rollouts.promote_rollout, rollouts.abort_rollout):
        with pytest.raises(Conflict, match="is no longer canary"):
            await decide(offered, ADMIN, model=MODEL, reason="x")
    assert [each.state for each in await read_stored(offered)] == [RolloutState.ROLLED_BACK]


async def test_a_nul_in_an_agents_text_keeps_no_decision_from_the_database(offered: Database) -> None:
    await begin(offered)
    store = await scheduler(offered)
    rollout = store.active[MODEL]
    progress = Progress(3, 3, 3, 3)
    store.put(
        rollout,
        RolloutUpdate(rollout.rollout_id, rollout.state, RolloutState.ROLLING_BACK, "it\0 fails", progress),
    )
    await store.write()
    assert store.active[MODEL].reason == "it fails"


async def read_stored(database: Database) -> list[Rollout]:
    async with database.system() as connection:
        return await read_rollouts(connection, model=MODEL)


async def test_what_cannot_be_rolled_out_is_refused(offered: Database) -> None:
    for given, problem in (
        ({"profile": "nope"}, "has no profile 'nope'"),
        ({"args": {"middleware": "x"}}, "run code"),
        ({"strategy": {"canary_percent": 101}}, "canary_percent is 101, must be 0 to 100"),
        ({"strategy": {"max_surge": 0, "max_unavailable": 0}}, "no replica could be replaced"),
        ({"strategy": {"speed": 1}}, "a strategy has no speed"),
        ({"strategy": {"max_surge": "x"}}, "the strategy is wrong"),
        ({"strategy": {"canary_tenants": ["x"]}}, "must be ids of organisations"),
        (
            {"strategy": {"canary_tenants": ["018f0000-0000-7000-8000-000000000000"]}},
            "there is no organisation 018f0000",
        ),
    ):
        with pytest.raises(InvalidRequest, match=problem):
            await begin(offered, **given)
    with pytest.raises(PermissionDenied):
        await rollouts.start_rollout(
            offered,
            Actor(kind="user", id="x", label="x", role="finance"),
            model=MODEL,
            reason="x",
            engine_version="1",
        )
    with pytest.raises(Conflict, match="give what is to change"):
        await begin(offered, engine_version=None)
    made = await begin(offered, revision="abc")
    assert not made.strategy.same_answer
    assert (made.strategy.min_agreement, made.strategy.max_logprob_distance) == (0.25, 1.0)
    assert msgspec.json.encode(made)


async def test_any_answer_has_no_bounds_but_those_that_are_given(offered: Database) -> None:
    made = await begin(offered, same_answer=False, strategy={"max_logprob_distance": 2.0})
    assert (made.strategy.min_agreement, made.strategy.max_logprob_distance) == (None, 2.0)
