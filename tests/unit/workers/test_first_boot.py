"""User data of hosts: our script with its values, an operator's own beside it, and what it does when it runs."""

import email
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from core.errors import InvalidRequest
from tests.support.waiting import until
from workers.join_token import new_secret
from workers.providers.first_boot import TEMPLATE, FirstBoot, script, user_data

BOOT = FirstBoot(f"pj_{new_secret()}.{'0' * 64}", "10.0.0.2:8010,[fd00::1]:8010", "nyc2", "", "penstock/tiny")


def test_all_names_are_filled_in() -> None:
    text = script(BOOT)
    assert "@" not in text
    assert BOOT.join_token in text
    assert 'PENSTOCK_SCHEDULERS="10.0.0.2:8010,[fd00::1]:8010"' in text


@pytest.mark.parametrize("model", ["$(reboot)", "a b", 'a"', "`id`", "a\nb", "a;b"])
def test_what_a_shell_would_run_is_refused(model: str) -> None:
    with pytest.raises(InvalidRequest, match="no shell script takes"):
        script(FirstBoot("pj_a", "h:1", "r", "", model))


@pytest.mark.parametrize(
    ("own", "kind"),
    [
        ("#!/bin/sh\necho é\n", "x-shellscript"),
        ("#cloud-config\npackages: [jq]\n", "cloud-config"),
        ("#include\nhttps://example.com/a\n", "x-include-url"),
        ("#include-once\nhttps://example.com/a\n", "x-include-once-url"),
        ("## template: jinja\n#cloud-config\n", "jinja2"),
        ("#cloud-boothook\n#!/bin/sh\n", "cloud-boothook"),
    ],
)
def test_an_operators_own_part_stands_first(own: str, kind: str) -> None:
    parts = email.message_from_string(user_data(own, BOOT)).get_payload()
    assert [part.get_content_subtype() for part in parts] == [kind, "x-shellscript"]  # type: ignore[union-attr]
    contents = [part.get_payload(decode=True).decode() for part in parts]  # type: ignore[union-attr]
    assert contents == [own, script(BOOT)]
    assert user_data(own, None) == own


@pytest.mark.parametrize("own", ["MIME-Version: 1.0\n", "Content-Type: multipart/mixed\n", "echo hello\n"])
def test_user_data_that_cannot_be_a_part_is_refused(own: str) -> None:
    with pytest.raises(InvalidRequest, match="must begin with one of"):
        user_data(own, BOOT)
    assert user_data(own, None) == own


def test_an_image_and_the_first_start_agree() -> None:
    """On the agent's path and files; an image keeps no credentials of the machine that it was made on."""
    images = TEMPLATE.parents[1] / "images"
    unit, text = (images / "penstock-agent.service").read_text(), TEMPLATE.read_text()
    [command] = re.findall(r"^ExecStart=(\S+) agent$", unit, re.MULTILINE)
    assert f"${{PENSTOCK_COMMAND:-{command}}}" in text
    assert "EnvironmentFile=/etc/penstock/agent.env" in unit
    assert "PENSTOCK_DATA_DIR=/var/lib/penstock " in unit
    assert 'if [ ! -f "$unit" ]' in text, "the image's unit is kept"
    assert re.search(r'chown penstock: "\$data" "\$data/host-id" "\$data/join-token" "\$hub"', text)
    seal = (images / "prepare.sh").read_text().partition("\nseal() {")[2].partition("\n}")[0]
    for name in ("host-id", "join-token", "host-credentials*.json"):
        assert name in seal


def test_the_script_passes_shellcheck(tmp_path: Path) -> None:
    tool = shutil.which("shellcheck")
    if tool is None:
        pytest.skip("shellcheck is not installed")
    path = tmp_path / "host.sh"
    path.write_text(script(BOOT))
    subprocess.run([tool, "--exclude=SC1090,SC1091", str(path)], check=True)


@pytest.mark.parametrize(
    ("baked", "scratch", "hub"),
    [
        (False, False, "var/lib/penstock/hub"),
        (False, True, "mnt/scratch/penstock-hub"),
        (True, True, "var/lib/penstock/hub"),
    ],
)
async def test_the_script_writes_what_the_agent_reads_and_starts_it(
    tmp_path: Path, baked: bool, scratch: bool, hub: str
) -> None:
    """Without systemd, with a metadata service that curl stands for."""
    if Path("/run/systemd/system").is_dir():
        pytest.skip("it would install a unit on this machine")
    tools = tmp_path / "bin"
    tools.mkdir()
    curl, agent = tools / "curl", tools / "penstock"
    curl.write_text('#!/bin/sh\ncase "$*" in *hostname) echo test-3f9a;; *address) echo 10.118.0.5;; esac\n')
    seen_by = tmp_path / "env"
    agent.write_text(f'#!/bin/sh\n{{ env; echo "$1"; }} > {seen_by}.part\nmv {seen_by}.part {seen_by}\n')
    mountpoint = tools / "mountpoint"
    mountpoint.write_text(f"#!/bin/sh\n{'true' if scratch else 'false'}\n")
    for tool in (curl, agent, mountpoint):
        tool.chmod(0o755)
    if baked:
        (tmp_path / "root" / "var/lib/penstock/hub").mkdir(parents=True)
    local = tmp_path / "root" / "etc" / "penstock" / "local.env"
    local.parent.mkdir(parents=True)
    local.write_text("PENSTOCK_ENGINE=sim\n")
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PENSTOCK_ROOT": str(tmp_path / "root"),
        "PENSTOCK_COMMAND": str(agent),
    }
    subprocess.run(["/bin/sh"], input=script(BOOT), text=True, env=env, check=True)
    await until(lambda: seen_by.exists())
    data = tmp_path / "root" / "var" / "lib" / "penstock"
    assert (data / "host-id").read_text() == "test-3f9a\n"
    assert (data / "join-token").read_text() == f"{BOOT.join_token}\n"
    assert (data / "join-token").stat().st_mode & 0o777 == 0o600
    seen = seen_by.read_text().splitlines()
    assert {"PENSTOCK_HOST=10.118.0.5", "PENSTOCK_ENGINE=sim", f"PENSTOCK_DATA_DIR={data}", "agent"} <= set(
        seen
    )
    assert f"HF_HOME={tmp_path / 'root' / hub}" in seen
    assert (tmp_path / "root" / hub).is_dir()
    assert not any(BOOT.join_token in line for line in seen), "other processes could read it there"
