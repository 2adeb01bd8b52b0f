"""Settings are read from the environment, and their secrets are not printed."""

from pathlib import Path

import pytest

from core.settings import Settings


def test_established_and_prefixed_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:p@h/d")
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "/data")
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", "salt-and-pepper")
    settings = Settings()
    assert settings.database_url == "postgresql://u:p@h/d"
    assert settings.data_dir == Path("/data")
    assert settings.key_pepper.get_secret_value() == "salt-and-pepper"
    assert "salt-and-pepper" not in repr(settings)
