"""deploy/images: the bake of a snapshot on a fake account, the scripts, and the agent's service."""

import argparse
import configparser
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cli.commands.roles import _MODULES as ROLES
from core.settings import Settings
from workers.agent import STOP_S

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "deploy/images"
NAME = "penstock-image-1"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("snapshot", IMAGES / "snapshot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


snapshot = load()
OPTIONS = argparse.Namespace(
    region="nyc2",
    size="gpu-h100x1-80gb",
    image="gpu-h100x1-base",
    archive="https://example.com/a b.tar.gz",
    sha256="ab" * 32,
    weights=["org/model"],
    ssh_key=[],
    limit_s=600.0,
    poll_s=10.0,
)


class Account:
    """An account at DigitalOcean, with a clock: a droplet is off after 100 s, a snapshot complete after 50 s."""

    def __init__(self, *, create: str = "ok", prepares: bool = True, action: str = "completed") -> None:
        self.time = 0.0
        self.create, self.prepares, self.action = create, prepares, action
        self.droplets: dict[int, tuple[float, dict[str, Any]]] = {}
        self.bodies: list[dict[str, Any]] = []
        self.busy = 1
        self._late: tuple[float, dict[str, Any]] | None = None

    def pause(self, seconds: float) -> None:
        self.time += seconds
        if self._late is not None and self.time >= self._late[0]:
            self.droplets[7], self._late = self._late, None

    def call(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        where = path.removeprefix("/v2/")
        match method, where:
            case "POST", "droplets":
                assert body is not None
                self.bodies.append(body)
                return self._create(body)
            case "GET", "droplets/7":
                began, _ = self.droplets[7]
                return {
                    "droplet": {"status": "off" if self.prepares and self.time >= began + 100 else "active"}
                }
            case "POST", "droplets/7/actions":
                self.bodies.append(body or {})
                return {"action": {"id": 9, "status": "in-progress"}}
            case "GET", "actions/9":
                return {"action": {"id": 9, "status": self.action if self.time >= 150 else "in-progress"}}
            case "GET", "droplets/7/snapshots":
                return {"snapshots": [{"id": 41, "name": "another"}, {"id": 42, "name": NAME}]}
            case "GET", _ if where.startswith("droplets?type=gpus"):
                return {
                    "droplets": [
                        {"id": key, "tags": body["tags"]} for key, (_, body) in self.droplets.items()
                    ]
                }
            case "GET", _ if where.startswith("droplets?tag_name="):
                return {"droplets": []}  # as for GPU droplets
            case "DELETE", "droplets/7":
                if self.busy:
                    self.busy -= 1
                    raise snapshot.Refused("Droplet already has a pending event.", 422)
                del self.droplets[7]
                return {}
        raise AssertionError((method, path))

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        match self.create:
            case "refused":
                raise snapshot.Refused("Size is not available in this region.", 422)
            case "lost":
                self._late = (self.time + 120, body)
                raise snapshot.Refused("500", 500)
        self.droplets[7] = (self.time, body)
        return {"droplet": {"id": 7}}


def bake(account: Account) -> int:
    made: int = snapshot.bake(
        account.call, OPTIONS, name=NAME, tell=lambda _: None, now=lambda: account.time, pause=account.pause
    )
    return made


def test_a_snapshot_is_made_of_a_host_that_has_switched_itself_off() -> None:
    account = Account()
    assert bake(account) == 42
    assert account.droplets == {}
    create, action = account.bodies
    assert create["tags"] == [NAME]
    assert action == {"type": "snapshot", "name": NAME}
    assert account.time >= 150


@pytest.mark.parametrize(
    ("account", "why"),
    [
        (Account(prepares=False), "the preparation did not happen within 600 s"),
        (Account(action="errored"), "the snapshot failed"),
        (Account(create="lost"), "500"),
        (Account(create="refused"), "not available"),
    ],
)
def test_no_droplet_is_left_whatever_fails(account: Account, why: str) -> None:
    with pytest.raises(snapshot.Refused, match=why):
        bake(account)
    assert account.droplets == {}
    assert sum("tags" in body for body in account.bodies) == 1, "a create is never sent twice"
    assert account.time >= 300 or account.create != "lost"


def test_without_a_token_one_line_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIGITALOCEAN_TOKEN", raising=False)
    arguments = ["--region", "nyc2", "--size", "s", "--archive", "https://example.com/a", "--sha256", "ab"]
    assert snapshot.main(arguments) == 2
    assert capsys.readouterr().err == "snapshot.py: DIGITALOCEAN_TOKEN is not set\n"


def test_the_first_start_prepares_and_seals_what_it_has_checked(tmp_path: Path) -> None:
    script = snapshot.user_data(OPTIONS)
    assert "curl --fail" in script
    assert "'https://example.com/a b.tar.gz'" in script
    assert (
        script.index("sha256sum --check") < script.index("tar -C") < script.index("prepare.sh --engine gpu")
    )
    assert "--weights org/model --seal" in script
    assert len(script.encode()) < 64 * 1024
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def tool(name: str) -> Path | None:
    found = [Path(each) / name for each in ("/usr/bin", "/usr/local/bin", ROOT / ".tools/usr/bin")]
    return next((path for path in found if path.exists()), None)


def test_the_scripts_are_clean(tmp_path: Path) -> None:
    shellcheck = tool("shellcheck")
    if shellcheck is None:
        pytest.skip("no shellcheck: `make edge` fetches it on Debian")
    first_start = tmp_path / "user-data.sh"
    first_start.write_text(snapshot.user_data(OPTIONS))
    scripts = [IMAGES / "prepare.sh", ROOT / "deploy/make-secrets.sh", first_start]
    ran = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def test_an_image_is_filled_by_the_prefetch_and_its_stages_are_noted(tmp_path: Path) -> None:
    """With stand-ins for the tools of the agent's environment."""
    tools, said = tmp_path / "opt" / ".venv" / "bin", tmp_path / "said"
    tools.mkdir(parents=True)
    for name in ("python", "pip", "uv"):
        path = tools / name
        path.write_text(f'#!/bin/sh\necho "$HF_HOME {name} $*" >> {said}\n')
        path.chmod(0o755)
    places = ("--prefix", tmp_path / "opt", "--data-dir", tmp_path / "data")
    asked = ("--weights", "acme/a", "--weights", "acme/b@v2")
    subprocess.run(
        [IMAGES / "prepare.sh", *places, "--engine", "none", "--without-system", *asked], check=True
    )
    fetched = [f"{tmp_path}/data/hub python -m workers.prefetch {name}" for name in ("acme/a", "acme/b@v2")]
    assert said.read_text().splitlines()[-2:] == fetched
    stages = (tmp_path / "opt" / "image-stages.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in stages] == ["agent", "weights"]


def test_relative_paths_are_those_of_the_caller_and_no_engine_is_copied(tmp_path: Path) -> None:
    tools = tmp_path / "opt" / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("python", "pip", "uv"):
        (tools / name).symlink_to("/bin/true")
    (tools / "penstock").write_text(
        '#!/bin/sh\necho "$*" >> said\nfor last; do :; done\ncat "$last" >> said || true\n'
    )
    (tools / "penstock").chmod(0o755)
    (tmp_path / "new.txt").write_text("the lock\n")
    script = tmp_path / "checkout" / "deploy" / "images" / "prepare.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(IMAGES / "prepare.sh", script)
    for name in (".engine", ".engine-0.33.0", "workers"):
        (tmp_path / "checkout" / name).mkdir()
    where = ("--prefix", "opt", "--engine-env", "engine", "--data-dir", "data", "--without-system")
    subprocess.run([script, *where, "--engine", "cpu", "--also", "0.33.0=new.txt"], check=True, cwd=tmp_path)
    other = "engine install --kind cpu --engine-env engine --version 0.33.0 --lock new.txt"
    assert (tmp_path / "said").read_text().splitlines()[-2:] == [other, "the lock"]
    copied = {each.name for each in (tmp_path / "opt").iterdir()}
    assert copied == {".venv", "deploy", "image-stages.tsv", "workers"}  # no engine of the checkout


@pytest.mark.parametrize(
    ("arguments", "why"), [(["--prefx", "/x"], "--prefx"), (["--engine", "rocm"], "rocm")]
)
def test_wrong_arguments_change_nothing_and_are_named(arguments: list[str], why: str) -> None:
    ran = subprocess.run([IMAGES / "prepare.sh", *arguments], capture_output=True, text=True)
    assert ran.returncode == 2
    assert why in ran.stderr


def test_the_service_runs_the_agent_that_the_script_installs() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(IMAGES / "penstock-agent.service")
    service, script = unit["Service"], (IMAGES / "prepare.sh").read_text()
    defaults = dict(re.findall(r"^  --([a-z-]+) DIR +.*\((.*)\)$", script, re.MULTILINE))
    program, role = service["ExecStart"].split()
    assert program == f"{defaults['prefix']}/.venv/bin/penstock"
    assert role in ROLES
    given = dict(each.split("=") for each in service["Environment"].split())
    assert given["PENSTOCK_ENGINE_ENV"] == defaults["engine-env"]
    assert given["PENSTOCK_DATA_DIR"] == defaults["data-dir"]
    assert {name.lower().removeprefix("penstock_") for name in given} - set(Settings.model_fields) == {
        "hf_home"
    }
    assert float(service["TimeoutStopSec"]) > STOP_S
    assert service["EnvironmentFile"] == unit["Unit"]["ConditionPathExists"]
    assert service["KillMode"] == "process", "engines outlive a crash of their agent"
