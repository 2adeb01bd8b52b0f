"""Speeds of an external engine are learnt, and what is assumed of them holds no engine back."""

import heapq
import random
from fractions import Fraction

import msgspec
import pytest

from scheduler.core.fleet import Fleet
from scheduler.core.learnt_rates import LearntRates
from scheduler.core.placement import ActivePlacement
from scheduler.core.policy import Choice
from scheduler.wire import Released
from tests.support.scheduling import MODEL, beat, replica, request
from workers.catalog import load_catalog
from workers.plan import plan_external
from workers.step_time import decode_step_s
from workers.wire import Capacity, ReplicaStatus

PLAN = plan_external("host/m-0", MODEL, max_num_seqs=256, context_len=8192, share=Fraction(1))
ASSUMED = PLAN.capacity
PROMPT, ANSWER = 1000, 50
RATE = 500_000.0
"""Prompt tokens per second of the engine in `play`, ten times what is assumed."""


def external(name: str = "host/m-0", boot: str = "boot-1") -> ReplicaStatus:
    return replica(name, capacity=ASSUMED, targets=PLAN.targets, engine="external", boot_id=boot)


@pytest.mark.parametrize(("alpha", "beta"), [(0.002, 0.00001), (0.008, 0.0004), (0.2, 0.05)])
def test_the_time_of_a_step_is_learnt(alpha: float, beta: float) -> None:
    rates, rng = LearntRates(), random.Random(1)
    for _ in range(200):
        batch = rng.randint(1, 64)
        rates.observe_answer(batch, (alpha + beta * batch) * rng.uniform(0.9, 1.1), 100)
    learnt = rates.apply(ASSUMED)
    for batch in (1, 16, 64):
        assert decode_step_s(learnt, batch, 0) == pytest.approx(alpha + beta * batch, rel=0.25, abs=0.002)


def test_ten_answers_of_one_stream_suffice() -> None:
    rates = LearntRates()
    for _ in range(10):
        rates.observe_answer(1, 0.2, 100)
    assert decode_step_s(rates.apply(ASSUMED), 1, 0) == pytest.approx(0.2, rel=0.15)


def test_the_prefill_rate_is_learnt_apart_from_what_every_request_costs() -> None:
    rates, rng = LearntRates(), random.Random(1)
    for _ in range(200):
        tokens = rng.randint(10, 4000)
        rates.observe_first_token(tokens, 0.03 + tokens / 5000 * rng.uniform(0.9, 1.1))
    assert rates.apply(ASSUMED).prefill_tokens_per_s == pytest.approx(5000, rel=0.15)


@pytest.mark.parametrize("varied", [0, 10])
def test_a_constant_time_to_first_token_is_no_slow_prefill(varied: int) -> None:
    """Prompts of about one length do not show what a token costs."""
    rates, rng = LearntRates(), random.Random(1)
    for _ in range(200):
        rates.observe_first_token(1000 + rng.randint(-varied, varied), 0.5)
    assert rates.apply(ASSUMED).prefill_tokens_per_s == pytest.approx(ASSUMED.prefill_tokens_per_s, rel=0.05)


@pytest.mark.parametrize("itl_s", [0.0, 1e-9, 1e9])
def test_learnt_figures_stay_in_range(itl_s: float) -> None:
    rates, rng = LearntRates(), random.Random(1)
    for _ in range(300):
        rates.observe_answer(rng.randint(1, 256), itl_s * rng.random(), rng.randint(1, 100))
        rates.observe_first_token(rng.randint(0, 100_000), rng.choice((0.0, itl_s)))
    learnt = rates.apply(ASSUMED)
    assert 1e-5 <= learnt.step_base_s <= 60 * 1.01
    assert 0 <= learnt.step_per_seq_s <= 60
    assert 10 <= learnt.prefill_tokens_per_s <= 1e6


def test_a_replica_without_answers_has_the_figures_of_its_model() -> None:
    fleet = Fleet()
    both = (external(), external("host/m-1"))
    fleet.heartbeat(beat(*both), 0.0)
    play(fleet, "host/m-0", clients=1, seconds=5.0, alpha=0.004, beta=0.0)
    fleet.heartbeat(beat(external(), external("host/m-1")), 5.0)
    steps = [decode_step_s(fleet.replicas[name].status.capacity, 1, 0) for name in ("host/m-0", "host/m-1")]
    assert steps == pytest.approx([0.004, 0.004], rel=0.5)


def play(
    fleet: Fleet,
    name: str,
    *,
    clients: int,
    seconds: float,
    alpha: float,
    beta: float,
    prompt: int = PROMPT,
    answer: int = ANSWER,
) -> float:
    """`clients` in a closed loop on an engine of known speed; returns output tokens per second.

    An answer's time per token is that of the batch at its first token. A heartbeat comes every 0.5 s.
    """
    rng, now, next_beat, done, running = random.Random(1), 0.0, 0.5, 0, 0
    prefill_free_at = 0.0
    events: list[tuple[float, int, str, ActivePlacement]] = []
    number = 0
    while now < seconds:
        while running < clients:
            choice = fleet.place(request(prompt_tokens=prompt, output_tokens=answer), now, rng)
            if not isinstance(choice, Choice) or choice.replica.status.replica_id != name:
                break
            entry = ActivePlacement(
                "api", "t", MODEL, name, "boot-1", prompt, 0, answer, produced=0, prefilled=False, placed_at=now,
                predicted_ttft_s=choice.ttft_s, predicted_itl_s=choice.itl_s,
            )  # fmt: skip
            fleet.on_open(entry)
            running, number = running + 1, number + 1
            prefill_free_at = max(prefill_free_at, now) + prompt / RATE
            heapq.heappush(events, (prefill_free_at, number, "first", entry))
        if not events or events[0][0] > next_beat:
            now, next_beat = next_beat, next_beat + 0.5
            statuses = [
                msgspec.structs.replace(one.status, capacity=_stated(one.status))
                for one in fleet.replicas.values()
            ]
            fleet.heartbeat(beat(*statuses), now)
            continue
        now, _, kind, entry = heapq.heappop(events)
        if kind == "first":
            fleet.on_prefill(entry, now)
            number += 1
            heapq.heappush(events, (now + (answer - 1) * (alpha + beta * running), number, "end", entry))
        else:
            fleet.on_close(entry, Released("r", name, prompt, 0, answer), now)
            running, done = running - 1, done + answer
    return done / seconds


def _stated(status: ReplicaStatus) -> Capacity:
    """The capacity that the agent would send again."""
    return ASSUMED if status.capacity.assumed else status.capacity


def test_a_fast_engine_reaches_its_rate_behind_assumptions() -> None:
    """About 1 ms a step at 256 sequences; what is assumed is thirty times slower. The toy's profile would hold it."""
    speed = {"clients": 256, "seconds": 4.0, "alpha": 0.0005, "beta": 0.000002}
    tiny = load_catalog().model("penstock/tiny").profile().capacity
    reached = {}
    for name, status in {"external": external(), "toy": replica("host/m-0", capacity=tiny)}.items():
        fleet = Fleet()
        fleet.heartbeat(beat(status), 0.0)
        reached[name] = play(fleet, "host/m-0", prompt=10, answer=100, **speed)
    assert reached["external"] >= 0.95 * 256 / (speed["alpha"] + 256 * speed["beta"])
    assert reached["toy"] < 0.5 * reached["external"]


def test_long_prompts_reach_the_engines_rate_of_prefill() -> None:
    fleet = Fleet()
    fleet.heartbeat(beat(external()), 0.0)
    reached = play(fleet, "host/m-0", clients=256, seconds=5.0, alpha=0.0005, beta=0.0)
    assert reached >= 0.98 * RATE / PROMPT * ANSWER
    learnt = fleet.replicas["host/m-0"].status.capacity
    assert learnt.prefill_tokens_per_s == pytest.approx(RATE, rel=0.3)


def test_every_slot_of_a_slow_engine_is_used() -> None:
    """No target per token limits the batch of an engine whose targets nobody has stated."""
    fleet = Fleet()
    fleet.heartbeat(beat(external()), 0.0)
    play(fleet, "host/m-0", clients=300, seconds=200.0, alpha=0.3, beta=0.01)
    assert fleet.replicas["host/m-0"].load.running == 256
