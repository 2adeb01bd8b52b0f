"""The order of a wake, and which answers prove it."""

from typing import Any, cast

import pytest

from core.errors import Conflict, EngineFailed
from workers.engine_api import EngineApi
from workers.engine_sleep import Proof, proofs_of, put_to_sleep, wake_up


class Engine:
    """Notes the calls, and answers each with `status` and `body`."""

    def __init__(self, status: int = 200, body: bytes = b"{}") -> None:
        self.status, self.body = status, body
        self.calls: list[tuple[str, object]] = []
        self.headers: list[object] = []

    async def post(
        self, path: str, body: Any = None, *, timeout_s: float, headers: Any = None
    ) -> tuple[int, bytes]:
        self.calls.append((path, body))
        self.headers.append(headers)
        return self.status, self.body

    @property
    def api(self) -> EngineApi:
        return cast(EngineApi, self)


async def test_weights_that_were_dropped_come_back_in_vllms_order() -> None:
    engine = Engine()
    await wake_up(engine.api, 2)
    assert engine.calls == [
        ("/wake_up?tags=weights", None),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/wake_up?tags=kv_cache", None),
    ]
    engine = Engine()
    await wake_up(engine.api, 1)
    assert engine.calls == [("/wake_up", None)]


async def test_a_step_of_a_wake_that_fails_ends_it() -> None:
    engine = Engine(500, b"out of memory")
    with pytest.raises(EngineFailed, match=r"500 to /wake_up.tags=weights: out of memory"):
        await wake_up(engine.api, 2)
    assert len(engine.calls) == 1


async def test_an_engine_without_sleep_mode_says_so() -> None:
    with pytest.raises(Conflict, match="--enable-sleep-mode"):
        await put_to_sleep(Engine(404).api, 1)
    with pytest.raises(EngineFailed, match="500 to /sleep"):
        await put_to_sleep(Engine(500).api, 1)


async def test_the_proof_of_a_completion_with_log_probabilities() -> None:
    body = b"""{"choices": [{"text": "ab", "token_ids": [7, 9], "logprobs": {"tokens": ["a", "b"],
        "token_logprobs": [-0.5, -1.0], "top_logprobs": [{"a": -0.5, "x": -2.0}, {"b": -1.0, "y": -1.1}]}}]}"""
    [proof] = await proofs_of(Engine(200, body).api, "m", ["p"], embeds=False)
    assert proof.tokens == ("7", "9")
    assert proof.logprobs == (-0.5, -1.0)
    assert proof.margins == pytest.approx((1.5, 0.1))


async def test_every_rank_proves_its_own_weights() -> None:
    engine = Engine(200, b'{"choices": [{"text": "a"}]}')
    assert len(await proofs_of(engine.api, "m", ["p"], embeds=False, ranks=2)) == 2
    assert engine.headers == [{"X-data-parallel-rank": "0"}, {"X-data-parallel-rank": "1"}]


@pytest.mark.parametrize(("status", "body"), [(200, b"nonsense"), (503, b"")])
async def test_no_answer_is_no_proof(status: int, body: bytes) -> None:
    with pytest.raises(EngineFailed):
        await proofs_of(Engine(status, body).api, "m", ["p"], embeds=False)


def test_rounding_is_no_difference_and_other_weights_are() -> None:
    before = Proof(("a", "b", "c"), (-0.1, -0.5, -0.2), (2.0, 0.1, 3.0))
    assert before.difference(before) == ""
    assert before.difference(Proof(("a", "b", "c"), (-0.2, -0.6, -0.3))) == ""
    assert before.difference(Proof(("a", "x", "y"), (-0.1, -0.6, -0.3))) == ""  # b was hardly ahead of x
    assert before.difference(Proof(("x", "b", "c"))) == "token 1 of its answer is 'x', not 'a'"
    assert "moved by 1.90" in before.difference(Proof(("a", "b", "c"), (-2.0, -0.5, -0.2)))
    assert "moved" in before.difference(Proof(("a", "b", "c"), (float("nan"), -0.5, -0.2)))
    assert "2 tokens" in before.difference(Proof(("a", "b")))


async def test_an_embedding_proves_by_its_direction() -> None:
    [before] = await proofs_of(
        Engine(200, b'{"data": [{"embedding": [3.0, 4.0]}]}').api, "m", ["p"], embeds=True
    )
    assert before.difference(Proof(vector=(3.01, 4.0))) == ""
    assert "cosine" in before.difference(Proof(vector=(-3.0, 4.0)))
    assert "cosine" in before.difference(Proof(vector=()))
