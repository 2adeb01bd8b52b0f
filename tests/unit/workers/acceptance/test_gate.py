"""A host with GPUs that cannot be planned is refused and tried again; a machine of a person says so at once."""

from pathlib import Path

import pytest

from core.clock import SystemClock
from core.errors import Unavailable
from core.process_identity import boot_id
from core.settings import Settings
from tests.support.gpu_machine import gpu_machine
from workers.acceptance import gate, record
from workers.acceptance.check import Acceptance
from workers.acceptance.gate import HostGate
from workers.acceptance.readings import HostReading
from workers.catalog import load_catalog
from workers.machine import Gpus
from workers.plan import HostPlan, plan_vllm
from workers.prepare import prepare
from workers.wire import AcceptanceReport

CATALOG = load_catalog()
KIND = "gpu-h100x8-640gb"


def settings(directory: Path, *, engine: str = "vllm", **fields: object) -> Settings:
    return Settings(data_dir=directory, engine=engine, engine_env=directory / "engine", **fields)  # type: ignore[arg-type]


async def refusals(host: Settings, failures: int) -> tuple[HostPlan, HostGate, list[AcceptanceReport | None]]:
    """The plan of a host for which `failures` attempts fail, and what was reported before each attempt."""
    found: list[AcceptanceReport | None] = []
    plan = plan_vllm(CATALOG, "h", "llama-3.3-70b", 4, Gpus(tuple("01234567"), "H100"), hub_answers=True)
    made = HostGate(host, CATALOG, SystemClock())

    async def make() -> HostPlan:
        found.append(made.report())
        if len(found) <= failures:
            raise Unavailable("the engine cannot be installed: no space is left")
        return plan

    assert await made.planned(make) == plan
    return plan, made, found


async def test_a_host_that_cannot_be_planned_is_refused_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AGAIN_S", 0.0)
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    _, made, (before, first, second) = await refusals(settings(tmp_path, host_kind=KIND), 2)
    assert before is None
    for report in (first, second, made.report()):
        assert report is not None
        assert report.verdict == "refused"
        assert [(each.check, each.text) for each in report.findings] == [
            ("plan", "the engine cannot be installed: no space is left")
        ]
        assert report.figures == {"gpus": 0.0}


async def test_what_is_stored_of_a_host_does_not_outlast_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that is older than the refusal would leave the host refused for ever."""
    monkeypatch.setattr(gate, "AGAIN_S", 0.0)
    for name, value in gpu_machine(tmp_path, 8).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NVML_STUB", "gpus=8")
    earlier = Acceptance("accepted", SystemClock().now(), boot_id(), (), HostReading(loaded=True))
    record.save(tmp_path, earlier)
    plan, made, _ = await refusals(settings(tmp_path, host_kind=KIND), 1)
    await made.admit(plan, busy=False)
    report = made.report()
    assert report is not None
    assert report.verdict != "refused"
    assert report.at_unix_ms > earlier.at.timestamp() * 1000


@pytest.mark.parametrize(
    "fields", [{}, {"host_kind": "local-cpu"}, {"host_kind": KIND, "engine": "sim"}], ids=str
)
async def test_an_agent_without_a_stated_kind_with_gpus_ends_with_the_reason(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    with pytest.raises(Unavailable, match="no space is left"):
        await refusals(settings(tmp_path, **fields), 1)


async def test_a_host_with_a_stated_kind_serves_no_model_on_its_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for model in ("", "penstock/tiny"):
        with pytest.raises(Unavailable, match=f"kind {KIND} has 8 H100 GPUs, and nvidia-smi lists none"):
            await prepare(settings(tmp_path, host_kind=KIND, model=model), CATALOG, "h")
