"""Which replicas run on which machine, and the command lines of their engines."""

from fractions import Fraction
from pathlib import Path

import pytest

from core.errors import InvalidRequest
from scheduler.limits import valid_replicas
from workers.catalog import load_catalog
from workers.engine_command import engine_command
from workers.external import ReplicaNames
from workers.machine import Gpus, parse_gpus
from workers.plan import HostPlan, plan_external, plan_sim, plan_vllm
from workers.wire import ReplicaState, ReplicaStatus

CATALOG = load_catalog()
H100S = Gpus(tuple("01234567"), "H100")


def test_without_a_gpu_the_hub_decides() -> None:
    assert plan_vllm(CATALOG, "h", "", 1, Gpus(), hub_answers=False).replicas[0].model.name == "penstock/tiny"
    assert plan_vllm(CATALOG, "h", "", 1, Gpus(), hub_answers=True).replicas[0].model.name == "qwen2.5-0.5b"


def test_without_a_gpu_a_large_model_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"needs 4 GPUs and this machine has none.*--engine sim"):
        plan_vllm(CATALOG, "h", "deepseek-v3.2", 1, Gpus(), hub_answers=True)


def test_each_replica_gets_its_own_gpus() -> None:
    plan = plan_vllm(CATALOG, "h", "llama-3.3-70b", 3, H100S, hub_answers=True)
    assert [replica.gpu_ids for replica in plan.replicas] == [("0", "1"), ("2", "3"), ("4", "5")]
    assert [replica.replica_id for replica in plan.replicas] == [f"h/llama-3.3-70b-{n}" for n in range(3)]
    assert plan.replicas[0].share == Fraction(1, 4)
    assert (plan.host_kind, plan.gpus) == ("gpu-h100x8-640gb", 8)
    with pytest.raises(
        InvalidRequest, match=r"5 replicas of llama-3\.3-70b need 10 GPUs, this machine has 8"
    ):
        plan_vllm(CATALOG, "h", "llama-3.3-70b", 5, H100S, hub_answers=True)


def test_the_profile_for_these_gpus_is_preferred() -> None:
    h200 = Gpus(tuple("01234567"), "H200")
    assert (
        plan_vllm(CATALOG, "h", "deepseek-v3.2", 1, h200, hub_answers=True).replicas[0].profile.name
        == "tp8-h200"
    )
    four = Gpus(tuple("0123"), "GB200")
    assert (
        plan_vllm(CATALOG, "h", "deepseek-v3.2", 1, four, hub_answers=True).replicas[0].profile.name
        == "tp4-gb200"
    )
    two = Gpus(tuple("01"), "GB200")
    with pytest.raises(InvalidRequest, match=r"qwen3\.5-397b needs 4 GPUs, this machine has 2"):
        plan_vllm(CATALOG, "h", "qwen3.5-397b", 1, two, hub_answers=True)


def test_ranks_without_gpus_are_refused_on_a_machine_with_gpus() -> None:
    with pytest.raises(
        InvalidRequest, match=r"profile dp2 of penstock/tiny has 2 ranks .* another .*: cpu, lora$"
    ):
        plan_vllm(CATALOG, "h", "penstock/tiny", 1, H100S, hub_answers=True, profile_name="dp2")
    (alone,) = plan_vllm(CATALOG, "h", "penstock/tiny", 1, H100S, hub_answers=True).replicas
    assert alone.capacity.dp_ranks == 1
    (spread,) = plan_vllm(
        CATALOG, "h", "deepseek-v3.2", 1, H100S, hub_answers=True, profile_name="dp8"
    ).replicas
    assert len(spread.gpu_ids) == spread.capacity.dp_ranks == 8


def test_one_small_gpu_gets_the_small_model() -> None:
    plan = plan_vllm(CATALOG, "h", "", 1, Gpus(("0",), "H200"), hub_answers=True)
    assert (plan.replicas[0].model.name, plan.replicas[0].gpu_ids) == ("qwen2.5-0.5b", ("0",))
    assert plan.host_kind == "gpu-h200x1-141gb"


def test_an_external_model_is_held_to_what_the_operator_states() -> None:
    plan = plan_external("h/m-0", "m", max_num_seqs=512, context_len=8192, share=Fraction(1, 3))
    capacity = plan.capacity
    assert (capacity.max_num_seqs, capacity.max_model_len, capacity.gpus) == (512, 8192, 0)
    assert capacity.assumed
    assert capacity.kv_cache_tokens >= 512 * 8192
    status = ReplicaStatus(
        plan.replica_id, plan.model_name, "http://e", plan.engine, "b", ReplicaState.READY, capacity,
        targets=plan.targets,
    )  # fmt: skip
    assert valid_replicas([status]) == ([status], [])


def test_replicas_of_one_engine_have_different_names() -> None:
    names = ReplicaNames("host", 1)
    models = ("meta-llama/Llama-3.1-8B", "meta-llama-Llama-3.1-8B", "/models/x.gguf", "//")
    assert [names(model) for model in models] == [
        "host/meta-llama-Llama-3.1-8B-1", "host/meta-llama-Llama-3.1-8B.2-1", "host/models-x.gguf-1", "host/model-1",
    ]  # fmt: skip
    assert names("meta-llama-Llama-3.1-8B") == "host/meta-llama-Llama-3.1-8B.2-1"


@pytest.mark.parametrize(
    ("listing", "visible", "expected"),
    [
        ("0, NVIDIA H200\n1, NVIDIA H200\n", None, Gpus(("0", "1"), "H200")),
        ("0, NVIDIA H100 80GB HBM3\n1, NVIDIA H100 80GB HBM3\n", "1", Gpus(("1",), "H100")),
        ("0, NVIDIA GB200\n", None, Gpus(("0",), "GB200")),
        ("0, NVIDIA H200\n", "", Gpus()),
        ("No devices were found\n", None, Gpus()),
    ],
)
def test_gpus_of_the_drivers_listing(listing: str, visible: str | None, expected: Gpus) -> None:
    assert parse_gpus(listing, visible) == expected


def command_of(plan: HostPlan, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[str, ...], dict[str, str]]:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    for name in ("PENSTOCK_KEY_PEPPER", "DIGITALOCEAN_TOKEN", "STRIPE_API_KEY"):
        monkeypatch.setenv(name, "secret")
    command = engine_command(
        plan.replicas[0], host="127.0.0.1", port=9000, engine_env=Path("/env"), engine_key="key", agent_key="own",
        data_dir=Path("/data"), sim_speedup=2.0, replicas=1,
    )  # fmt: skip
    assert "secret" not in command.env.values()
    assert command.env["VLLM_API_KEY"] == "key"
    assert "key" not in command.argv
    return command.argv, command.env


def test_tiny_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_vllm(CATALOG, "h", "penstock/tiny", 1, Gpus(), hub_answers=False)
    argv, env = command_of(plan, monkeypatch)
    assert argv[:4] == ("/env/bin/python", "-m", "vllm.entrypoints.cli.main", "serve")
    assert argv[4] == "/data/models/penstock-tiny"
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert argv[argv.index("--dtype") + 1] == "float32"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in env or env["CUDA_VISIBLE_DEVICES"] == ""


def test_large_model_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_vllm(CATALOG, "h", "llama-3.3-70b", 2, H100S, hub_answers=True)
    _, env = command_of(plan, monkeypatch)
    assert env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert env["HF_HUB_OFFLINE"] == "1"  # its weights are prefetched
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in env


def test_sim(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_sim(CATALOG, "sim-h", "llama-3.3-70b", 2)
    argv, _ = command_of(plan, monkeypatch)
    assert argv[3:9] == ("--model", "llama-3.3-70b", "--profile", "tp2", "--speedup", "2.0")
    assert plan.gpus == 4
    assert plan.replicas[0].share == Fraction(1, 2)
