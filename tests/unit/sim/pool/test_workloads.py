"""Every workload by name: the same seed gives the same requests, at the rate asked for, within the model's context."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest

from core.errors import InvalidRequest
from sim.pool.contract import SimRequest
from sim.pool.workloads.registry import catalogue, workload

NAMES = sorted(catalogue())
PREFIX_SHARE = {
    "mooncake-conversation": (0.15, 0.40),
    "mooncake-synthetic": (0.40, 0.70),
    "azure-code": (0.0, 0.0),
    "azure-conversation": (0.0, 0.0),
    "servegen": (0.0, 0.0),
    "vidur-arxiv": (0.0, 0.0),
    "long-prompt-one-token": (0.0, 0.0),
    "decode-bound": (0.0, 0.0),
    "shared-system-prompts": (0.90, 1.0),
    "agent-chains": (0.80, 1.0),
    "multi-tenant-prefix": (0.90, 1.0),
    "mixed": (0.70, 0.95),
}
"""Share of prompt tokens that an endless cache would hold, in runs of 2,000 requests."""


def _run(name: str, rate: float = 20.0, seconds: float = 100.0, seed: int = 1, **options) -> list[SimRequest]:
    return list(workload(name, **options).requests(rate=rate, seconds=seconds, seed=seed))


@cache
def _standard(name: str) -> tuple[SimRequest, ...]:
    return tuple(_run(name))


def _found(requests: Sequence[SimRequest]) -> float:
    seen: set[int] = set()
    found = 0
    for request in requests:
        for block in request.blocks:
            if block not in seen:
                break
            found += request.block_tokens
        seen.update(request.blocks, request.output_blocks)
    return found / sum(request.prompt_tokens for request in requests)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_keeps_what_the_contract_promises(name: str) -> None:
    requests = _standard(name)
    assert [request.key for request in requests] == list(range(len(requests)))
    times = [request.at for request in requests]
    assert times == sorted(times)
    assert times[0] >= 0.0
    assert times[-1] < 100.0
    assert len(requests) == pytest.approx(2000, abs=200), "the rate"
    owner: dict[int, str] = {}
    for request in requests:
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 1
        assert request.prompt_tokens + request.output_tokens <= 32_768
        assert len(request.blocks) * request.block_tokens <= request.prompt_tokens
        covered = (len(request.blocks) + len(request.output_blocks)) * request.block_tokens
        assert covered <= request.prompt_tokens + request.output_tokens
        assert request.block_tokens % 64 == 0
        assert request.session
        for block in (*request.blocks, *request.output_blocks):
            assert 0 <= block < 2**63
            assert owner.setdefault(block, request.tenant) == request.tenant, "tenants share no cache"


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_requests_and_another_seed_others(name: str) -> None:
    first, again, other = (_run(name, seconds=20.0, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(("name", "bounds"), PREFIX_SHARE.items(), ids=PREFIX_SHARE)
def test_prefixes_are_shared_as_stated(name: str, bounds: tuple[float, float]) -> None:
    assert bounds[0] <= _found(_standard(name)) <= bounds[1]


@pytest.mark.parametrize("name", ["mixed", "agent-chains", "long-prompt-one-token", "mooncake-synthetic"])
def test_a_small_context_is_respected(name: str) -> None:
    requests = _run(name, seconds=30.0, context=4096)
    assert len(requests) == pytest.approx(600, abs=120)
    assert max(request.prompt_tokens + request.output_tokens for request in requests) <= 4096


@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_chained(name: str) -> None:
    """A hash stands for all before it: two prompts with a common block have everything before it in common."""
    before: dict[int, int] = {}
    for request in _standard(name)[:400]:
        chain = (0, *request.blocks)
        for above, block in pairwise(chain):
            assert before.setdefault(block, above) == above


def test_a_conversation_continues_its_answers() -> None:
    """The next prompt of an agent begins with the last prompt and its answer."""
    last: dict[str, SimRequest] = {}
    continued = turns = 0
    for request in _standard("agent-chains"):
        if before := last.get(request.session):
            turns += 1
            whole = (*before.blocks, *before.output_blocks)
            continued += request.blocks[: len(whole)] == whole
        last[request.session] = request
    assert turns > 500
    assert continued / turns > 0.9, "all but compactions"


def test_the_greedy_tenant_asks_for_half_and_nineteen_others_for_the_rest() -> None:
    counts = Counter(request.tenant for request in _run("greedy-tenant", seconds=200.0))
    assert len(counts) == 20
    assert counts["greedy-00"] / counts.total() == pytest.approx(0.525, abs=0.05)
    steady = [count for tenant, count in counts.items() if tenant != "greedy-00"]
    assert max(steady) < 2.5 * min(steady)


def test_bursts_are_bursts_and_one_tenants() -> None:
    requests = _run("bursts", seconds=200.0)
    seconds = Counter(int(request.at) for request in requests)
    assert max(seconds.values()) > 3 * 20
    peak = seconds.most_common(1)[0][0]
    tenants = Counter(request.tenant for request in requests if int(request.at) == peak)
    assert tenants.most_common(1)[0][1] > 0.7 * tenants.total()


def test_a_day_has_a_night() -> None:
    hours = Counter(int(request.at / 240 * 24) for request in _run("diurnal", seconds=240.0))
    assert max(hours.values()) > 3 * min(hours[hour] for hour in range(24))


def test_models_are_mixed_with_skew_and_one_is_no_mix() -> None:
    counts = Counter(request.model for request in _run("model-mix"))
    assert counts.most_common(1)[0][0] == "llama-3.3-70b"
    assert len(counts) == 4
    assert set(Counter(request.model for request in _run("model-mix", models=["a", "b"]))) == {"a", "b"}
    with pytest.raises(InvalidRequest, match="two or more"):
        workload("model-mix", models=["a"])


def test_traces_keep_their_bursts_at_any_rate() -> None:
    """Azure's code trace is bursty: the gaps' coefficient of variation is that of the trace at both rates."""

    def variation(rate: float) -> float:
        times = [request.at for request in _run("azure-code", rate=rate, seconds=2000 / rate)]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        mean = sum(gaps) / len(gaps)
        return (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean

    assert variation(2.0) == pytest.approx(variation(50.0))
    assert variation(2.0) > 1.1


def test_a_trace_that_ends_begins_anew_with_fresh_hashes() -> None:
    requests = _run("mooncake-conversation", rate=10.0, seconds=400.0)
    rows = 1500 - 110
    once, again = requests[0], [request for request in requests if request.session.endswith("/1")]
    assert len(requests) == 4000 > rows
    assert again
    assert not set(once.blocks) & {block for request in again for block in request.blocks}


def test_unknown_names_list_the_known_ones_and_bad_runs_are_refused() -> None:
    with pytest.raises(
        InvalidRequest, match=r"no workload and no file is called 'nothing'.*mooncake-conversation"
    ):
        workload("nothing")
    with pytest.raises(InvalidRequest, match="too short"):
        workload("mixed", context=100)
    for rate, seconds in ((0.0, 10.0), (-1.0, 10.0), (1.0, 0.0), (float("nan"), 1.0), (1e5, 1e5)):
        with pytest.raises(InvalidRequest):
            next(workload("mixed").requests(rate=rate, seconds=seconds, seed=1))
