"""The comparison of two versions: whose requests count, in which time, and what is a regression."""

import msgspec
import pytest

from scheduler.core.placement import ActivePlacement
from scheduler.core.rollout import Verdict
from scheduler.version_figures import VersionComparison, verdict
from scheduler.wire import Placement, Released
from tests.support.scheduling import MODEL, beat, replica
from workers.rollouts import Strategy, VersionFigures
from workers.wire import AnswerQuality, EngineCounters

OLD, NEW = "", "0a1b2c3d"
BOOTS = {OLD: "boot-old", NEW: "boot-new"}


class World:
    """Both versions with one replica each."""

    def __init__(self) -> None:
        self.comparison = VersionComparison()
        self.comparison.watch({MODEL: (OLD, NEW)})
        self.beat()

    def beat(self) -> None:
        self.comparison.on_heartbeat(
            beat(
                replica("a", boot_id=BOOTS[OLD]),
                replica(
                    "b",
                    boot_id=BOOTS[NEW],
                    version=NEW,
                    counters=EngineCounters(drafts=1_000, accepted_tokens=600),
                ),
            ),
            lambda name: 0,
            0.0,
        )

    def serve(
        self, version: str, at: float, *, ttft: float = 0.1, tpot: float = 0.01, failed: bool = False
    ) -> None:
        boot, tokens = BOOTS[version], 11
        placement = Placement("r", "e", "a", "http://a", MODEL, boot)
        self.comparison.on_place("api", placement, "standard", at)
        active = ActivePlacement("api", "t", MODEL, "a", boot, 100, 0, 50, 0, prefilled=False, placed_at=at)
        self.comparison.on_first_token("api", "r", active, at + ttft)
        active.first_token_at = at + ttft
        released = Released("r", "a", 100, 0, tokens, failed=failed)
        self.comparison.on_release("api", released, active, at + ttft + tpot * (tokens - 1))

    def figures(self, now: float) -> tuple[VersionFigures, VersionFigures]:
        return self.comparison.compare(MODEL, OLD, NEW, now)


def test_requests_count_while_both_versions_serve() -> None:
    world = World()
    for second in range(100):
        world.serve(OLD, float(second), ttft=0.2 if second < 50 else 0.1)
    for second in range(50, 60):
        world.serve(NEW, float(second), ttft=0.3, tpot=0.02, failed=second == 50)
    old, new = world.figures(100.0)
    assert (new.requests, new.failed, new.error_rate, new.output_tokens) == (10, 1, 0.1, 11.0)
    assert (old.requests, old.compared, new.compared) == (100, 50, 9)
    assert old.ttft_p50_s == pytest.approx(0.1)
    assert (new.ttft_p50_s, new.tpot_p50_s) == (pytest.approx(0.3), pytest.approx(0.02))
    assert (old.acceptance, new.acceptance) == (None, 0.6)


def test_errors_count_after_the_old_version_has_gone_and_times_do_not() -> None:
    world = World()
    for second in range(100):
        world.serve(OLD, float(second))
        world.serve(NEW, float(second))
    for second in range(100, 1_000):
        world.serve(NEW, float(second), ttft=9.0, failed=second >= 400)
    old, new = world.figures(1_000.0)
    assert (old.requests, old.error_rate, new.requests, new.failed) == (100, 0.0, 1_000, 600)
    assert old.compared == 100
    assert new.compared < 400
    assert "600 of its 1000 requests failed" in verdict(Strategy(), old, new).regression
    later, _ = world.figures(5_000.0)  # the old version's last half hour stays what errors are held against
    assert later.requests == 100


def test_requests_of_other_models_and_engines_do_not_count() -> None:
    world = World()
    world.comparison.watch({"other": (OLD, NEW)})
    world.serve(NEW, 1.0)
    world.comparison.watch({MODEL: (OLD, NEW)})
    world.serve(NEW, 1.0)
    assert world.figures(2.0)[1].requests == 0, "its engines are not known before their next heartbeat"
    world.beat()
    world.serve(NEW, 1.0)
    assert world.figures(2.0)[1].requests == 1


def test_in_a_rollout_of_an_image_an_engine_is_of_the_image_of_its_host() -> None:
    world = World()
    old, new = "image 1", "image 2"
    hosts = {MODEL: {"host-of-agent-1": old, "host-of-agent-2": new}}
    world.comparison.watch({MODEL: (old, new), "other": (OLD, NEW)}, hosts)
    for agent, boot in (("agent-1", BOOTS[OLD]), ("agent-2", BOOTS[NEW]), ("agent-3", "boot-c")):
        world.comparison.on_heartbeat(beat(replica(agent, boot_id=boot), agent=agent), lambda name: 0, 0.0)
    for version in (OLD, NEW, NEW):
        world.serve(version, 1.0)
    assert [each.requests for each in world.comparison.compare(MODEL, old, new, 2.0)] == [1, 2]
    world.comparison.watch({MODEL: (OLD, NEW), "other": (OLD, NEW)})
    world.beat()
    world.serve(NEW, 3.0)
    assert [each.requests for each in world.figures(4.0)] == [0, 1]


GOOD = VersionFigures(
    "x", 100, 100, 1, 0.01, ttft_p50_s=0.2, tpot_p50_s=0.01, output_tokens=300.0, acceptance=0.6
)


@pytest.mark.parametrize(
    ("change", "enough", "problem"),
    [
        ({}, True, ""),
        ({"failed": 5, "error_rate": 0.05}, True, "5 of its 100 requests failed (5.0%), before 1.0%"),
        ({"compared": 10, "failed": 2, "error_rate": 0.2}, False, ""),
        (
            {"requests": 10, "compared": 10, "failed": 3, "error_rate": 0.3},
            False,
            "3 of its 10 requests failed (30.0%), before 1.0%",
        ),
        ({"compared": 10, "tpot_p50_s": 9.0}, False, ""),
        ({"ttft_p50_s": 0.31}, True, "its median time to a first token is 310.0 ms, before 200.0 ms"),
        ({"tpot_p50_s": 0.014}, True, "its median time to an output token is 14.0 ms, before 10.0 ms"),
        ({"tpot_p50_s": 0.0125}, True, ""),
        ({"tpot_p50_s": None, "ttft_p50_s": None}, True, ""),
        ({"output_tokens": 601.0}, True, "its answers have 601 tokens on average, before 300"),
        ({"output_tokens": 149.0}, True, "its answers have 149 tokens on average, before 300"),
        ({"output_tokens": 151.0}, True, ""),
        ({"acceptance": 0.49}, True, "it accepts 49.0% of the draft tokens, before 60.0%"),
        ({"acceptance": 0.51}, True, ""),
        ({"acceptance": None, "output_tokens": None}, True, ""),
    ],
)
def test_what_is_a_regression(change: dict[str, object], enough: bool, problem: str) -> None:
    new = msgspec.structs.replace(GOOD, **change)
    assert verdict(Strategy(), GOOD, new) == Verdict(problem, enough)


def test_short_times_may_differ_by_noise() -> None:
    fast = msgspec.structs.replace(GOOD, ttft_p50_s=0.01, tpot_p50_s=0.001)
    slower = msgspec.structs.replace(GOOD, ttft_p50_s=0.05, tpot_p50_s=0.0025)
    assert verdict(Strategy(), fast, slower) == Verdict(enough=True)


def test_the_counters_of_an_engine_stay_with_its_version_when_its_replica_has_the_next() -> None:
    world = World()
    ended = replica(
        "a", boot_id=BOOTS[OLD], version=NEW, counters=EngineCounters(drafts=9_000, accepted_tokens=900)
    )
    world.comparison.on_heartbeat(beat(ended), lambda name: 0, 1.0)
    old, new = world.figures(2.0)
    assert (old.acceptance, new.acceptance) == (0.1, 0.6)


def test_the_answers_of_the_worst_new_replica_are_shown() -> None:
    world = World()
    worse = AnswerQuality(0.5, 0.2, OLD)
    beats = beat(
        replica("a", boot_id=BOOTS[OLD], quality=AnswerQuality(0.1, 9.0)),  # beside a version before it
        replica("b", boot_id=BOOTS[NEW], version=NEW, quality=AnswerQuality(0.9, 0.4, OLD)),
        replica("c", boot_id="boot-c", version=NEW, quality=worse),
        replica("d", boot_id="boot-d", version=NEW, quality=AnswerQuality(0.0, 9.0, "other")),
        replica("e", boot_id="boot-e", version=NEW, quality=AnswerQuality(0.0, 9.0)),
    )
    world.comparison.on_heartbeat(beats, lambda name: 0, 1.0)
    old, new = world.figures(2.0)
    assert (new.agreement, new.logprob_distance) == (0.5, 0.4)
    assert (old.agreement, old.logprob_distance) == (None, None)
