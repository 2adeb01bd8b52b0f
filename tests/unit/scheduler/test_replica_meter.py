"""What a replica's events show of its speed, by the time that they took."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import msgspec
import pytest

from scheduler.core.capacity_estimate import CapacityEstimate, Parts
from scheduler.core.fleet import Fleet
from scheduler.core.placement import ActivePlacement
from scheduler.core.replica_meter import PARTIAL_S, ReplicaMeter
from scheduler.wire import Released
from tests.support.scheduling import MODEL, beat, replica
from workers.plan import plan_external
from workers.wire import Capacity, ReplicaStatus

STATED = Capacity(10_000.0, 0.01, 0.001, step_per_kv_token_s=1e-7, accept_per_step=2.0)


@dataclass
class Running:
    """A load."""

    decoding: int = 0
    context_tokens: int = 0


class Recorder(CapacityEstimate):
    """Keeps the observations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Parts, float]] = []

    def observe(self, parts: Parts, observed_s: float) -> None:
        self.seen.append((parts, observed_s))


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    return Recorder()


def test_a_prompt_behind_another_is_timed_from_the_others_first_token(recorder: Recorder) -> None:
    meter, load = ReplicaMeter(recorder), Running(4, 2000)
    for placed_at, first_at in ((1.0, 1.5), (1.1, 2.0), (3.0, 3.4), (9.0, 9.1)):
        meter.advance(first_at, load)
        meter.on_first_token(4000.0, 4000, load, STATED, placed_at)
    step_s = 0.01 + 4 * 0.001 + 2000 * 1e-7
    fresh, behind, again = recorder.seen
    assert [seen[1] for seen in recorder.seen] == pytest.approx([0.5, 0.5, 0.4])
    assert sum(fresh[0]) == pytest.approx(0.4 + 1.5 * step_s + fresh[0].overhead)
    assert sum(behind[0]) == pytest.approx(0.4 + step_s)
    assert behind[0].overhead == 0.0 < again[0].overhead == fresh[0].overhead


def test_first_tokens_of_one_step_are_one_observation(recorder: Recorder) -> None:
    meter, load = ReplicaMeter(recorder), Running()
    for first_at in (1.0, 1.002, 1.003, 5.0):
        meter.advance(first_at, load)
        meter.on_first_token(1000.0, 1000, load, STATED, 0.6)
    [(parts, seconds)] = recorder.seen
    assert seconds == pytest.approx(0.403)
    assert parts.prefill == pytest.approx(3 * 0.1)


def test_an_answer_is_timed_with_its_mean_batch_and_the_prompts_computed_meanwhile(
    recorder: Recorder,
) -> None:
    meter, load = ReplicaMeter(recorder), Running(9, 100)
    meter.advance(1.0, load)
    began = meter.on_first_token(500.0, 500, load, STATED, None)
    meter.advance(2.0, Running(10, 1000))
    meter.on_first_token(2000.0, 2000, load, STATED, None)
    meter.advance(4.0, Running(40, 4000))
    meter.on_tokens(began, 101, STATED)
    [(parts, seconds)] = recorder.seen
    steps = 100 / 2.0
    assert seconds == pytest.approx(3.0)
    assert parts.prefill == pytest.approx(0.2)
    assert parts.base == pytest.approx(steps * 0.01)
    assert parts.sequences == pytest.approx(steps * 0.001 * 30)
    assert parts.fixed == pytest.approx(steps * 1e-7 * 3000)


def test_tokens_without_a_first_token_tell_nothing(recorder: Recorder) -> None:
    meter = ReplicaMeter(recorder)
    entry = placement("r")
    meter.advance(5.0, Running(1, 1))
    meter.on_tokens(entry.baseline.reading, 10, STATED)
    assert recorder.seen == []


def placement(name: str, *, at: float = 0.0, prompt: int = 1000) -> ActivePlacement:
    return ActivePlacement(
        "api", "t", MODEL, name, "boot-1", prompt, 0, 1000, produced=0, prefilled=False, placed_at=at,
        predicted_ttft_s=0.1, predicted_itl_s=0.01,
    )  # fmt: skip


SLOW = Capacity(30_000.0, 0.005, 0.0005, max_num_seqs=64, kv_cache_tokens=1_000_000)
"""What replicas state that take three times as long."""


def answered(fleet: Fleet, name: str, count: int, now: float, *, partly: bool = False) -> float:
    """`count` answers, one after the other, on an engine of 10,000 prompt tokens and 60 output tokens a second."""
    for _ in range(count):
        entry = placement(name, at=now)
        fleet.on_open(entry)
        now += 0.15
        fleet.on_prefill(entry, now)
        if partly:
            now += PARTIAL_S
            fleet.on_progress(entry, 1 + int(60 * PARTIAL_S), now)
            return now
        now += 1.0
        fleet.on_close(entry, Released("r", name, 1000, 0, 61), now)
    return now


def believed(fleet: Fleet, name: str) -> Capacity:
    return fleet.replicas[name].capacity


def status(name: str, capacity: Capacity = SLOW, **fields: object) -> ReplicaStatus:
    return replica(name, capacity=capacity, **fields)


def test_the_next_heartbeat_brings_what_was_learnt_to_every_gate() -> None:
    fleet = Fleet()
    fleet.heartbeat(beat(status("a")), 0.0)
    now = answered(fleet, "a", 20, 0.0)
    fleet.heartbeat(beat(status("a")), now)
    learnt = fleet.replicas["a"]
    assert learnt.status.capacity == SLOW
    assert learnt.capacity.prefill_tokens_per_s == pytest.approx(10_000, rel=0.4)
    assert learnt.derived.prefill_rate == learnt.capacity.prefill_tokens_per_s
    assert learnt.capacity.step_base_s + learnt.capacity.step_per_seq_s == pytest.approx(1 / 60, rel=0.2)


def test_a_long_answer_tells_before_its_end() -> None:
    fleet = Fleet()
    fleet.heartbeat(beat(status("a")), 0.0)
    now = answered(fleet, "a", 1, 0.0, partly=True)
    fleet.heartbeat(beat(status("a")), now)
    capacity = believed(fleet, "a")
    assert capacity.step_base_s + capacity.step_per_seq_s == pytest.approx(1 / 60, rel=0.3)


def test_a_replica_without_answers_is_believed_to_err_as_others_that_state_the_same() -> None:
    fleet, other = Fleet(), msgspec.structs.replace(SLOW, prefill_tokens_per_s=5_000.0)
    probed = msgspec.structs.replace(SLOW, step_base_s=1.1 * SLOW.step_base_s)
    every = (status("a"), status("b"), status("c", other), status("d", probed))
    fleet.heartbeat(beat(*every), 0.0)
    now = answered(fleet, "a", 20, 0.0)
    fleet.heartbeat(beat(*every), now)
    assert believed(fleet, "b").step_base_s == believed(fleet, "a").step_base_s != SLOW.step_base_s
    assert believed(fleet, "c") == other
    assert believed(fleet, "d").step_base_s == pytest.approx(1.1 * believed(fleet, "a").step_base_s)


def test_another_incarnation_begins_with_what_its_pool_knows_and_learns_anew() -> None:
    fleet = Fleet()
    fleet.heartbeat(beat(status("a")), 0.0)
    now = answered(fleet, "a", 20, 0.0)
    fleet.heartbeat(beat(status("a")), now)
    before = believed(fleet, "a")
    fleet.heartbeat(beat(status("a", boot_id="boot-2")), now + 1.0)
    assert believed(fleet, "a") == before
    assert fleet.replicas["a"].meter.estimate.count == 0
    stated = msgspec.structs.replace(SLOW, prefill_tokens_per_s=9_000.0)
    fleet.heartbeat(beat(status("a", stated, boot_id="boot-2")), now + 2.0)
    assert believed(fleet, "a") == stated


def test_ten_answers_of_one_stream_show_the_speed_of_an_engine_of_which_nothing_is_known() -> None:
    plan = plan_external("host/m-0", MODEL, max_num_seqs=256, context_len=8192, share=Fraction(1))
    fleet = Fleet()
    fleet.heartbeat(beat(status("a", plan.capacity, targets=plan.targets)), 0.0)
    now = answered(fleet, "a", 10, 0.0)
    fleet.heartbeat(beat(status("a", plan.capacity, targets=plan.targets)), now)
    learnt = believed(fleet, "a")
    assert learnt.step_base_s + learnt.step_per_seq_s == pytest.approx(1 / 60, rel=0.2)
