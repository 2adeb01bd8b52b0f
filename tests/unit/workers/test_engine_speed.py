"""The speed of an engine of which no profile is known is measured by four small requests."""

import asyncio
from fractions import Fraction
from typing import cast

import pytest

from core.errors import EngineFailed
from tests.support.clock import ManualClock
from workers.engine_api import AnswerUsage, EngineApi, EngineMetrics
from workers.engine_speed import measured
from workers.external import ExternalEngine, ExternalReplica, ExternalSettings, ReplicaNames
from workers.plan import plan_external
from workers.wire import Capacity, ReplicaState

PLAN = plan_external("h/m-0", "m", max_num_seqs=64, context_len=8192, share=Fraction(1))
ASSUMED = PLAN.capacity
RATE, STEP_S, OVERHEAD_S = 2000.0, 0.05, 0.3


class Engine:
    """An engine on a clock of its own: 300 ms beside its steps, 50 ms a step, 2,000 prompt tokens a second."""

    def __init__(self, *, stops_after: int = 1000, fails: str = "") -> None:
        self.clock = ManualClock()
        self.texts: list[str] = []
        self._stops_after, self._fails = stops_after, fails

    async def answer(
        self, model: str, text: str, tokens: int, timeout_s: float, *, whole: bool = False
    ) -> AnswerUsage:
        """Answer after the time that it takes."""
        self.texts.append(text)
        if self._fails and len(self.texts) == 3:
            raise EngineFailed(self._fails)
        prompt, tokens = len(text.split()), min(tokens, self._stops_after)
        cached = prompt if text in self.texts[:-1] else 0
        self.clock.advance(OVERHEAD_S + (prompt - cached) / RATE + tokens * STEP_S)
        return AnswerUsage(prompt, tokens)

    async def measure(self) -> Capacity | None:
        """What is measured of it."""
        return await measured(cast(EngineApi, self), "m", ASSUMED, self.clock)


async def test_prefill_and_decode_are_measured_apart_from_what_every_request_costs() -> None:
    capacity = await Engine().measure()
    assert capacity is not None
    assert capacity.prefill_tokens_per_s == pytest.approx(RATE, rel=0.1)
    assert capacity.step_base_s == pytest.approx(STEP_S)
    assert 0 < capacity.step_per_seq_s < STEP_S / 100
    assert capacity.request_s == pytest.approx(OVERHEAD_S, rel=0.1)
    assert not capacity.assumed
    assert capacity.max_num_seqs == 64


async def test_the_prompt_whose_prefill_is_measured_is_in_no_cache() -> None:
    one, other = Engine(), Engine()
    await one.measure()
    await other.measure()
    assert one.texts[:3] == other.texts[:3]
    assert one.texts[3] != other.texts[3]


@pytest.mark.parametrize("engine", [Engine(stops_after=1), Engine(fails="no chat")], ids=["stops", "refuses"])
async def test_what_cannot_be_measured_stays_assumed(engine: Engine) -> None:
    assert await engine.measure() is None


async def test_a_replica_states_what_was_measured_of_it() -> None:
    engine, replica = Engine(), ExternalReplica(PLAN, "http://engine")
    replica.on_serving(EngineMetrics(), stream_interval=False)
    await replica.measure(cast(EngineApi, engine), engine.clock)
    replica.on_serving(EngineMetrics(), stream_interval=False)
    assert replica.status().capacity.step_base_s == pytest.approx(STEP_S)
    assert replica.state is ReplicaState.READY


class Listing(Engine):
    """The same engine with a list of models."""

    url = "http://engine"

    def __init__(self, *models: str) -> None:
        super().__init__()
        self._models = models

    async def get(self, path: str) -> tuple[int, bytes]:
        """The list of models, and good health."""
        names = ", ".join(f'{{"id": "{name}"}}' for name in self._models)
        return 200, f'{{"object": "list", "data": [{names}]}}'.encode()

    async def post(self, path: str, body: dict[str, object], *, timeout_s: float) -> tuple[int, bytes]:
        """A stream."""
        return 200, b"data: [DONE]"

    async def takes_stream_interval(self) -> bool:
        """No."""
        return False

    async def metrics(self) -> EngineMetrics:
        """None."""
        return EngineMetrics()


@pytest.mark.parametrize(("models", "requests"), [(("m",), 4), (("m", "n"), 0)])
async def test_only_the_single_model_of_an_engine_is_measured_and_once(
    models: tuple[str, ...], requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of several models might have to be loaded for it."""
    monkeypatch.setattr("workers.external.PROBE_S", 0.0)
    listing = Listing(*models)
    api = cast(EngineApi, listing)
    engine = ExternalEngine(api, ExternalSettings(), ReplicaNames("h", 0), lambda _: None, listing.clock)
    running = asyncio.create_task(engine.run())
    for _ in range(100):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(listing.texts) == requests
