"""Settings of the environment, of secret files and of a TOML file are merged, and what is no setting is refused."""

from pathlib import Path

import pytest

from cli.configuration import Source, read_configuration, read_settings, secret_variables, variables
from cli.settings_check import problems
from core.errors import InvalidRequest
from core.settings import Settings


def config(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(content)
    return path


def test_the_environment_has_precedence_over_files(tmp_path: Path) -> None:
    path = config(tmp_path, 'model = "acme/river"\nport = 8080\nhosts_dry_run = true\nregion = "ams"')
    environ = {"PENSTOCK_PORT": "9000", "PENSTOCK_REGION": "", "PENSTOCK_CONFIG": str(path), "HOME": "/root"}
    found = read_configuration(environ)
    assert found.values == {
        "PENSTOCK_MODEL": "acme/river",
        "PENSTOCK_HOSTS_DRY_RUN": "true",
        "PENSTOCK_REGION": "ams",
    }
    assert found.sources["PENSTOCK_PORT"] is Source.ENVIRONMENT
    assert found.sources["PENSTOCK_REGION"] is Source.CONFIG_FILE
    assert "PENSTOCK_HOST" not in found.sources
    found.apply(environ)
    assert "PENSTOCK_CONFIG" not in environ
    assert environ["PENSTOCK_REGION"] == "ams"


def test_the_option_has_precedence_over_the_variable(tmp_path: Path) -> None:
    path = config(tmp_path, "port = 8080")
    environ = {"PENSTOCK_CONFIG": str(tmp_path / "none.toml")}
    assert read_configuration(environ, path).values == {"PENSTOCK_PORT": "8080"}


def test_arrays_are_lists_separated_by_commas(tmp_path: Path) -> None:
    path = config(tmp_path, 'trusted_proxies = ["10.0.0.0/8", "fd00::/8"]')
    assert read_configuration({}, path).values == {"PENSTOCK_TRUSTED_PROXIES": "10.0.0.0/8,fd00::/8"}


def test_a_secret_may_stand_in_a_file_that_children_do_not_read_again(tmp_path: Path) -> None:
    secret = tmp_path / "pepper"
    secret.write_text("salt-and-pepper\n")
    environ = {"PENSTOCK_KEY_PEPPER_FILE": str(secret), "STRIPE_API_KEY_FILE": ""}
    found = read_configuration(environ, config(tmp_path, 'key_pepper = "other"'))
    found.apply(environ)
    assert environ == {"PENSTOCK_KEY_PEPPER": "salt-and-pepper", "STRIPE_API_KEY_FILE": ""}
    assert found.sources["PENSTOCK_KEY_PEPPER"] is Source.SECRET_FILE


def test_every_secret_has_a_variable_for_its_file() -> None:
    assert {"PENSTOCK_KEY_PEPPER", "DATABASE_URL", "REDIS_URL", "STRIPE_API_KEY", "PENSTOCK_SMTP_URL"} <= (
        secret_variables()
    )
    assert "PENSTOCK_PORT" not in secret_variables()


@pytest.mark.parametrize(
    ("environ", "content", "message"),
    [
        ({"PENSTOCK_PROT": "1"}, "", "PENSTOCK_PROT is not a setting; did you mean PENSTOCK_PORT?"),
        ({"PENSTOCK_XYZZY": "1"}, "", "PENSTOCK_XYZZY is not a setting (`penstock config list`"),
        ({"PENSTOCK_PORT_FILE": "/x"}, "", "PENSTOCK_PORT_FILE is not a setting"),
        ({"PENSTOCK_KEY_PEPPER_FILE": "/nowhere/at/all"}, "", "cannot be read: No such file"),
        ({"PENSTOCK_KEY_PEPPER_FILE": "/dev/null"}, "", "/dev/null is empty"),
        ({"PENSTOCK_KEY_PEPPER_FILE": "/x", "PENSTOCK_KEY_PEPPER": "y"}, "", "are both set"),
        ({}, "prot = 8080", "prot is not a setting; did you mean port?"),
        ({}, "port = ", "is not valid TOML"),
        ({}, "[api]\nport = 1", "api is not a setting"),
        ({}, "port = {a = 1}", "port must be a string, a number"),
        ({}, 'trusted_proxies = ["a,b"]', "without commas"),
        ({}, 'region = "' + "x" * (1 << 20) + '"', "is larger than"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, environ: dict[str, str], content: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_configuration(environ, config(tmp_path, content))
    assert message in refused.value.message
    assert "\n" not in refused.value.message


def test_variables_of_kubernetes_services_and_settings_of_newer_platforms_stop_no_agent() -> None:
    links = {
        "PENSTOCK_API_SERVICE_HOST": "10.0.0.7",
        "PENSTOCK_API_SERVICE_PORT_HTTP": "8000",
        "PENSTOCK_API_PORT": "tcp://10.0.0.7:8000",
        "PENSTOCK_API_PORT_8000_TCP_ADDR": "10.0.0.7",
    }
    assert read_configuration(links).values == {}
    newer = {"PENSTOCK_OF_TOMORROW": "1"}
    assert read_configuration(newer, strict=False).values == {}
    with pytest.raises(InvalidRequest):
        read_configuration(newer)


def test_an_empty_variable_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_LOG_LEVEL", "PENSTOCK_ENGINE", "PENSTOCK_METRICS_PORT", "PENSTOCK_SCHEDULER_TLS"):
        monkeypatch.setenv(name, "")
    settings, wrong = read_settings()
    assert (wrong, settings) == ([], Settings())


def test_every_invalid_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PORT", "many")
    monkeypatch.setenv("PENSTOCK_ENGINE", "steam")
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "loud")
    settings, wrong = read_settings()
    assert settings is None
    assert [line.split(":")[0] for line in wrong] == [
        "PENSTOCK_PORT",
        "PENSTOCK_ENGINE",
        "PENSTOCK_LOG_LEVEL",
    ]


def test_settings_that_contradict_are_found_before_a_start(tmp_path: Path) -> None:
    assert problems(Settings(), None) == []
    wrong = Settings(
        schedulers="nowhere",
        host_places="gpu-of-tomorrow=digitalocean/nyc2",
        trusted_proxies="the internet",
        smtp_url="smtp://mail.example.com:587",
        engine="external",
        scheduler_ca=tmp_path / "ca.pem",
        database_url="mysql://db/penstock",
    )
    found = problems(wrong, "console")
    starts = [
        "PENSTOCK_SCHEDULERS",
        "PENSTOCK_HOST_PLACES: gpu-of-tomorrow is no kind of host",
        "PENSTOCK_TRUSTED_PROXIES",
        "PENSTOCK_SMTP_FROM",
        "PENSTOCK_ENGINE_URL",
        "DATABASE_URL",
        "PENSTOCK_SCHEDULER_CA: there is no file",
        "REDIS_URL is not set; `penstock console` needs it",
    ]
    assert [line.startswith(start) for line, start in zip(found, starts, strict=True)] == [True] * len(starts)


def test_every_setting_has_a_variable_of_its_own() -> None:
    assert len(set(variables().values())) == len(Settings.model_fields)
