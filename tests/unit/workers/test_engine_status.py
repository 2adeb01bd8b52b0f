"""The reported state of the engine's environment."""

from pathlib import Path

from workers.engine_install import status


def test_an_engine_that_an_image_provides_counts_as_installed(tmp_path: Path) -> None:
    assert status(tmp_path).state == "absent"
    (tmp_path / "penstock-steps.json").write_text(
        '{"kind":"gpu","version":"1.2","done":{"provided":"image"}}'
    )
    assert status(tmp_path).state == "absent"  # nothing can run yet
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    found = status(tmp_path)
    assert (found.state, found.kind, found.version) == ("installed", "gpu", "1.2")
