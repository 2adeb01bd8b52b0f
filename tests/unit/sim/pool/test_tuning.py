"""Studies of engine options: what they measure, the rule that chooses, and that the catalog has what it chose."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from core.errors import InvalidRequest
from sim.engine.step_model.interface import StepConfig
from sim.pool.contract import SimRequest
from sim.pool.tuning import split_page, tier_page, tiers
from sim.pool.tuning.chunk_page import markdown
from sim.pool.tuning.chunks import SizeFigures, chosen, sizes_of
from sim.pool.tuning.knee import Trial
from sim.pool.tuning.play import Together, play
from sim.pool.tuning.plots import plot_shares
from sim.pool.tuning.split import Apart, SplitFigures
from sim.pool.tuning.tiers import TierFigures, with_tier
from workers.catalog import load_catalog
from workers.kv_links import PCIE, REACHED
from workers.wire import Capacity, Targets

CAPACITY = Capacity(
    10_000.0, 0.010, 0.0, kv_cache_tokens=1_000_000, max_model_len=100_000, max_batched_tokens=1000
)
TARGETS = Targets(2.0, 0.1)
BLOCK = 64


def config(**changes: float) -> StepConfig:
    return StepConfig(msgspec.structs.replace(CAPACITY, **changes), BLOCK, noise_cv=0.0)


def asked(key: int, at: float, prompt: int, output: int, blocks: tuple[int, ...] = ()) -> SimRequest:
    return SimRequest(key, at, "t", "m", prompt, output, blocks, BLOCK)


def test_an_answer_pauses_for_as_long_as_a_chunk_of_another_prompt_takes() -> None:
    requests = [asked(0, 0.0, 100, 5), asked(1, 1.0, 100, 200), asked(2, 1.5, 5000, 2)]
    for size, pause in ((1000, 0.010 + 0.1), (5001, 0.010 + 0.5)):
        said = play(Together(config(max_batched_tokens=size)), requests, TARGETS, CAPACITY)
        assert said.pause_p90_s == pytest.approx(0.8 * pause + 0.2 * 0.010, rel=0.01)


def test_a_long_pause_is_not_in_time() -> None:
    requests = [asked(0, 0.0, 100, 5), asked(1, 1.0, 100, 200), asked(2, 1.5, 9000, 2)]
    shares = [
        play(Together(config(max_batched_tokens=size)), requests, TARGETS, CAPACITY).in_time
        for size in (1000, 9001)
    ]
    assert shares == [1.0, pytest.approx(2 / 3)]


def test_requests_go_where_their_prefix_is() -> None:
    chains = [tuple(range(100 * group, 100 * group + 10)) for group in range(2)]
    requests = [asked(key, 10.0 * key, 700, 5, chains[key % 2]) for key in range(10)]
    arrangement = Together(config(), 2)
    said = play(arrangement, requests, TARGETS, CAPACITY)
    assert said.hit_rate == pytest.approx(640 / 700)


def test_apart_the_prompt_moves_once_and_no_chunk_interrupts_an_answer() -> None:
    move_s = 1e-4
    requests = [asked(0, 0.0, 100, 2), asked(1, 1.0, 3000, 300), asked(2, 2.0, 8000, 2)]
    apart = Apart(config(max_batched_tokens=10_000), config(), (1, 1), move_s)
    said = play(apart, requests, TARGETS, CAPACITY)
    assert said.ttft_p50_s == pytest.approx(0.010 + 0.3 + 3000 * move_s + 0.010, abs=0.011)
    assert said.pause_p90_s <= 0.0103
    together = play(Together(config(max_batched_tokens=10_000), 1), requests, TARGETS, CAPACITY)
    assert together.pause_p90_s > 0.5


def test_apart_what_the_decode_engine_holds_does_not_move() -> None:
    chain = tuple(range(40))
    requests = [asked(key, 10.0 * key, 2600, 5, chain) for key in range(5)]
    move_s = 1e-3
    said = play(Apart(config(), config(), (1, 1), move_s), requests, TARGETS, CAPACITY)
    rest = 2600 - 40 * BLOCK
    assert said.ttft_p50_s == pytest.approx(0.010 + rest / 10_000 + rest * move_s + 0.010, abs=0.001)


def size(tokens: int, knee: float, pause: float, workload: str = "w") -> SizeFigures:
    return SizeFigures("m:p", workload, tokens, knee, 1.0, pause, 0.1, 0.01)


def test_the_rule_takes_the_shortest_pause_among_equal_knees() -> None:
    assert chosen([size(8192, 10.0, 0.4), size(4096, 9.8, 0.2), size(2048, 8.0, 0.1)]) == 4096
    assert chosen([size(8192, 10.0, 0.4), size(4096, 9.0, 0.2)]) == 8192
    other = [size(8192, 5.0, 0.4, "v"), size(4096, 2.5, 0.2, "v")]
    assert chosen([size(8192, 10.0, 0.4), size(4096, 10.0, 0.2), *other]) == 8192, (
        "the worst workload decides"
    )


def test_a_full_batch_leaves_most_of_a_step_to_prompts() -> None:
    assert sizes_of(msgspec.structs.replace(CAPACITY, max_num_seqs=256)) == [1024, 2048, 4096, 8192, 16384]
    assert sizes_of(msgspec.structs.replace(CAPACITY, max_num_seqs=256, draft_tokens=3))[0] == 4096
    assert sizes_of(msgspec.structs.replace(CAPACITY, max_num_seqs=2048, dp_ranks=8))[0] == 1024
    with pytest.raises(InvalidRequest, match="10000 tokens in a step of a rank"):
        sizes_of(msgspec.structs.replace(CAPACITY, max_num_seqs=10_000))


class Even:
    """Prompts of 1,000 tokens with answers of one, evenly spaced."""

    name = "even"
    models = ("m",)

    def requests(self, *, rate: float, seconds: float, seed: int) -> Iterator[SimRequest]:
        for key in range(int(rate * seconds)):
            yield asked(key, key / rate, 1000, 1)


def test_the_knee_is_where_the_engine_is_full() -> None:
    """A prompt takes 10 ms of alpha and 100 ms; in two chunks, which cost 45 ms each besides, 210 ms."""
    trial = Trial(Even(), TARGETS, CAPACITY, requests=100)
    assert trial.knee(lambda: Together(config())) == pytest.approx(1 / 0.11, rel=0.1)
    dear = msgspec.structs.replace(CAPACITY, max_batched_tokens=500)
    halves = StepConfig(dear, BLOCK, 0.045, noise_cv=0.0)
    assert trial.knee(lambda: Together(halves), 9.0) == pytest.approx(1 / 0.21, rel=0.1)


def test_the_page_shows_every_size_and_marks_the_chosen_one() -> None:
    rows = [size(8192, 10.0, 0.4), size(4096, 9.8, 0.2)]
    text = markdown(rows, played="Played.")
    assert "| `m:p` | **4,096** | 9.80/s, 200 ms |" in text
    assert "|  | 8,192 | 10.00/s, 400 ms |" in text


def test_every_profile_that_generates_has_its_step_and_those_with_gpus_a_chosen_one() -> None:
    for model in load_catalog().models.values():
        for profile in model.profiles.values() if model.capabilities != ["embeddings"] else ():
            figure = profile.figures["max_batched_tokens"]
            assert profile.capacity.max_batched_tokens == figure.value
            if profile.gpus:
                assert "penstock sim tune chunks" in figure.source
                assert figure.value in sizes_of(profile.capacity)


def test_a_tier_has_the_bytes_of_the_profile() -> None:
    profile = load_catalog().model("llama-3.3-70b").profile("tp2")
    capacity = with_tier(profile, 164.0)
    assert capacity.host_kv_tokens == 1_000_000
    assert capacity.kv_load_s == pytest.approx(164_000 / 2 / (REACHED * PCIE))
    assert with_tier(profile, 0.0).host_kv_tokens == 0


def test_the_study_of_tiers_plays_the_size_of_the_profile_on_every_seed() -> None:
    catalog = load_catalog()
    model = catalog.model("minimax-m2.5")
    profile = model.profile("tp4-h100-kv")
    bare, tiered = tiers.study(
        model,
        profile,
        catalog.hosts[profile.host_kind],
        workloads=("mooncake-conversation",),
        requests=20,
        seeds=(1, 2),
    )
    assert (bare.host_gb, tiered.host_gb) == (0.0, profile.tier_gb)
    assert (bare.host_tokens, tiered.host_tokens) == (0, profile.capacity.host_kv_tokens)
    assert len(bare.knees_rps) == len(tiered.knees_rps) == 2
    assert bare.knees_rps[0] != bare.knees_rps[1]
    assert tiered.hit_rate >= bare.hit_rate


def tier(host_gb: float, hit: float, *knees: float) -> TierFigures:
    return TierFigures("m:p", "w", 1000, host_gb, int(host_gb), 1.0, 50.0, knees, 1.0, hit, 0.1, 0.2, 0.01)


def test_the_page_of_tiers_says_where_they_pay() -> None:
    rows = [tier(0, 0.1, 2.0, 2.1), tier(10, 0.6, 3.0, 3.15)]
    text = tier_page.markdown(rows, played="Played.", plot="x.svg")
    assert "It pays for `m:p`: +50%, +50% to +50% on `w`." in text
    assert "| 2.05 -> 3.08/s (+50%, +50% to +50%) | 10% -> 60% |" in text
    assert "over 2 seeds" in text


@pytest.mark.parametrize(
    "knees", [(2.0, 2.0, 2.0), (4.0, 2.0, 1.9)], ids=["no gain", "a gain of one seed, within chance"]
)
def test_a_tier_pays_only_beyond_chance(knees: tuple[float, ...]) -> None:
    rows = [tier(0, 0.1, 2.0, 2.0, 2.0), tier(10, 0.1, *knees)]
    text = tier_page.markdown(rows, played="Played.", plot=None)
    assert (
        "It pays for no profile. It does not raise the knee by more than 5% and beyond chance for `m:p`."
        in text
    )


def division(prefill: int, knee: float, workload: str = "w") -> SplitFigures:
    return SplitFigures(
        "m:p", workload, prefill, 4 - prefill, "NVLink", 0.1, (knee, knee), 1.0, 1, 2, 0.01, 0.02, 0.1
    )


@pytest.mark.parametrize(("knee", "word"), [(12.0, "pays"), (10.0, "ties"), (8.0, "loses")])
def test_the_page_of_the_split_says_whether_its_best_division_pays(knee: float, word: str) -> None:
    rows = [
        division(0, 10.0),
        division(1, 3.0),
        division(2, 11.0),
        division(0, 10.0, "v"),
        division(1, 20.0, "v"),
    ]
    rows.append(division(2, knee, "v"))
    text = split_page.markdown(rows, played="Played.", plot=None)
    second = f"{knee / 10 - 1:+.0%}"
    assert f"2 + 2, {word} (+10%, +10% to +10%; {second}, {second} to {second})." in text
    assert "the best changes the knee by +100% and the worst by -70%" in text


def test_plots_are_drawn_and_other_suffixes_refused(tmp_path: Path) -> None:
    out = tmp_path / "plot.svg"
    plot_shares([("a", [("x", 1.0), ("y", 0.5)]), ("b", [("x", 2.0)])], out, "knee")
    assert out.read_text().count("knee") == 1
    with pytest.raises(InvalidRequest, match="a plot is written as"):
        plot_shares([("a", [("x", 1.0)])], tmp_path / "plot.pdf", "knee")
