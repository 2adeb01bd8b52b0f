"""The commands on tenancy against a real database: what they print, what they refuse, what they leave behind."""

import json
from importlib import import_module

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from core.errors import PenstockError
from tests.support.tenancy import PEPPER

PASSWORD = "correct horse battery"


class Shell:
    """Runs `penstock ...` in this process."""

    def __call__(self, *words: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, words, input=stdin)

    def json(self, *words: str, stdin: str = "") -> object:
        result = self(*words, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture
def shell(pg_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", PEPPER.decode())
    return Shell()


def test_a_new_organisation_has_the_default_limits(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DEFAULT_REQUESTS_PER_MIN", "120")
    monkeypatch.setenv("PENSTOCK_DEFAULT_CONCURRENCY", "0")
    defaults = shell.json("limits", "defaults")
    assert (defaults["requests_per_min"], defaults["concurrency"]) == (120, None)
    assert defaults["input_tokens_per_min"] > 0
    made = shell.json("tenants", "create", "Acme Robotics")
    [row] = shell.json("limits", "list", "acme-robotics")
    assert row == {"scope": "tenant", "scope_id": made["id"], **defaults}


def test_from_an_organisation_to_a_revoked_key(shell: Shell) -> None:
    made = shell.json("tenants", "create", "Acme Robotics")
    assert made["slug"] == "acme-robotics"
    assert shell.json("tenants", "show", "Acme robotics")["id"] == made["id"]
    shell.json("projects", "create", "acme-robotics", "bot")
    assert [row["name"] for row in shell.json("projects", "list", "acme-robotics")] == ["default", "bot"]
    key = shell.json(
        "keys",
        "create",
        "acme-robotics",
        "--name",
        "prod",
        "--project",
        "bot",
        "--expires-in-days",
        "9",
        "--model",
        "m",
    )
    assert key["secret"].startswith("pen_live_")
    assert (key["project"], key["allowed_models"]) == ("bot", ["m"])
    assert shell.json("keys", "find", stdin=key["secret"] + "\n")["id"] == key["id"]
    limits = shell.json("limits", "set", "acme-robotics", "--key", key["id"], "--concurrency", "3")
    assert limits["concurrency"] == 3
    limits = shell.json("limits", "set", "acme-robotics", "--key", key["id"], "--tokens-per-day", "1_000")
    assert (limits["concurrency"], limits["tokens_per_day"]) == (3, 1000)
    limits = shell.json("limits", "set", "acme-robotics", "--key", key["id"], "--concurrency", "none")
    assert limits["concurrency"] is None
    assert len(shell.json("limits", "list", "acme-robotics")) == 2
    assert shell.json("limits", "show", "acme-robotics")["tokens_per_day"] is None
    assert shell.json("keys", "revoke", key["id"], "--reason", "left in a log")["status"] == "revoked"
    table = shell("keys", "list", "acme-robotics")
    assert "revoked" in table.stdout
    assert key["secret"] not in table.stdout
    log = shell.json("audit", "list", "--tenant", "acme-robotics", "--action", "key.")
    assert [row["action"] for row in log] == ["key.revoke", "key.create"]
    assert {row["actor_kind"] for row in log} == {"cli"}
    assert "left in a log" in shell("audit", "list").stdout


def test_states_of_an_organisation(shell: Shell) -> None:
    shell.json("tenants", "create", "Acme")
    assert shell.json("tenants", "suspend", "acme", "--reason", "x")["status"] == "suspended"
    assert shell.json("tenants", "resume", "acme")["status"] == "active"
    assert shell.json("tenants", "throttle", "acme", "--reason", "x")["throttle_concurrency"] == 4
    assert (
        shell.json("tenants", "throttle", "acme", "--reason", "x", "--minutes", "0")["throttle_until"] is None
    )
    assert shell.json("tenants", "rename", "acme", "Acme 2")["slug"] == "acme"
    alone = shell("tenants", "tier", "acme", "batch", "--reason", "x")
    assert (alone.exit_code, "takes two people" in alone.output) == (2, True)
    assert shell.json("tenants", "share", "acme", "250", "--reason", "x")["share_percent"] == 250
    assert shell.json("projects", "archive", "acme", "default")["status"] == "archived"
    assert shell.json("projects", "restore", "acme", "default")["status"] == "active"
    assert shell.json("projects", "retention", "acme", "default", "7")["responses_kept_days"] == 7
    assert shell.json("projects", "retention", "acme", "default")["responses_kept_days"] is None
    assert len(shell.json("tenants", "list")) == 1


def test_people(shell: Shell) -> None:
    shell.json("tenants", "create", "Acme")
    made = shell.json(
        "users", "create", "Ada@example.com", "tenant_owner", "--tenant", "acme", stdin=PASSWORD
    )
    assert made["email"] == "ada@example.com"
    shell.json("users", "create", "bob@example.com", "platform_admin", stdin=PASSWORD)
    assert [row["email"] for row in shell.json("users", "list", "--tenant", "acme")] == ["ada@example.com"]
    assert len(shell.json("users", "list")) == 2
    assert "last active" in shell("users", "role", "ada@example.com", "tenant_viewer").stderr
    shell.json("users", "create", "eve@example.com", "tenant_owner", "--tenant", "acme", stdin=PASSWORD)
    assert shell.json("users", "role", "ada@example.com", "tenant_viewer")["role"] == "tenant_viewer"
    assert shell.json("users", "disable", "ada@example.com")["status"] == "disabled"
    assert shell.json("users", "enable", made["id"])["status"] == "active"
    assert (
        shell.json("users", "password", "ada@example.com", stdin=PASSWORD + "2\n")["email"]
        == "ada@example.com"
    )
    wrong = shell("users", "token", "bob@example.com", "--name", "ci", stdin=PASSWORD + "2\n")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    token = shell.json("users", "token", "bob@example.com", "--name", "ci", stdin=PASSWORD)
    assert token["secret"].startswith("pen_admin_")
    assert token["secret"] not in shell("users", "tokens", "bob@example.com").stdout
    assert shell.json("users", "revoke-token", token["id"])["revoked_at"] is not None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("tenants", "show", "nobody"), "no organisation 'nobody'"),
        (("tenants", "create", "Acme"), "'acme' exists already"),
        (("tenants", "create", "New", "--tier", "gold"), "tier must be"),
        (("tenants", "create", "New", "--billing", "barter"), "--billing"),
        (("projects", "archive", "acme", "nothing"), "no project 'nothing'"),
        (("keys", "revoke", "x"), "'x' is no id"),
        (("keys", "create", "acme", "--name", "x", "--expires-in-days", "0"), "--expires-in-days"),
        (("keys", "find"), "no whole API key"),
        (("limits", "set", "acme"), "at least one limit"),
        (("limits", "set", "acme", "--concurrency", "many"), "--concurrency"),
        (("limits", "set", "acme", "--concurrency", "0"), "concurrency must be"),
        (("limits", "show", "acme", "--project", "a", "--key", "b"), "not both"),
        (("users", "disable", "nobody@example.com"), "no user"),
        (("users", "create", "x@example.com", "finance"), "12 to 256"),
        (("audit", "list", "--limit", "0"), "limit must be"),
    ],
)
def test_refusals_are_one_line(shell: Shell, words: tuple[str, ...], complaint: str) -> None:
    shell.json("tenants", "create", "Acme")
    result = shell(*words)
    if isinstance(result.exception, PenstockError):  # raised outside of `run`: main() turns it into a line
        assert complaint in result.exception.message
        return
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("group", ["tenants", "projects", "keys", "limits", "users", "audit"])
def test_every_command_shows_an_example(shell: Shell, group: str) -> None:
    listing = shell(group, "--help")
    assert listing.exit_code == 0
    for command in import_module(f"cli.commands.{group}").app.registered_commands:
        name = command.name or command.callback.__name__
        text = shell(group, name, "--help").stdout
        assert f"Example: penstock {group} {name}" in " ".join(text.split()), name
        assert "--json" in text


def test_budgets_of_projects_and_keys(shell: Shell) -> None:
    shell.json("tenants", "create", "Acme")
    key = shell.json("keys", "create", "acme", "--name", "prod")
    [of_project] = shell.json("budgets", "set", "acme", "50", "--project", "default")
    assert (of_project["scope"], of_project["budget_usd"]) == ("project", "50.00")
    shell.json("budgets", "set", "acme", "2.50", "--key", key["id"])
    listed = shell.json("budgets", "list", "acme")
    assert [(one["scope"], one["budget_usd"], one["held_usd"]) for one in listed] == [
        ("project", "50.00", "0.00"),
        ("key", "2.50", "0.00"),
    ]
    assert shell.json("budgets", "set", "acme", "none", "--project", "default") == listed[1:]
    for words in ([], ["--project", "default", "--key", key["id"]]):
        refused = shell("budgets", "set", "acme", "1", *words)
        assert (refused.exit_code, "give one of --project, --key" in refused.stderr) == (2, True)
    assert shell("budgets", "set", "acme", "1", "--project", "other").exit_code == 2


def test_budgets_of_end_users_and_tags(shell: Shell) -> None:
    shell.json("tenants", "create", "Acme")
    shell.json("budgets", "set", "acme", "2", "--every-end-user")
    shell.json("budgets", "set", "acme", "50", "--end-user", "user 4711")
    listed = shell.json("budgets", "set", "acme", "300", "--tag", "tag_team=search", "--notify-only")
    assert [(one["scope"], one["name"], one["budget_usd"], one["stops"]) for one in listed] == [
        ("tag", "tag_team=search", "300.00", False),
        ("every_end_user", None, "2.00", True),
        ("end_user", "user 4711", "50.00", True),
    ]
    shell.json("budgets", "set", "acme", "none", "--tag", "tag_team=search")
    shell.json("budgets", "set", "acme", "none", "--end-user", "user 4711")
    assert [one["scope"] for one in shell.json("budgets", "list", "acme")] == ["every_end_user"]
    for words in (
        ["--tag", "team=x"],
        ["--every-end-user", "--notify-only"],
        ["--project", "default", "--notify-only"],
    ):
        assert shell("budgets", "set", "acme", "1", *words).exit_code == 2


def test_the_starter_credit(shell: Shell) -> None:
    assert shell.json("starter-credit", "show") == {"amount_usd": "0.00", "expires_days": None}
    set_to = shell.json("starter-credit", "set", "5", "--expires-days", "90", "--reason", "launch")
    assert set_to == {"amount_usd": "5.00", "expires_days": 90}
    assert shell.json("starter-credit", "show") == set_to
    shell.json("tenants", "create", "Acme")
    assert shell.json("credits", "show", "acme")["balance_usd"] == "5.00"
    refused = shell("starter-credit", "set", "5", "--expires-days", "0", "--reason", "x")
    assert (refused.exit_code, "expires_days must be 1 to" in refused.stderr) == (2, True)
