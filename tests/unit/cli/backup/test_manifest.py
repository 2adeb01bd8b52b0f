"""The manifest of a backup: every change of a file is found, and spools are copied whole."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.backup import manifest as manifests
from cli.backup.manifest import Books, Manifest
from cli.backup.restore import restore
from cli.backup.state import copy_spools, copy_state, restore_spools
from cli.backup.take import new_directory
from core.errors import InvalidRequest

AT = datetime(2026, 11, 29, 3, tzinfo=UTC)


def written(root: Path, **changes: object) -> Manifest:
    """A backup of two files in `root`."""
    (root / "spool").mkdir()
    (root / "spool" / "a.spool").write_bytes(b"usage")
    (root / "secrets.json").write_bytes(b"{}")
    files = [manifests.file_of(root, path) for path in manifests.files_below(root)]
    made = Manifest(1, "0.1.0", AT, AT, True, 180001, "0074_region_limits", Books(3, "ab", 9), files)
    made = msgspec.structs.replace(made, **changes)
    manifests.write(root, made)
    return made


def test_a_backup_is_read_and_every_file_is_checked(tmp_path: Path) -> None:
    made = written(tmp_path)
    assert manifests.read(tmp_path) == made
    seen: list[str] = []
    manifests.check_files(tmp_path, made, lambda file: seen.append(file.path))
    assert seen == ["secrets.json", "spool/a.spool"]


@pytest.mark.parametrize("change", ["longer", "other", "gone"])
def test_a_changed_file_is_found(tmp_path: Path, change: str) -> None:
    made, path = written(tmp_path), tmp_path / "spool" / "a.spool"
    match change:
        case "longer":
            path.write_bytes(b"usage.")
        case "other":
            path.write_bytes(b"usagE")
        case _:
            path.unlink()
    with pytest.raises(InvalidRequest, match=r"a\.spool.*use another backup"):
        manifests.check_files(tmp_path, made, lambda file: None)


def test_what_is_no_backup_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no complete backup"):
        manifests.read(tmp_path)
    written(tmp_path, format=2, penstock="9.9")
    with pytest.raises(InvalidRequest, match=r"format 2.*restore it with Penstock 9\.9"):
        manifests.read(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InvalidRequest, match="is damaged"):
        manifests.read(tmp_path)


def test_a_manifest_that_names_a_file_outside_is_refused(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    made = written(backup)
    outside = msgspec.structs.replace(made.files[0], path="../secret")
    with pytest.raises(InvalidRequest, match="names a file outside"):
        manifests.check_files(backup, msgspec.structs.replace(made, files=[outside]), lambda file: None)


@pytest.mark.parametrize(
    ("changes", "until", "message"),
    [
        ({"postgres": 170004}, None, "PostgreSQL 17, and this version brings 18"),
        ({}, AT, "--to needs --wal-archive"),
        ({"embedded": False}, None, "server of your own: unpack it there by hand"),
    ],
)
async def test_a_restore_that_cannot_be_is_refused_before_it_writes(
    tmp_path: Path, changes: dict[str, object], until: datetime | None, message: str
) -> None:
    backup, target = tmp_path / "backup", tmp_path / "new"
    backup.mkdir()
    written(backup, **changes)
    with pytest.raises(InvalidRequest, match=message):
        await restore(backup, target, None, until, lambda text: None)
    assert not target.exists()


def test_a_backup_takes_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    with pytest.raises(InvalidRequest, match="is not empty"):
        new_directory(tmp_path / "old")
    made = new_directory(tmp_path / "a" / "new")
    assert made.stat().st_mode & 0o077 == 0


@given(st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 200_000).map(bytes)), max_size=6))
def test_a_spool_is_copied_whole_and_its_blank_end_takes_no_room(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    root = tmp_path_factory.mktemp("spools")
    (root / "one").mkdir()
    content = b"".join(parts)
    (root / "one" / "api.spool").write_bytes(content)
    copy_spools(root / "copy", [], root / "one")
    copy = (root / "copy" / "api.spool").read_bytes()
    assert content.startswith(copy)
    assert not content[len(copy) :].strip(b"\0")
    assert len(copy) < len(content.rstrip(b"\0")) + (1 << 16)


def test_two_spools_of_one_name_and_a_directory_that_is_missing_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "api.spool").touch()
    with pytest.raises(InvalidRequest, match=r"have a file api\.spool"):
        copy_spools(tmp_path / "copy", [tmp_path / "one"], tmp_path / "two")
    with pytest.raises(InvalidRequest, match="typo is no directory"):
        copy_spools(tmp_path / "other", [tmp_path / "typo"], tmp_path / "two")


def test_a_spool_directory_that_is_named_twice_is_copied_once_with_what_is_kept_for_an_operator(
    tmp_path: Path,
) -> None:
    own = tmp_path / "spool"
    own.mkdir()
    for name in ("api.spool", "old.unreadable", "api.spool.new"):
        (own / name).write_text(name)
    copy_spools(tmp_path / "copy", [own, tmp_path / "x" / ".." / "spool"], own)
    assert sorted(each.name for each in (tmp_path / "copy").iterdir()) == ["api.spool", "old.unreadable"]
    assert restore_spools(tmp_path / "copy", tmp_path / "restored", set_aside=True) == 2
    names = sorted(each.name for each in (tmp_path / "restored").iterdir())
    assert names == ["api.unreadable", "old.unreadable"]


def test_the_state_of_a_data_directory_is_copied_and_nothing_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in (
        "secrets.json",
        "signing.key",
        "archive/usage.parquet",
        "exports/a.csv",
        "logs/api.log",
        "host-id",
    ):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    copy_state(data, tmp_path / "copy")
    copied = sorted(
        str(each.relative_to(tmp_path / "copy")) for each in (tmp_path / "copy").rglob("*") if each.is_file()
    )
    assert copied == ["archive/usage.parquet", "exports/a.csv", "secrets.json", "signing.key"]
