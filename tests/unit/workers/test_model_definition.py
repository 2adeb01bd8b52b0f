"""Added models: the roofline beside fitted figures, the fit, arguments, and what is refused."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from core.errors import InvalidRequest
from tests.unit.workers.test_model_config import DEEPSEEK, LLAMA, MINIMAX
from workers.added_models import decode_model, encode_model, with_added
from workers.catalog import CatalogModel, load_catalog
from workers.model_definition import Fit, NewModel, ProfileFile, define, parse_argument, read_profile
from workers.wire import basis_of

TODAY = date(2026, 11, 27)
HOSTS = load_catalog().hosts
B300 = "gpu-b300x8-2304gb-contracted"
CACHE = {"kv-cache-dtype": "fp8"}
FP8 = {"quantization_config": {"quant_method": "fp8"}}


def made(config: dict[str, Any] = LLAMA, **facts: Any) -> tuple[CatalogModel, Fit]:
    """A definition; by default of Llama-70B in FP8 on two H100."""
    usual: dict[str, Any] = {
        "name": "acme/model",
        "config": FP8 | config,
        "host_kind": "gpu-h100x8-640gb",
        "gpus": 2,
        "args": {"max-model-len": 32_768, "kv-cache-dtype": "fp8"},
    }
    return define(HOSTS, NewModel(**(usual | facts)), TODAY)


@pytest.mark.parametrize(
    ("fitted", "config", "facts", "factor"),
    [
        (("llama-3.3-70b", "tp2"), LLAMA, {}, 1.3),
        (("minimax-m2.5", "tp4"), MINIMAX, {"gpus": 4, "host_kind": B300, "args": CACHE}, 2.0),
        (
            ("minimax-m2.5", "tp4-h100"),
            MINIMAX,
            {"gpus": 4, "args": CACHE | {"enable-expert-parallel": True}},
            3.3,
        ),
    ],
)
def test_the_roofline_is_near_the_figures_of_fits(
    fitted: tuple[str, str], config: dict[str, Any], facts: dict[str, Any], factor: float
) -> None:
    """By `factor` at most off what was fitted to sweeps, and the cache by a quarter: there learning starts."""
    known = load_catalog().model(fitted[0]).profile(fitted[1]).figures
    figures = made(config, **facts)[0].profile().figures
    names = ("prefill_tokens_per_s", "prefill_pair_s", "step_base_s", "step_per_seq_s", "step_per_kv_token_s")
    for name in (*names, *({"step_experts_s"} & known.keys())):
        assert 1 / factor < figures[name].value / known[name].value < factor, name
    assert figures["kv_token_bytes"].value == pytest.approx(known["kv_token_bytes"].value, rel=0.01)
    assert figures["kv_cache_tokens"].value == pytest.approx(known["kv_cache_tokens"].value, rel=0.25)


def test_an_entry_is_unvalidated_and_survives_storage() -> None:
    model, fit = made()
    assert basis_of(model.profile().capacity) == "unvalidated"
    assert decode_model(encode_model(model)) == model
    assert (model.list_price, model.name, model.hub_id) == (None, "acme/model", "acme/model")
    assert (fit.instances, fit.max_model_len, model.profile().layout(4)) == (4, 32_768, "4 x TP2")
    assert float(fit.weights_gb) == pytest.approx(72.7, rel=0.02)
    assert {figure.basis for figure in model.profile().figures.values()} == {"computed"}
    line = " ".join(model.profile().command_line(model, 9000))
    assert line.startswith("vllm serve acme/model --served-model-name acme/model --max-model-len 32768")
    assert "--tensor-parallel-size 2" in line
    assert "--max-num-seqs 256" in line


def test_the_catalogs_own_models_go_first() -> None:
    catalog = load_catalog()
    other, _ = made(name="llama-3.3-70b")
    merged = with_added(catalog, {"llama-3.3-70b": other, "acme/model": other})
    assert merged.models["llama-3.3-70b"] == catalog.models["llama-3.3-70b"]
    assert "acme/model" in merged.models
    assert with_added(catalog, {}) is catalog


def test_latents_are_replicated_and_data_parallelism_divides_them() -> None:
    args = {"max-model-len": 32_768, "kv-cache-dtype": "fp8"}
    on = {"host_kind": "gpu-b300x8-2304gb-contracted", "gpus": 8}
    tensor = made(DEEPSEEK, args=args, **on)[0].profile()
    data = made(DEEPSEEK, args=args | {"data-parallel-size": 8, "enable-expert-parallel": True}, **on)[
        0
    ].profile()
    assert tensor.figures["kv_token_bytes"].value == 8 * data.figures["kv_token_bytes"].value
    assert data.capacity.kv_cache_tokens > 5 * tensor.capacity.kv_cache_tokens
    assert tensor.capacity.step_per_kv_token_s == pytest.approx(
        8 * data.capacity.step_per_kv_token_s, rel=0.01
    )
    assert (data.capacity.dp_ranks, data.capacity.max_num_seqs) == (8, 8 * 256)


def test_weights_of_sixteen_bits_and_stated_sizes_take_their_time() -> None:
    on = {"gpus": 8, "args": {"max-model-len": 8_192}}
    eight, sixteen = made(**on)[0].profile().capacity, made(LLAMA | {"quantization_config": None}, **on)[0]
    assert eight.prefill_tokens_per_s == pytest.approx(
        2 * sixteen.profile().capacity.prefill_tokens_per_s, rel=0.01
    )
    larger, fit = made(**on, weight_bytes=3 * 72_654_000_000)
    reduces_s = 2 * 80 * 10e-6
    assert larger.profile().capacity.step_base_s - reduces_s == pytest.approx(
        3 * (eight.step_base_s - reduces_s), rel=0.02
    )
    assert (fit.weights_gb, larger.weights_gb) == ("218", 217.962)


def test_what_is_known_better_goes_before_the_roofline(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(
        'args.tool-call-parser = "hermes"\nargs.enable-auto-tool-choice = true\nenv.VLLM_A = "1"\n'
        'figures.prefill_tokens_per_s = { value = 9000, basis = "measured", date = 2026-11-01, source = "here" }\n'
    )
    model, _ = made(
        profile=read_profile(path), args={"max-model-len": 4_096, "max-num-batched-tokens": 2_048}
    )
    profile = model.profile()
    assert profile.figures["prefill_tokens_per_s"].basis == "measured"
    assert profile.capacity.max_batched_tokens == 2_048
    assert (profile.env, "tools" in model.capabilities) == ({"VLLM_A": "1"}, True)
    path.write_text("argz = 1")
    with pytest.raises(InvalidRequest, match="argz"):
        read_profile(path)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            'figures.request_s = {{ value = {}, basis = "measured", date = 2026-11-01, source = "x" }}',
            "figures.request_s",
        ),
        ("args.some-share = {}", "args.some-share"),
        ("args.some-config = {{ share = {} }}", "args.some-config.share"),
        ("kv_offload.size_gib = {}", "kv_offload.size_gib"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, line: str, name: str, value: str) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(line.format(value))
    with pytest.raises(InvalidRequest, match=f"{name} is {value}, must be a finite number"):
        made(profile=read_profile(path))


def test_a_machine_without_gpus_has_a_cache_of_a_gibibyte() -> None:
    small = LLAMA | {
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model, fit = made(small, host_kind="local-cpu", gpus=0, args={}, weight_bytes=10**7)
    assert fit.kv_cache_tokens == 2**30 // fit.kv_token_bytes
    assert (fit.max_model_len, model.profile().env) == (4_096, {"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert "tensor-parallel-size" not in model.profile().args


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"host_kind": "gpu-x"}, "no kind of host 'gpu-x'"),
        ({"gpus": 9}, "gpus is 9, but a gpu-h100x8-640gb has 8"),
        ({"gpus": 0}, "at least one"),
        ({"gpus": 3}, "64 attention heads cannot be split over 3 GPUs"),
        ({"gpus": 1}, r"does not fit on 1 GPUs .* weights take 72\.\d of 73\.6 GB"),
        ({"config": LLAMA}, "does not fit on 2 GPUs"),
        ({"args": CACHE | {"max-model-len": 132_000}}, r"is 132000, must be between 1 and context_len \(131072\)"),
        ({"args": {"max-model-len": "long"}}, "max-model-len is long"),
        ({"args": {"api-key": "x"}}, "api-key is set by Penstock itself"),
        ({"args": {"download-dir": "/x"}}, "download-dir is not possible: the agent fetches weights into the cache"),
        ({"args": {"hf-config-path": "a/b"}}, "hf-config-path is not possible: engines start without the hub"),
        ({"args": {"api_key": "x"}}, "'api_key' is no argument"),
        ({"args": {"compilation-config.--uds": "x"}}, "is no argument"),
        ({"args": {"trust-remote-code": True}}, "trust-remote-code lets the engine run code"),
        ({"args": {"reasoning-parser-plugin": "x.py"}}, "reasoning-parser-plugin lets the engine run code"),
        ({"args": {"dtype": "--uds=/x"}}, "the value of dtype begins with a hyphen"),
        ({"weights": "--uds=/x"}, "weights begins with a hyphen"),
        ({"profile": ProfileFile(env={"LD_PRELOAD": "x"})}, "cannot set 'LD_PRELOAD'"),
        ({"profile": ProfileFile(env={"VLLM_API_KEY": ""})}, "cannot set 'VLLM_API_KEY'"),
        ({"args": {"gpu-memory-utilization": 1.5}}, "gpu-memory-utilization is 1.5"),
        ({"args": {"data-parallel-size": 4}}, "tensor-parallel-size is 1, data-parallel-size is 4, but gpus is 2"),
        ({"config": FP8 | LLAMA | {"architectures": ["BertModel"]}}, "BertModel generates no text"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_with_what_to_do(facts: dict[str, Any], message: str) -> None:
    config = facts.pop("config", FP8 | LLAMA)
    usual = {"name": "m", "host_kind": "gpu-h100x8-640gb", "gpus": 2}
    with pytest.raises(InvalidRequest, match=message):
        define(HOSTS, NewModel(config=config, **(usual | facts)), TODAY)


def test_a_model_of_embeddings_is_served_as_one() -> None:
    config = LLAMA | {"architectures": ["BertModel"]}
    model, _ = made(config, args={"runner": "pooling", "max-model-len": 8_192})
    assert model.capabilities == ["embeddings"]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("max-model-len=32768", "max-model-len", 32_768),
        ("--enforce-eager", "enforce-eager", True),
        ("dtype=float32", "dtype", "float32"),
        ("trust-remote-code=true", "trust-remote-code", True),
        ('speculative-config={"method":"mtp"}', "speculative-config", {"method": "mtp"}),
        ("gpu-memory-utilization=0.9", "gpu-memory-utilization", 0.9),
        ("chat-template=[1]", "chat-template", "[1]"),
    ],
)
def test_arguments_are_read_as_written(text: str, name: str, value: object) -> None:
    assert parse_argument(text) == (name, value)


@pytest.mark.parametrize("text", ["", "=1", "a b=1", "a;b"])
def test_what_is_no_argument_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="NAME=VALUE"):
        parse_argument(text)
