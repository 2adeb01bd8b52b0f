"""The agent's replica under commands in any order and engine deaths at any moment, on a played engine and no time."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workers.replica
from core.errors import CalledOff, Conflict, EngineFailed, InvalidRequest, PenstockError
from core.process_identity import ProcessIdentity
from tests.support.instant_loop import LoopClock, run_instantly
from workers.answer_quality import ANY_ANSWER, AnswerRule
from workers.catalog import load_catalog
from workers.engine_api import EngineApi, EngineMetrics
from workers.engine_command import EngineCommand
from workers.engine_sleep import Proof
from workers.engine_spec import EngineSpec
from workers.held_engine import EngineAccess
from workers.plan import ReplicaPlan, plan_sim
from workers.replica import ReplicaRunner
from workers.wire import EngineCounters, ReplicaState

CALL_S = 0.3
"""Seconds that each call of the agent takes."""


class Engine:
    """One engine process with vLLM's sleep mode; it notes what must not happen."""

    def __init__(self, wrong: list[str]) -> None:
        self.wrong = wrong
        self.alive = True
        self.running = self.tokens = self.level = 0
        self.missing: set[str] = set()
        self.garbled = self.stays_garbled = False
        self.serves: Callable[[], bool] = lambda: False

    async def post(
        self, path: str, body: Any = None, *, timeout_s: float, headers: Any = None
    ) -> tuple[int, bytes]:
        await self._call()
        url = urlsplit(path)
        query = parse_qs(url.query)
        match url.path:
            case "/sleep":
                if self.running:
                    self.wrong.append("sleeps while requests run")
                self.level, self.missing = int(query["level"][0]), {"weights", "kv_cache"}
            case "/wake_up":
                back = self.missing & set(query.get("tags", self.missing))
                self.garbled |= "weights" in back and (self.level == 2 or self.stays_garbled)
                self.missing -= back
                self.level = self.level if self.missing else 0
            case "/collective_rpc":
                self.garbled = self.stays_garbled
            case "/v1/completions":
                if self.missing:
                    self.wrong.append("is asked while it sleeps")
                self.tokens += 8
                text = "nonsense" if self.garbled or self.stays_garbled else "the wheel"
                return 200, f'{{"choices": [{{"text": "{text}"}}]}}'.encode()
        return 200, b"{}"

    async def _call(self) -> None:
        await asyncio.sleep(CALL_S)
        if not self.alive:
            raise EngineFailed("it cannot be reached")
        if self.garbled and self.serves():
            self.wrong.append("serves with wrong weights")

    async def healthy(self) -> bool:
        await self._call()
        return True

    async def metrics(self) -> EngineMetrics:
        await self._call()
        return EngineMetrics(
            self.running, counters=EngineCounters(generation_tokens=self.tokens), sleep_level=self.level
        )

    async def warm_up(self, model: str, max_model_len: int, **options: Any) -> None:
        await self._call()
        self.tokens += 100

    async def takes_stream_interval(self) -> bool:
        return False


class Process:
    """The engine's process."""

    exit_text = "the engine is gone"
    pid = 1
    identity = cast(ProcessIdentity, None)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def alive(self) -> bool:
        return self._engine.alive

    def kill(self) -> None:
        self._engine.alive = False

    terminate = kill

    async def ended(self, timeout_s: float) -> bool:
        await asyncio.sleep(CALL_S)
        return not self._engine.alive


class Host:
    """A replica whose engines are played, with customers who ask only what is routed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wrong: list[str] = []
        self.engines: list[Engine] = []
        self.garbles = False
        self.customers = 0
        """Tokens that customers were given by the present engine."""
        (plan,) = plan_sim(load_catalog(), "h", "", 1).replicas
        monkeypatch.setattr(workers.replica, "EngineProcess", self)
        monkeypatch.setattr(workers.replica, "incarnation", lambda kind: f"{kind}-{len(self.engines)}")
        self.runner = ReplicaRunner(
            plan,
            access=self.access,
            log_file=Path("log"),
            clock=LoopClock(),
            saved=None,
            save=self.runner_saves,
        )
        self.commands: list[asyncio.Task[None]] = []

    def runner_saves(self) -> None:
        return None

    def access(self, plan: ReplicaPlan, url: str | None) -> EngineAccess:
        engine = Engine(self.wrong)
        engine.stays_garbled = self.garbles
        engine.serves = lambda: self.runner.state is ReplicaState.READY and self.engines[-1] is engine
        self.engines.append(engine)
        command = EngineCommand(("engine",), {}, stop_s=1.0)
        return EngineAccess("http://engine", command, cast(EngineApi, engine))

    def start(self, command: EngineCommand, log: Path) -> Process:
        return Process(self.engines[-1])

    def ask(self) -> None:
        """A customer's request, where the scheduler would send it."""
        if self.runner.state is ReplicaState.READY and self.engines[-1].alive:
            self.engines[-1].running += 1

    def answer(self) -> None:
        """All requests end."""
        engine = self.engines[-1]
        engine.tokens += 10 * engine.running
        engine.running = 0

    def command(self, action: str, level: int = 1) -> None:
        async def run() -> None:
            try:
                await self.runner.command(action, 5.0, level)
            except PenstockError:
                return

        self.commands.append(asyncio.create_task(run()))

    def deploy(self, spec: EngineSpec) -> None:
        async def run() -> None:
            try:
                await self.runner.deploy(spec, rule=AnswerRule(), deadline_s=5.0)
            except PenstockError:
                return

        self.commands.append(asyncio.create_task(run()))

    def do(self, act: str) -> None:
        match act:
            case "ask":
                self.ask()
            case "answer":
                self.answer()
            case "die":
                self.engines[-1].alive = False
            case "garble":
                # The first answer of all is what later ones are held to, so it is right.
                known = self.runner._proofs or self.runner.deployed.reference
                self.engines[-1].stays_garbled |= bool(known)
            case "sleep_2":
                self.command("sleep", 2)
            case "deploy_a" | "deploy_b":
                self.deploy(EngineSpec(engine_version=act[-1]))
            case _:
                self.command(act)


ACTS = st.sampled_from(
    [
        "ask",
        "answer",
        "die",
        "garble",
        "drain",
        "resume",
        "sleep",
        "sleep_2",
        "wake",
        "stop",
        "restart",
        "kill",
        "deploy_a",
        "deploy_b",
    ]
)
PLAY = st.lists(st.tuples(ACTS, st.floats(0.0, 8.0)), max_size=25)


@settings(max_examples=40, deadline=None)
@given(PLAY)
def test_whatever_is_commanded_and_whatever_dies(play: list[tuple[str, float]]) -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        for act, seconds in play:
            host.do(act)
            await asyncio.sleep(seconds)
            assert not running.done(), running.exception()
        host.answer()
        await asyncio.gather(*host.commands)
        await host.runner.shut_down(5.0)
        assert host.runner.state is ReplicaState.STOPPED
        assert not host.engines[-1].alive
        assert host.wrong == []
        host.runner.held = True
        assert host.runner.status().held
        await host.runner.command("resume", 5.0)
        assert not host.runner.status().held
        await asyncio.sleep(10.0)
        assert host.runner.state is ReplicaState.READY  # whatever was before, it serves again
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_a_wake_leaves_its_tokens_out_and_a_wrong_one_starts_anew() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        before = host.runner.status()
        await host.runner.command("sleep", 5.0, 2)
        assert host.runner.status().sleep_level == 2
        await host.runner.command("wake", 5.0)
        after = host.runner.status()
        assert (after.state, after.counters, after.warmup_counters) == (
            ReplicaState.READY, before.counters, before.warmup_counters
        )  # fmt: skip
        assert after.times.wake_2.last_s > 4 * CALL_S
        host.engines[-1].stays_garbled = True
        await host.runner.command("sleep", 5.0, 2)
        with pytest.raises(EngineFailed, match="its weights are wrong"):
            await host.runner.command("wake", 5.0)
        assert host.runner.state is ReplicaState.FAILED
        await asyncio.sleep(10.0)
        assert (host.runner.state, host.runner.restarts, len(host.engines)) == (ReplicaState.READY, 1, 3)
        assert host.runner.status().failures == 1
        assert host.wrong == []
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_a_resume_calls_off_a_stop_that_still_drains() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        host.ask()
        stop = asyncio.create_task(host.runner.command("stop", 600.0))
        await asyncio.sleep(5.0)
        await host.runner.command("resume", 5.0)
        with pytest.raises(Conflict, match="its stop was called off"):
            await stop
        assert (host.runner.state, host.engines[-1].alive) == (ReplicaState.READY, True)
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_it_is_about_to_use_its_gpus_as_soon_as_its_start_is_accepted() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        assert not host.runner.on_gpus  # which of the host's replicas starts first is not decided
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        await host.runner.command("stop", 5.0)
        assert not host.runner.on_gpus
        await host.runner.command("resume", 5.0)
        assert (host.runner.status().phase, host.runner.pid, host.runner.on_gpus) == ("loading", 0, True)
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_a_sleep_that_is_called_off_while_its_proof_is_asked_takes_no_tokens_of_customers() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        host.runner._proofs = []  # as after the adoption from an agent that kept none
        began = host.runner.status().counters.generation_tokens
        sleep = asyncio.create_task(host.runner.command("sleep", 60.0))
        before = host.engines[-1].tokens
        await asyncio.sleep(9 * CALL_S)
        assert (host.runner.status().phase, host.engines[-1].tokens) == ("settling", before + 8)
        await host.runner.command("resume", 5.0)
        host.ask()
        host.answer()
        with pytest.raises(PenstockError):
            await sleep
        await asyncio.sleep(5.0)
        assert host.runner.status().counters.generation_tokens >= began + 10
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_a_replica_that_wakes_still_holds_the_memory_of_its_sleep() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        await host.runner.command("sleep", 5.0, 1)
        held = {("asleep_1", host.runner.rests_at)}
        for command in (host.runner.command("sleep", 60.0, 2), host.runner.command("wake", 60.0)):
            task = asyncio.create_task(command)
            while not task.done():
                held.add((host.runner.status().phase, host.runner.rests_at))
                await asyncio.sleep(CALL_S / 4)
            await task
        assert held == {
            ("asleep_1", 1), ("waking", 1), ("falling_asleep", 2), ("asleep_2", 2), ("waking", 2),
        }  # fmt: skip
        assert (host.runner.status().phase, host.runner.rests_at) == ("ready", 0)
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_a_resume_calls_off_a_sleep_that_still_drains_and_it_does_not_count_as_failed() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        host.ask()
        sleep = asyncio.create_task(host.runner.command("sleep", 600.0, 2))
        await asyncio.sleep(5.0)
        assert host.runner.rests_at == 2
        await host.runner.command("resume", 5.0)
        assert host.runner.rests_at == 0
        with pytest.raises(CalledOff, match="its sleep was called off"):
            await sleep
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_another_version_serves_once_it_gives_the_stored_answer() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        new = EngineSpec(engine_version="0.33.0", args={"max-num-seqs": 8})
        await host.runner.deploy(new, rule=AnswerRule(), deadline_s=60.0)
        assert (host.runner.status().version, host.runner.state) == (new.version, ReplicaState.LOADING)
        assert host.runner.plan.profile.args["max-num-seqs"] == 8
        await asyncio.sleep(5.0)
        assert (host.runner.state, len(host.engines)) == (ReplicaState.READY, 3)
        await host.runner.deploy(new, rule=AnswerRule(), deadline_s=60.0)
        assert len(host.engines) == 3  # it runs that version already
        host.garbles = True
        await host.runner.deploy(EngineSpec(engine_version="bad"), rule=AnswerRule(), deadline_s=60.0)
        await asyncio.sleep(5.0)
        status = host.runner.status()
        assert (status.state, status.phase) == (ReplicaState.FAILED, "unfit")
        assert "has not the stored greedy answer: token 1" in status.detail
        host.garbles = False
        await host.runner.deploy(EngineSpec(), rule=ANY_ANSWER, deadline_s=60.0)
        await asyncio.sleep(5.0)
        assert (host.runner.state, host.runner.status().version) == (ReplicaState.READY, "")
        await host.runner.command("stop", 5.0)
        await host.runner.deploy(new, rule=AnswerRule(), deadline_s=60.0)
        await asyncio.sleep(5.0)
        assert (host.runner.state, host.runner.status().version) == (ReplicaState.STOPPED, new.version)
        assert host.runner.deployed.spec == new
        with pytest.raises(InvalidRequest, match="has no profile 'nope'"):
            await host.runner.deploy(EngineSpec(profile="nope"), rule=AnswerRule(), deadline_s=60.0)
        assert host.wrong == []
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_a_version_with_other_weights_serves_where_its_answers_are_close_enough() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        assert host.runner.status().quality is None
        answers = msgspec.json.decode(host.runner.answers(), type=list[Proof])
        assert answers[0].tokens
        close = AnswerRule(same=False, min_agreement=0.9)
        await host.runner.deploy(EngineSpec(revision="b"), rule=close, deadline_s=60.0)
        await asyncio.sleep(5.0)
        quality = host.runner.status().quality
        assert quality is not None
        assert (host.runner.state, quality.agreement) == (ReplicaState.READY, 1.0)
        saved = host.runner.saved()
        assert saved is not None
        assert saved.quality == quality
        assert answers == list(saved.proofs)
        host.garbles = True
        await host.runner.deploy(EngineSpec(revision="c"), rule=close, deadline_s=60.0)
        await asyncio.sleep(5.0)
        status = host.runner.status()
        assert (status.phase, status.quality) == ("unfit", None)
        assert "agree with those of before in 0% of the tokens, and 90% are required" in status.detail
        await host.runner.deploy(EngineSpec(revision="d"), rule=ANY_ANSWER, deadline_s=60.0)
        await asyncio.sleep(5.0)
        quality = host.runner.status().quality
        assert quality is not None
        assert (host.runner.state, quality.agreement) == (ReplicaState.READY, 0.0)
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_the_stored_answer_is_asked_once() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        await host.runner.deploy(EngineSpec(engine_version="b"), rule=AnswerRule(), deadline_s=60.0)
        assert host.runner.deployed.reference
        await asyncio.sleep(5.0)
        assert (host.runner.state, host.runner.deployed.reference) == (ReplicaState.READY, ())
        host.garbles = True  # the host's own engine is replaced, whose answer differs
        await host.runner.command("restart", 5.0)
        await asyncio.sleep(5.0)
        assert host.runner.state is ReplicaState.READY
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_a_version_is_not_held_to_the_answers_of_one_before_the_version_that_it_replaces() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        await host.runner.command("stop", 5.0)
        await host.runner.deploy(EngineSpec(revision="b"), rule=ANY_ANSWER, deadline_s=60.0)
        host.garbles = True  # as the weights of b, which have not answered yet
        await host.runner.deploy(EngineSpec(revision="c"), rule=AnswerRule(), deadline_s=60.0)
        await host.runner.command("resume", 5.0)
        await asyncio.sleep(5.0)
        status = host.runner.status()
        assert status.state is ReplicaState.READY
        assert status.quality is not None
        assert status.quality.beside == ""
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


@pytest.mark.parametrize("rule", [AnswerRule(), ANY_ANSWER, AnswerRule(same=False, min_agreement=0.9)])
def test_an_agent_of_before_the_rules_finds_an_answer_only_where_it_must_be_the_same(
    rule: AnswerRule,
) -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        await host.runner.command("stop", 5.0)
        await host.runner.deploy(EngineSpec(revision="b"), rule=rule, deadline_s=60.0)
        kept = host.runner.deployed
        assert bool(kept.reference) == rule.same
        assert (kept.rule, kept.beside) == (rule, "")
        assert (kept.reference or kept.answers) == host.runner._reference != ()
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_a_version_that_comes_while_the_engine_loads_is_held_to_the_answer_of_the_last_one() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        await host.runner.command("restart", 5.0)
        host.garbles = True
        assert host.runner.state is ReplicaState.LOADING
        await host.runner.deploy(EngineSpec(engine_version="b"), rule=AnswerRule(), deadline_s=60.0)
        await asyncio.sleep(5.0)
        assert host.runner.status().phase == "unfit"
        host.garbles = False  # and its wrong answer is not what the next version is held to
        await host.runner.deploy(EngineSpec(engine_version="c"), rule=AnswerRule(), deadline_s=60.0)
        await asyncio.sleep(5.0)
        assert host.runner.state is ReplicaState.READY
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


@pytest.mark.parametrize("before", ["ready", "draining"])
def test_a_deployment_cuts_no_request(before: str) -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        host.ask()
        if before == "draining":
            host.command("drain")
            await asyncio.sleep(10.0)
        with pytest.raises(Conflict, match=f"is {before}: 1 requests were still running after 20 s"):
            await host.runner.deploy(EngineSpec(engine_version="b"), rule=AnswerRule(), deadline_s=20.0)
        status = host.runner.status()
        assert (status.phase, status.version, host.engines[-1].alive) == (before, "", True)
        host.answer()
        await host.runner.deploy(EngineSpec(engine_version="b"), rule=AnswerRule(), deadline_s=20.0)
        assert host.runner.status().version != ""
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_the_stored_answer_of_another_number_of_ranks_is_left_out() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        host.runner._proofs = 2 * host.runner._proofs
        await host.runner.deploy(EngineSpec(engine_version="b"), rule=AnswerRule(), deadline_s=60.0)
        await asyncio.sleep(5.0)
        assert host.runner.state is ReplicaState.READY
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))


def test_a_deployment_that_is_called_off_leaves_the_version() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch)
        running = asyncio.create_task(host.runner.run())
        await asyncio.sleep(5.0)
        host.ask()
        deploy = asyncio.create_task(
            host.runner.deploy(EngineSpec(engine_version="b"), rule=AnswerRule(), deadline_s=600.0)
        )
        await asyncio.sleep(5.0)
        await host.runner.command("resume", 5.0)
        with pytest.raises(Conflict, match="its stop was called off"):
            await deploy
        assert (host.runner.state, host.runner.status().version) == (ReplicaState.READY, "")
        running.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_instantly(run(monkeypatch))
