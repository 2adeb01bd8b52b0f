"""What is seen of a router with a fleet of engines, and of how an engine counts its streams."""

import asyncio
from typing import cast

import pytest

from tests.support.clock import ManualClock
from workers.engine_api import EngineApi, EngineMetrics
from workers.engine_fleet import StreamCounts, capacity_of, counts_of, engines_behind, stream_counts
from workers.external import ExternalEngine, ExternalSettings, ReplicaNames
from workers.replica_view import Replica
from workers.wire import Capacity, EngineCounters, ReplicaState

RUNNING = b"""data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}

data: {"choices":[],"usage":{"completion_tokens":1}}

data: [DONE]
"""
IDS = b"""data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[5]}]}

data: {"choices":[],"usage":{"completion_tokens":1}}

data: [DONE]
"""
PLAIN = b"""data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":null}]}

data: {"choices":[],"usage":{"completion_tokens":1}}
"""
LISTED = b'{"data": [{"id": "m", "max_model_len": 4096}]}'
TWO = b'{"workers": [{"url": "a", "is_healthy": true}, {"url": "b", "is_healthy": true}], "total": 2}'
ONE = b'{"workers": [{"url": "a", "is_healthy": true}, {"url": "b", "is_healthy": false}], "total": 2}'


class Router:
    """What answers behind the address: `workers` to GET /workers, nothing = 404, and `stream` to a chat."""

    url = "http://router"

    def __init__(self, workers: bytes = b"", stream: bytes = IDS) -> None:
        self.workers, self.stream = workers, stream
        self.models = LISTED
        self.of_models: dict[str, bytes] = {}
        """Streams of models that have others; with no byte the engine fails."""
        self.prompt_tokens = 0
        self.asked: list[object] = []

    async def get(self, path: str) -> tuple[int, bytes]:
        """The answers to GETs."""
        if path == "/workers":
            return (200, self.workers) if self.workers else (404, b"no such path")
        return 200, self.models

    async def post(self, path: str, body: dict[str, object], *, timeout_s: float) -> tuple[int, bytes]:
        """The stream."""
        name = str(body["model"])
        self.asked.append(name)
        if self.of_models.get(name) == b"":
            return 503, b"{}"
        stream = self.of_models.get(name, self.stream)
        return (200, stream) if stream else (400, b"{}")

    async def takes_stream_interval(self) -> bool:
        """Yes."""
        return True

    async def metrics(self) -> EngineMetrics:
        """Those of another engine of the fleet each time."""
        self.prompt_tokens = 900 - self.prompt_tokens
        counters = EngineCounters(prompt_tokens=self.prompt_tokens)
        return EngineMetrics(running=3, counters=counters, block_size=16, kv_blocks=100, simulated=True)

    async def answer(self, *_: object, **__: object) -> None:
        """Measured nothing."""
        raise AssertionError("the speed is not measured here")


@pytest.mark.parametrize(
    ("stream", "counts"),
    [
        (RUNNING, StreamCounts(usage=True)),
        (IDS, StreamCounts(ids=True)),
        (PLAIN, StreamCounts()),
        (b"", StreamCounts()),
    ],
)
async def test_how_a_stream_is_counted(stream: bytes, counts: StreamCounts) -> None:
    assert counts_of(stream) == counts
    assert await stream_counts(cast(EngineApi, Router(stream=stream)), "m") == counts


@pytest.mark.parametrize(
    ("answer", "engines"),
    [
        (TWO, 2),
        (ONE, 1),
        (b'{"workers": [{"is_healthy": false}]}', 1),
        (
            b'{"workers": [{"worker_type": "prefill"}, {"worker_type": "decode"}, {"worker_type": "decode"}]}',
            2,
        ),
        (b'{"workers": []}', 0),
        (b'{"workers": 4}', 0),
        (b"<html>", 0),
        (b"", 0),
    ],
)
async def test_the_engines_behind_a_router(answer: bytes, engines: int) -> None:
    assert await engines_behind(cast(EngineApi, Router(answer))) == engines


def test_a_fleet_has_the_capacity_of_its_engines_and_the_step_of_one() -> None:
    one = Capacity(1000.0, 0.02, 0.001, max_num_seqs=8, kv_cache_tokens=100, max_model_len=50)
    assert capacity_of(one, 1) == one
    assert capacity_of(one, 4) == Capacity(
        4000.0, 0.02, 0.00025, max_num_seqs=32, kv_cache_tokens=400, max_model_len=50
    )


class Watched:
    """An ExternalEngine in front of a router."""

    def __init__(self, router: Router, **settings: int) -> None:
        self.replicas: list[Replica] = []
        self.router = router
        self.engine = ExternalEngine(
            cast(EngineApi, router),
            ExternalSettings(max_num_seqs=8, **settings),
            ReplicaNames("h", 0),
            self.replicas.append,
            ManualClock(),
        )

    async def run(self) -> None:
        """Let it run until it has nothing to do but to look."""
        running = asyncio.create_task(self.engine.run())
        for _ in range(100):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_each_model_of_a_fleet_is_counted_as_its_own_streams_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that gives embeddings refuses the stream, and one that fails is asked again after the others."""
    monkeypatch.setattr("workers.external.PROBE_S", 0.0)
    router = Router(TWO)
    router.models = b'{"data": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}'
    router.of_models = {"a": b"", "b": PLAIN, "c": RUNNING}
    watched = Watched(router)
    await watched.run()
    assert router.asked[:4] == ["a", "b", "c", "a"]
    assert [each.status().stream_interval for each in watched.replicas] == [False, False, True]
    router.of_models["a"] = IDS
    await watched.run()
    assert [each.status().stream_interval for each in watched.replicas] == [True, False, True]
    assert [each.status().counts_ids for each in watched.replicas] == [True, False, False]


async def test_the_metrics_of_one_engine_say_nothing_of_a_fleet() -> None:
    watched = Watched(Router(TWO))
    boots = set()
    for _ in range(4):
        await watched.engine.probe()
        status = watched.replicas[0].status()
        boots.add(status.boot_id)
        assert status.state is ReplicaState.READY
        assert (status.running, status.block_size, status.counters) == (0, 0, EngineCounters())
        assert status.simulated
    assert len(boots) == 1
    assert status.detail == "a fleet of 2 engines"
    assert status.restarts == 0


async def test_places_follow_the_engines_that_a_router_lists() -> None:
    watched = Watched(Router(TWO))
    for listed, places in ((TWO, 16), (ONE, 8), (TWO, 16), (b"", 8)):
        watched.router.workers = listed
        await watched.engine.probe()
        assert watched.replicas[0].status().capacity.max_num_seqs == places


async def test_a_router_that_lists_nothing_has_the_engines_that_are_stated() -> None:
    watched = Watched(Router(), fleet=3)
    await watched.engine.probe()
    status = watched.replicas[0].status()
    assert (status.capacity.max_num_seqs, status.detail) == (24, "a fleet of 3 engines")


@pytest.mark.parametrize(
    ("stream", "interval", "ids"), [(RUNNING, True, False), (IDS, True, True), (PLAIN, False, False)]
)
async def test_events_have_several_tokens_only_where_these_are_counted(
    stream: bytes, interval: bool, ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with several models, all of which a fleet has loaded; an engine may have to load one to be asked."""
    monkeypatch.setattr("workers.external.PROBE_S", 0.0)
    router = Router(TWO, stream)
    router.models = b'{"data": [{"id": "m"}, {"id": "n"}]}'
    watched = Watched(router)
    await watched.engine.probe()
    assert not watched.replicas[0].status().stream_interval, "before it is known"
    await watched.run()
    assert router.asked == ["m", "n"]
    for replica in watched.replicas:
        status = replica.status()
        assert (status.stream_interval, status.counts_ids) == (interval, ids)

    router.workers = b""
    alone = Watched(router)
    await alone.engine.probe()
    assert alone.replicas[0].status().stream_interval
