"""Large logs are moved aside while their writers go on."""

from pathlib import Path

from core.log_files import rotate


def test_a_large_log_is_moved_aside_and_its_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100)
        assert not rotate(path, 100)
        writer.write(b"y")
        assert rotate(path, 100)
        writer.write(b"later")
    assert path.read_bytes() == b"later"
    assert (tmp_path / "engine-0.log.1").read_bytes() == b"x" * 100 + b"y"


def test_only_one_predecessor_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "up.log"
    for text in ("first", "second"):
        path.write_text(text)
        assert rotate(path, 3)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["up.log", "up.log.1"]
    assert (tmp_path / "up.log.1").read_text() == "second"


def test_a_log_that_is_not_there_yet_is_left(tmp_path: Path) -> None:
    assert not rotate(tmp_path / "none.log", 0)
