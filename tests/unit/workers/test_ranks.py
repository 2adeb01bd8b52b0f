"""Ranks of attention data parallelism: their part of a status, of a scrape and of the engine's endpoints."""

from pathlib import Path

import pytest

from core.errors import InvalidRequest
from workers.catalog import load_catalog
from workers.engine_api import parse_metrics
from workers.engine_command import engine_command
from workers.kv_endpoints import KvEndpoints, kv_endpoints
from workers.machine import Gpus
from workers.plan import plan_sim, plan_vllm
from workers.ranks import target_names, targets_of
from workers.wire import Capacity, EngineCounters, RankStatus, ReplicaState, ReplicaStatus

CATALOG = load_catalog()
METRICS = """
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 7.0
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="402"} 1.0
vllm:cache_config_info{block_size="32",engine="1",num_gpu_blocks="402"} 1.0
"""


def test_a_scrape_has_the_sums_and_the_values_of_each_rank() -> None:
    metrics = parse_metrics(METRICS)
    assert (metrics.running, metrics.waiting, metrics.kv_usage) == (4, 2, 0.5)
    assert (metrics.block_size, metrics.kv_blocks, metrics.counters.prompt_tokens) == (32, 402, 110)
    assert metrics.ranks == (
        RankStatus(3, 0, 0.25, 201, EngineCounters(prompt_tokens=100)),
        RankStatus(1, 2, 0.5, 201, EngineCounters(prompt_tokens=10, drafts=7)),
    )
    assert metrics.of_ranks(3) == [*metrics.ranks, RankStatus()]
    first = [line for line in METRICS.splitlines() if 'engine="0"' in line]
    assert parse_metrics("\n".join(first)).ranks == ()


def test_each_rank_is_a_target_with_its_part_of_the_engine() -> None:
    capacity = Capacity(80_000.0, 0.01, 1e-5, dp_ranks=2, max_num_seqs=64, kv_cache_tokens=12_800, gpus=2)
    status = ReplicaStatus(
        "h/m-0", "m", "http://e", "vllm", "boot-1", ReplicaState.READY, capacity, running=4, waiting=2,
        block_size=32, kv_blocks=401, ranks=[RankStatus(3, 0, 0.25, 200), RankStatus(1, 2, 0.5, 201)],
    )  # fmt: skip
    first, second = targets_of(status)
    assert (first.replica_id, first.running, first.waiting, first.kv_blocks) == ("h/m-0/0", 3, 0, 200)
    assert (second.replica_id, second.running, second.waiting, second.kv_usage) == ("h/m-0/1", 1, 2, 0.5)
    assert [first.replica_id, second.replica_id] == target_names("h/m-0", 2)
    own = first.capacity
    assert (own.dp_ranks, own.max_num_seqs, own.kv_cache_tokens, own.gpus) == (1, 32, 6_400, 1)
    assert own.prefill_tokens_per_s == 40_000.0
    assert own.step_per_seq_s == pytest.approx(2e-5)


def test_a_replica_without_ranks_is_its_own_target() -> None:
    """Also one of an older agent, which reports none, and an engine whose ranks cannot be addressed."""
    status = ReplicaStatus(
        "h/m-0", "m", "http://e", "vllm", "boot-1", ReplicaState.READY, Capacity(1e4, 0.01, 1e-5, dp_ranks=8)
    )
    assert targets_of(status) == [status]
    assert target_names("h/m-0", 1) == ["h/m-0"]


def test_ranks_publish_beside_each_other_in_a_private_directory(tmp_path: Path) -> None:
    first = kv_endpoints(tmp_path, "h/m-0", ranks=3)
    others = [first.of_rank(rank) for rank in range(3)]
    assert others[0] == first
    assert len({each.events for each in others} | {each.replay for each in others}) == 6
    assert all(each.events.startswith(f"ipc://{tmp_path}/kv/") for each in others)
    assert KvEndpoints("tcp://*:5557", "").of_rank(2) == KvEndpoints("tcp://*:5559", "")


def test_the_operator_chooses_the_profile() -> None:
    plan = plan_sim(CATALOG, "h", "deepseek-v3.2", 1, profile_name="dp8")
    assert (plan.replicas[0].profile.name, plan.replicas[0].capacity.dp_ranks) == ("dp8", 8)
    b300 = Gpus(tuple("01234567"), "B300")
    assert (
        plan_vllm(CATALOG, "h", "deepseek-v3.2", 1, b300, hub_answers=True).replicas[0].profile.name == "tp8"
    )
    chosen = plan_vllm(CATALOG, "h", "deepseek-v3.2", 1, b300, hub_answers=True, profile_name="dp8")
    assert chosen.replicas[0].profile.name == "dp8"
    with pytest.raises(InvalidRequest, match="has no profile 'dp9'; it has: tp8"):
        plan_vllm(CATALOG, "h", "deepseek-v3.2", 1, b300, hub_answers=True, profile_name="dp9")
    tiny = plan_vllm(CATALOG, "h", "penstock/tiny", 1, Gpus(), hub_answers=False, profile_name="dp2")
    assert tiny.replicas[0].capacity.dp_ranks == 2


def test_a_rank_is_a_process_of_its_own(tmp_path: Path) -> None:
    """The variable that keeps a CPU engine in one process would forbid ranks."""

    def environment(profile: str) -> dict[str, str]:
        plan = plan_vllm(CATALOG, "h", "penstock/tiny", 1, Gpus(), hub_answers=False, profile_name=profile)
        command = engine_command(
            plan.replicas[0], host="127.0.0.1", port=1, engine_env=tmp_path, engine_key="", agent_key="",
            data_dir=tmp_path, sim_speedup=1.0, replicas=1,
        )  # fmt: skip
        assert ("--data-parallel-size" in command.argv) == (profile == "dp2")
        return command.env

    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment("dp2")
    assert environment("cpu")["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
