"""The archive of the write-ahead log: its commands, what a restore demands of it, and what a prune removes."""

import io
import os
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.backup.wal import (
    NO_ARCHIVE,
    archive_settings,
    first_segment,
    missing_segment,
    prune_archive,
    readable_archive,
    recovery_settings,
    server_settings,
)
from core.child import Account
from core.errors import InvalidRequest

FIRST = 0x12FE


def segment(number: int, timeline: int = 1) -> str:
    return f"{timeline:08X}{number // 256:08X}{number % 256:08X}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base.tar.gz that begins with the segment FIRST."""
    label = f"START WAL LOCATION: 12/FE000028 (file {segment(FIRST)})\nLABEL: penstock\n".encode()
    path = tmp_path / "base.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in (("PG_VERSION", b"18\n"), ("backup_label", label)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def archive_of(tmp_path: Path, *numbers: int) -> Path:
    archive = tmp_path / "wal"
    archive.mkdir()
    for number in numbers:
        (archive / segment(number)).write_bytes(b"log")
    return archive


def run_archive(archive: Path, source: Path, name: str) -> int:
    """What PostgreSQL does to archive a segment: %p and %f stand for its path and name."""
    command = archive_settings(archive)["archive_command"]
    command = command.replace("%%", "\0").replace("%p", str(source)).replace("%f", name).replace("\0", "%")
    return subprocess.run(["/bin/sh", "-c", command], check=False).returncode


@pytest.mark.parametrize("folder", ["wal", "with space", "100%f", "$HOME; rm x"])
def test_a_segment_is_archived_once_and_another_one_of_its_name_is_refused(
    tmp_path: Path, folder: str
) -> None:
    archive, source = tmp_path / folder, tmp_path / "source"
    archive.mkdir()
    source.write_bytes(b"first")
    assert run_archive(archive, source, segment(1)) == 0
    assert [(each.name, each.read_bytes()) for each in archive.iterdir()] == [(segment(1), b"first")]
    assert run_archive(archive, source, segment(1)) == 0  # again, after a crash
    source.write_bytes(b"other")
    assert run_archive(archive, source, segment(1)) != 0
    assert (archive / segment(1)).read_bytes() == b"first"


def test_a_segment_that_cannot_be_written_is_not_taken_for_archived(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"first")
    assert run_archive(tmp_path / "none", source, segment(1)) != 0


@pytest.mark.parametrize("name", ["a'b", "a\\b", "a\nb"])
def test_a_path_that_could_leave_its_quotes_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="may have no quote"):
        archive_settings(Path("/srv") / name)


def test_recovery_goes_to_an_instant_in_utc() -> None:
    at = datetime.fromisoformat("2026-11-29T14:05:00.25+01:00")
    settings = recovery_settings(Path("/srv/wal"), at)
    assert settings["recovery_target_time"] == "2026-11-29 13:05:00.250000+00"
    assert settings["restore_command"] == "cp '/srv/wal'/%f \"%p\""
    assert "restore_command" not in recovery_settings(None, None)
    assert datetime.fromisoformat(settings["recovery_target_time"]) == at.astimezone(UTC)


@given(st.sets(st.integers(FIRST - 5, FIRST + 600)), st.integers(1, 3))
def test_the_first_gap_is_found(numbers: set[int], timeline: int) -> None:
    names = [segment(number, timeline) for number in numbers]
    first = segment(FIRST, timeline)
    expected = next((n for n in range(FIRST, max([*numbers, FIRST]) + 1) if n not in numbers), None)
    assert missing_segment(names, first) == (None if expected is None else segment(expected, timeline))
    others = [segment(number, timeline + 1) for number in range(FIRST, FIRST + 700)]
    assert missing_segment(names + others, first) == missing_segment(names, first)


def test_an_archive_that_two_servers_have_written_is_refused(tmp_path: Path, base: Path) -> None:
    archive = archive_of(tmp_path, FIRST)
    (archive / segment(FIRST + 1, 2)).touch()
    with pytest.raises(InvalidRequest, match=f"{segment(FIRST + 1, 2)} of a later timeline"):
        readable_archive(archive, base, None)


def test_an_archive_belongs_to_one_data_directory(tmp_path: Path) -> None:
    data, other, archive = tmp_path / "data", tmp_path / "other", tmp_path / "wal"
    data.mkdir()
    other.mkdir()
    assert server_settings(data, None, None) == {}
    settings = server_settings(data, archive, None)
    assert str(archive) in settings["archive_command"]
    assert server_settings(data, None, None) == settings, "later starts go on with it"
    with pytest.raises(InvalidRequest, match="belongs to another data directory"):
        server_settings(other, archive, None)
    assert server_settings(data, NO_ARCHIVE, None) == server_settings(data, None, None) == {}
    with pytest.raises(InvalidRequest, match="belongs to another data directory"):
        server_settings(data, archive, None)  # it has a gap now


def test_a_directory_with_other_files_becomes_no_archive_and_keeps_its_owner(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "photo").touch()
    with pytest.raises(InvalidRequest, match="is not empty and no archive"):
        server_settings(tmp_path, tmp_path / "disk", None)
    (tmp_path / "mount").mkdir()
    stranger = Account(os.geteuid() + 12345, os.getegid() + 12345)
    with pytest.raises(InvalidRequest, match=r"cannot write .*mount.*chown"):
        server_settings(tmp_path, tmp_path / "mount", stranger)
    assert (tmp_path / "mount").stat().st_uid == os.geteuid()


def test_an_archive_with_a_gap_or_of_another_server_is_refused(tmp_path: Path, base: Path) -> None:
    archive = archive_of(tmp_path, FIRST, FIRST + 1, FIRST + 3)
    with pytest.raises(InvalidRequest, match=f"lacks the segment {segment(FIRST + 2)}"):
        readable_archive(archive, base, None)
    (archive / segment(FIRST + 2)).touch()
    assert readable_archive(archive, base, None) == archive
    (archive / segment(FIRST)).unlink()
    with pytest.raises(InvalidRequest, match=f"lacks the segment {segment(FIRST)}"):
        readable_archive(archive, base, None)


def test_an_archive_that_the_server_cannot_read_is_refused(tmp_path: Path, base: Path) -> None:
    archive = archive_of(tmp_path, FIRST, FIRST + 1)
    (archive / segment(FIRST + 1)).chmod(0o600)
    stranger = Account(os.geteuid() + 12345, os.getegid() + 12345)
    with pytest.raises(InvalidRequest, match=f"cannot read .*{segment(FIRST + 1)}.*chown"):
        readable_archive(archive, base, stranger)


def test_a_prune_keeps_what_a_backup_needs(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_of(tmp_path, FIRST - 2, FIRST - 1, FIRST, FIRST + 1)
    (archive / "00000001.history").touch()
    assert first_segment(base) == segment(FIRST)
    assert prune_archive(archive, base) == 2
    kept = {"00000001.history", segment(FIRST), segment(FIRST + 1)}
    assert {each.name for each in archive.iterdir()} == kept
    (archive / segment(FIRST)).unlink()
    monkeypatch.setattr("cli.backup.wal.ARCHIVED_WITHIN_S", 0.0)
    with pytest.raises(InvalidRequest, match="nothing was removed"):
        prune_archive(archive, base)
    assert (archive / segment(FIRST + 1)).exists()
