"""The version of a model's engine: its name, what it changes of a profile, and what it may not."""

from pathlib import Path

import pytest

from core.errors import InvalidRequest
from workers.catalog import load_catalog
from workers.engine_spec import BASE, EngineSpec, environment, profile_of

MODEL = load_catalog().model("llama-3.3-70b")


def test_its_name_follows_from_its_content() -> None:
    one = EngineSpec(engine_version="0.33.0", args={"max-num-seqs": 8, "block-size": 32})
    other = EngineSpec(engine_version="0.33.0", args={"block-size": 32, "max-num-seqs": 8})
    assert EngineSpec().version == BASE
    assert one.version == other.version
    assert len(one.version) == 8
    assert one.version != EngineSpec(engine_version="0.33.0").version


def test_arguments_replace_those_of_the_profile() -> None:
    base = MODEL.profile()
    spec = EngineSpec(args={"max-model-len": 4096, "enable-sleep-mode": None}, revision="abc123")
    made = profile_of(MODEL, base, spec)
    assert made.args == {
        **{flag: value for flag, value in base.args.items() if flag != "enable-sleep-mode"},
        "max-model-len": 4096,
        "revision": "abc123",
    }
    assert made.capacity.max_model_len == 4096
    assert profile_of(MODEL, base, EngineSpec()) == base


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (EngineSpec(profile="nope"), "has no profile 'nope'"),
        (EngineSpec(engine_version="../../tmp"), "must be letters, digits"),
        (EngineSpec(revision="-x"), "must be letters, digits"),
        (EngineSpec(args={"middleware": "x"}), "run code"),
        (EngineSpec(args={"port": 1}), "set by Penstock itself"),
        (EngineSpec(args={"tensor-parallel-size": 1}), "cannot set the argument tensor-parallel-size"),
        (EngineSpec(args={"max-model-len": 10**9}), "must be between 1 and the model's context"),
    ],
)
def test_what_a_replica_cannot_run_is_refused(spec: EngineSpec, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        profile_of(MODEL, MODEL.profile(), spec)


def test_a_profile_with_other_gpus_is_refused() -> None:
    model, base, other = next(
        (model, base, other)
        for model in load_catalog().models.values()
        for base in model.profiles.values()
        for other in model.profiles.values()
        if (other.gpus, other.dp_ranks) != (base.gpus, base.dp_ranks)
    )
    with pytest.raises(InvalidRequest, match="a rollout keeps both"):
        profile_of(model, base, EngineSpec(profile=other.name))


def test_an_engine_version_has_a_directory_beside_the_hosts_own() -> None:
    assert environment(Path("/opt/vllm/.engine"), EngineSpec()) == Path("/opt/vllm/.engine")
    assert environment(Path("/opt/vllm/.engine"), EngineSpec(engine_version="0.33.0")) == Path(
        "/opt/vllm/.engine-0.33.0"
    )


def test_it_is_beside_what_a_link_leads_to_and_a_part_of_a_path(tmp_path: Path) -> None:
    (tmp_path / "disk" / "vllm").mkdir(parents=True)
    link = tmp_path / ".engine"
    link.symlink_to(tmp_path / "disk" / "vllm")
    spec = EngineSpec(engine_version="0.33.0")
    assert environment(link, spec) == tmp_path / "disk" / "vllm-0.33.0"
    assert environment(link, EngineSpec()) == link
    with pytest.raises(InvalidRequest, match=r"engine_version is '\.\./x'; it must be letters"):
        environment(link, EngineSpec(engine_version="../x"))
