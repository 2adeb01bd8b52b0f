"""What the commands on exports share: the settings that say where files may go."""

from pathlib import Path

from core.settings import Settings


def export_settings(data_dir: Path | None) -> Settings:
    """The settings of this shell, with the data directory that `--data-dir` names."""
    settings = Settings()
    return settings if data_dir is None else settings.model_copy(update={"data_dir": data_dir})
