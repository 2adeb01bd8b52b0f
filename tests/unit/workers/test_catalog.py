"""The catalog: complete, with sources, and with the command lines of production."""

import shlex
from pathlib import Path

import msgspec
import pytest

from core.errors import InvalidRequest
from core.money import per_mtok_to_pico_per_token, usd_to_pico
from workers.catalog import DEFAULT_CATALOG, KvOffload, load_catalog
from workers.kv_endpoints import KvEndpoints
from workers.kv_links import PCIE, REACHED

PRODUCTION_LINES = {
    ("deepseek-v3.2", "tp8"): """
        vllm serve nvidia/DeepSeek-V3.2-NVFP4 --served-model-name deepseek-v3.2 --tensor-parallel-size 8
        --quantization modelopt_fp4 --kv-cache-dtype fp8
        --speculative-config '{"method":"mtp","num_speculative_tokens":1}' --tokenizer-mode deepseek_v32
        --reasoning-parser deepseek_v3 --enable-auto-tool-choice --tool-call-parser deepseek_v32
        --enable-prefix-caching --prefix-caching-hash-algo sha256_cbor --enable-prompt-tokens-details
        --max-model-len 163840 --max-num-seqs 256 --gpu-memory-utilization 0.92 --scheduling-policy priority
        --enable-sleep-mode --shutdown-timeout 120 --max-num-batched-tokens 4096""",
    ("minimax-m2.5", "tp4"): """
        vllm serve MiniMaxAI/MiniMax-M2.5 --served-model-name minimax-m2.5 --tensor-parallel-size 4
        --kv-cache-dtype fp8 --speculative-config '{"method":"eagle3","model":"thoughtworks/MiniMax-M2.5-Eagle3",
        "num_speculative_tokens":3,"draft_tensor_parallel_size":1}' --reasoning-parser minimax_m2
        --enable-auto-tool-choice --tool-call-parser minimax_m2 --enable-prefix-caching
        --enable-prompt-tokens-details --shutdown-timeout 120 --max-num-batched-tokens 8192""",
    ("qwen3.5-397b", "tp8"): """
        vllm serve Qwen/Qwen3.5-397B-A17B-FP8 --served-model-name qwen3.5-397b --tensor-parallel-size 8
        --enable-expert-parallel --speculative-config '{"method":"mtp","num_speculative_tokens":2}'
        --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_coder --language-model-only
        --max-model-len 262144 --enable-prefix-caching --mamba-cache-mode align --enable-prompt-tokens-details
        --shutdown-timeout 120 --max-num-batched-tokens 8192""",
    ("llama-3.3-70b", "tp2"): """
        vllm serve nvidia/Llama-3.3-70B-Instruct-FP8 --served-model-name llama-3.3-70b --tensor-parallel-size 2
        --kv-cache-dtype fp8 --max-model-len 32768 --gpu-memory-utilization 0.92 --enable-auto-tool-choice
        --tool-call-parser llama3_json --enable-prefix-caching --enable-prompt-tokens-details
        --scheduling-policy priority --max-num-queued-reqs 512 --shutdown-timeout 120
        --max-num-batched-tokens 2048""",
}
"""Lines that vLLM 0.32.0's own parser accepts and resolves to a full configuration (on a faked CUDA platform)."""


def words(line: str) -> list[str]:
    return [
        word.replace("\n", "").replace(" ", "") if word.startswith("{") else word
        for word in shlex.split(line)
    ]


@pytest.mark.parametrize(("model", "profile"), list(PRODUCTION_LINES))
def test_production_command_lines(model: str, profile: str) -> None:
    entry = load_catalog().model(model)
    line = entry.profile(profile).command_line(entry, 9000)
    assert line == [*words(PRODUCTION_LINES[model, profile]), "--host", "127.0.0.1", "--port", "9000"]


def test_an_engine_that_publishes_its_cache_binds_unix_sockets() -> None:
    entry = load_catalog().model("deepseek-v3.2")
    kv = KvEndpoints("ipc:///run/a.pub", "ipc:///run/a.replay")
    line = entry.profile().command_line(entry, 9000, kv=kv)
    assert line[line.index("--kv-events-config") + 1] == (
        '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///run/a.pub",'
        '"replay_endpoint":"ipc:///run/a.replay","topic":"deepseek-v3.2"}'
    )


def test_llama_has_a_speculative_draft_and_several_instances() -> None:
    model = load_catalog().model("llama-3.3-70b")
    line = model.profile("tp2-spec").command_line(model, 9000)
    assert '"draft_tensor_parallel_size":1' in line[line.index("--speculative-config") + 1]
    assert model.profile("tp2").instances == 4


def test_weights_in_a_directory_replace_the_hubs_name() -> None:
    model = load_catalog().model("penstock/tiny")
    line = model.profile().command_line(model, 9000, host="10.0.0.5", weights="/models/tiny")
    assert line[:5] == ["vllm", "serve", "/models/tiny", "--served-model-name", "penstock/tiny"]
    assert line[-4:] == ["--host", "10.0.0.5", "--port", "9000"]
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details", "--shutdown-timeout"} <= set(line)


def test_every_model_is_priced_and_every_price_exact() -> None:
    catalog = load_catalog()
    assert {"deepseek-v3.2", "minimax-m2.5", "qwen3.5-397b", "llama-3.3-70b", "penstock/tiny"} <= set(
        catalog.models
    )
    for model in catalog.models.values():
        price = model.list_price
        cached, fresh = (per_mtok_to_pico_per_token(text) for text in (price.cached_input, price.input))
        assert 0 < cached <= fresh
        assert price.source
        for profile in model.profiles.values():
            assert profile.capacity.max_model_len == model.context_len, "no placement looks at the length"
            assert profile.capacity.gpus == profile.gpus
    assert usd_to_pico(catalog.host_prices["gpu-b300x8-2304gb-spot"].usd_per_hour) == 64 * 10**12
    assert "gb200-nvl4" not in catalog.host_prices


def test_shutdown_timeout_is_always_set() -> None:
    for model in load_catalog().models.values():
        for profile in model.profiles.values():
            assert profile.args["shutdown-timeout"], f"{model.name}/{profile.name}"
            assert profile.args["enable-prompt-tokens-details"] is True


WRONG = [
    ('hub_id = "nvidia/DeepSeek-V3.2-NVFP4"', "hub = 1", "unknown field `hub`"),
    ('input = "0.50"', 'input = "cheap"', r"models\.deepseek-v3\.2\.list_price\.input: not a decimal amount"),
    ('input = "0.50"', 'input = "0.00000001"', "more than 6 decimals"),
    (
        "context_len = 163840",
        "context_len = 100",
        "max_output_tokens is 65536, must be between 1 and context_len",
    ),
    ('host_kind = "gpu-h200x8-1128gb"', 'host_kind = "gpu-x"', "'gpu-x', which is not among"),
    ("gpus = 8\nargs", "gpus = 16\nargs", "gpus is 16, but gpu-b300x8-2304gb-contracted has 8"),
    (
        "args.tensor-parallel-size = 8",
        "args.tensor-parallel-size = 4",
        "tensor-parallel-size is 4, but gpus is 8",
    ),
    ('args.tokenizer-mode = "deepseek_v32"', 'args.tokenizer-mode = "{secret}"', "unknown placeholder"),
    ('basis = "assumed"', 'basis = "guessed"', "Invalid enum value 'guessed'"),
    (
        "step_base_s = { value = 0.0076",
        "step_base_s = { value = 0",
        r"figures\.step_base_s is 0.0, must be above zero",
    ),
    (
        "accept_per_step = { value = 1.9",
        "accept_per_step = { value = 0",
        r"figures\.accept_per_step is 0.0, must be above zero",
    ),
    (
        "prefill_tokens_per_s = { value = 23200",
        "speed = { value = 1",
        r"missing \['prefill_tokens_per_s'\], unknown \['speed'\]",
    ),
    (
        '[models."deepseek-v3.2".experts]\ncount = 256',
        '[models."deepseek-v3.2".experts]\ncount = 4',
        r"models\.deepseek-v3\.2\.experts needs 0 < per_token <= count",
    ),
    (
        "step_per_seq_s = { value = 8.14e-05",
        'step_experts_s = { value = 0.01, basis = "assumed", date = 2026-11-24, source = "none" }\n'
        "step_per_seq_s = { value = 8.14e-05",
        r"figures\.step_experts_s needs the model's experts",
    ),
    (
        "args.data-parallel-size = 8",
        "args.data-parallel-size = 4",
        "tensor-parallel-size is 1, data-parallel-size is 4, but gpus is 8",
    ),
    (
        "args.data-parallel-size = 8",
        'args.data-parallel-size = "all"',
        "data-parallel-size must be a number between 1 and 4096",
    ),
    ('usd_per_hour = "35.28"', 'usd_per_hour = "?"', r"hosts\.gpu-h100x8-640gb\.price\.usd_per_hour"),
    (
        "kv_cache_tokens = { value = 73728",
        "kv_cache_tokens = { value = 1000",
        "less than one sequence of 65536",
    ),
    (
        "standard = { ttft_s = 2.0, tpot_s = 0.025 }",
        "standard = { ttft_s = 2.0, tpot_s = 0 }",
        r"models\.deepseek-v3\.2\.targets\.standard: tpot_s is 0, must be between 0.0001 and 3600 seconds",
    ),
    (
        "args.max-model-len = 163840",
        "args.max-num-batched-tokens = 2048\nargs.max-model-len = 163840",
        r"args\.max-num-batched-tokens: state \.figures\.max_batched_tokens instead",
    ),
    (
        "max_batched_tokens = { value = 4096",
        "max_batched_tokens = { value = 255",
        "max_batched_tokens is 255, which has no room for the 256 sequences of a rank",
    ),
    (
        'engine = "vllm"\nhost_kind = "local-cpu"',
        'kv_offload = { size_gib = 1.0 }\nengine = "vllm"\nhost_kind = "local-cpu"',
        r"kv_offload needs a size_gib above zero, and \.figures\.kv_token_bytes",
    ),
    (
        'title = "DeepSeek V3.2"',
        'title = "DeepSeek V3.2"\nwake_deadline_s = 601',
        r"models\.deepseek-v3\.2\.wake_deadline_s is 601, must be between 0 and 600 seconds",
    ),
    ("standard = { ttft_s", "normal = { ttft_s", "Invalid enum value 'normal'"),
    ("[hosts.", "[hosts", "is not TOML"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_wrong_catalog_is_refused_with_place_and_reason(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    text = DEFAULT_CATALOG.read_text()
    assert old in text
    path = tmp_path / "catalog.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidRequest, match=message):
        load_catalog(path)


def test_drafting_is_part_of_a_step_that_drafts() -> None:
    profile = load_catalog().model("minimax-m2.5").profile("tp4")
    figures = {name: figure.value for name, figure in profile.figures.items()}
    drafting, plain = profile.capacity, profile.plain
    assert drafting.step_base_s == pytest.approx(figures["step_base_s"] + figures["step_drafts_s"])
    assert (drafting.accept_per_step, drafting.draft_tokens) == (2.0, 3)
    assert (plain.step_base_s, plain.accept_per_step, plain.draft_tokens) == (figures["step_base_s"], 1.0, 0)
    assert plain.expert_share == 8 / 256
    assert plain.sweep == profile.sweep


def test_a_profile_with_data_parallel_attention_has_its_ranks() -> None:
    profile = load_catalog().model("deepseek-v3.2").profile("dp8")
    assert (profile.capacity.dp_ranks, profile.capacity.gpus) == (8, 8)
    assert load_catalog().model("deepseek-v3.2").profile("tp8").capacity.dp_ranks == 1


def test_kv_offloading_is_an_option_with_flags_and_figures(tmp_path: Path) -> None:
    text = DEFAULT_CATALOG.read_text()
    gpus = "gpus = 2 # four instances a host"
    assert gpus in text
    path = tmp_path / "catalog.toml"
    path.write_text(text.replace(gpus, gpus + '\nkv_offload = { size_gib = 100, backend = "lmcache" }', 1))
    entry = load_catalog(path).model("llama-3.3-70b")
    line = entry.profile().command_line(entry, 9000)
    found = line.index("--kv-offloading-size")
    assert line[found : found + 4] == ["--kv-offloading-size", "100.0", "--kv-offloading-backend", "lmcache"]
    capacity = entry.profile().capacity
    assert capacity.host_kv_tokens == int(100 * 2**30 / 164_000)
    assert 0 < capacity.kv_load_s < 1 / capacity.prefill_tokens_per_s
    bare = load_catalog().model("llama-3.3-70b").profile()
    assert (bare.capacity.host_kv_tokens, bare.capacity.kv_load_s) == (0, 0.0)


def test_with_one_copy_for_all_gpus_more_tokens_fit_but_not_with_lmcache() -> None:
    profile = load_catalog().model("deepseek-v3.2").profile("tp8-h200-kv")
    assert profile.capacity.host_kv_tokens == int(440 * 2**30 / 48_000)
    assert profile.capacity.kv_load_s == pytest.approx(384_000 / 8 / (REACHED * PCIE)), (
        "each GPU reads all of it"
    )
    lmcache = msgspec.structs.replace(profile, kv_offload=KvOffload(440.0, "lmcache"))
    assert lmcache.capacity.host_kv_tokens == int(440 * 2**30 / 384_000)


def test_every_rank_gets_its_part_of_host_memory() -> None:
    model = load_catalog().model("deepseek-v3.2")
    profile = msgspec.structs.replace(model.profile("dp8"), kv_offload=KvOffload(400.0))
    line = profile.command_line(model, 9000)
    assert line[line.index("--kv-offloading-size") + 1] == "50.0"


@pytest.mark.parametrize(
    ("model", "name"),
    [("deepseek-v3.2", "tp8-h200-kv"), ("minimax-m2.5", "tp4-h100-kv"), ("llama-3.3-70b", "tp2-kv")],
)
def test_a_profile_that_extends_another_is_like_it_but_for_its_changes(model: str, name: str) -> None:
    entry = load_catalog().model(model)
    base, tiered = entry.profile(name.removesuffix("-kv")), entry.profile(name)
    size = tiered.kv_offload.size_gib
    assert tiered.command_line(entry, 9000) == [
        *base.command_line(entry, 9000)[:-4],
        *("--kv-offloading-size", str(size), "--kv-offloading-backend", "native"),
        *("--host", "127.0.0.1", "--port", "9000"),
    ]
    assert (tiered.sweep, tiered.plain, tiered.weights_gb) == (base.sweep, base.plain, base.weights_gb)
    assert tiered.extends == base.name


def extended(changes: str) -> str:
    """The catalog with a profile of Llama that extends another one."""
    return f'{DEFAULT_CATALOG.read_text()}\n[models."llama-3.3-70b".profiles.other]\n{changes}\n'


def test_single_arguments_and_figures_are_changed(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(
        extended(
            'extends = "tp2"\nargs.scheduling-policy = "fcfs"\nargs.enable-prefix-caching = false\n'
            'env.OMP_NUM_THREADS = "1"\n'
            'figures.max_num_seqs = { value = 64, basis = "assumed", date = 2026-11-29, source = "a test" }'
        )
    )
    model = load_catalog(path).model("llama-3.3-70b")
    base, other = model.profile("tp2"), model.profile("other")
    assert other.args == {**base.args, "scheduling-policy": "fcfs", "enable-prefix-caching": False}
    assert "--enable-prefix-caching" not in other.command_line(model, 9000)
    assert (other.capacity.max_num_seqs, base.capacity.max_num_seqs) == (64, 256)
    assert other.env == {"OMP_NUM_THREADS": "1"}
    assert other.figures["kv_cache_tokens"] == base.figures["kv_cache_tokens"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            'extends = "tp64"',
            r"other\.extends is 'tp64', which is no profile of the model; it can extend: tp2, tp2-s",
        ),
        ("extends = 3", r"other\.extends is 3, which is no profile"),
        ('extends = "other"', r"other\.extends is 'other', which itself extends 'other'"),
        (
            'extends = "more"\n[models."llama-3.3-70b".profiles.more]\nextends = "tp2"',
            r"other\.extends is 'more', which itself extends 'tp2'; extend one that extends none",
        ),
        ('extends = "tp2"\ngpus = 4', r"other \(extends tp2\): tensor-parallel-size is 2, but gpus is 4"),
        (
            'extends = "tp2"\nkv_offload = { size_gib = 500 }',
            r"other \(extends tp2\)\.kv_offload of 4 engines takes 2147 GB, and gpu-h100x8-640gb has 1900 GB",
        ),
        (
            'extends = "tp2"\nargs.enable-sleep-mode = true\nkv_offload = { size_gib = 400 }',
            "takes 1718 GB beside 300 GB of weights at sleep level 1, .*; state a smaller size_gib, or "
            r"args\.enable-sleep-mode = false",
        ),
        (
            'extends = "tp2"\nhost_kind = "gpu-mi300x8-1536gb"\nkv_offload = { size_gib = 1 }',
            r"kv_offload needs GPUs, and the ram_gb of \[hosts\.gpu-mi300x8-1536gb\]",
        ),
    ],
)
def test_a_profile_that_cannot_extend_another_is_refused(changes: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(extended(changes))
    with pytest.raises(InvalidRequest, match=message):
        load_catalog(path)


def test_missing_file_and_names(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read the catalog"):
        load_catalog(tmp_path / "none.toml")
    with pytest.raises(InvalidRequest, match="has no profile 'tp64'; it has: tp8"):
        load_catalog().model("deepseek-v3.2").profile("tp64")
