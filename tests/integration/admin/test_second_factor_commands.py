"""The commands of second factors, as a shell runs them: secrets come by standard input."""

import json
import os
import subprocess
import sys
from typing import IO, Any

import pyotp
import pytest

from core.db import Database
from tenants import identity_providers
from tests.integration.admin.people import PASSWORD, person
from tests.support.services import ROOT


class Shell:
    """Runs commands as a process of its own."""

    def __init__(self, pg_url: str) -> None:
        self._environment = os.environ | {
            "DATABASE_URL": pg_url,
            "PENSTOCK_KEY_PEPPER": "pepper of the shell",
        }
        self._environment.pop("PENSTOCK_ADMIN_TOKEN", None)

    def begin(self, *words: str, group: str = "users") -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "cli.main", group, *words, "--json"],
            cwd=ROOT,
            env=self._environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, lines: tuple[str, ...] = (), group: str = "users") -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        process = self.begin(*words, group=group)
        out, err = process.communicate("".join(f"{line}\n" for line in lines), timeout=120)
        return process.returncode, out, err


@pytest.fixture
def shell(pg_url: str) -> Shell:
    return Shell(pg_url)


def _stream(stream: "IO[str] | None") -> IO[str]:
    assert stream is not None
    return stream


def _enrol(shell: Shell, email: str) -> list[str]:
    process = shell.begin("second-factor", "enrol", email)
    typed, told = _stream(process.stdin), _stream(process.stderr)
    typed.write(f"{PASSWORD}\n")
    typed.flush()
    secret = told.readline().removeprefix("secret: ").strip()
    assert told.readline().startswith("otpauth://totp/Penstock:")
    out, err = process.communicate(f"{pyotp.TOTP(secret).now()}\n", timeout=120)
    assert process.returncode == 0, err
    codes: list[str] = json.loads(out)["backup_codes"]
    return codes


async def test_a_person_enrols_and_uses_codes_in_a_shell(database: Database, shell: Shell) -> None:
    ada = await person(database, "platform_admin")
    codes = _enrol(shell, ada.label)
    token = ("token", ada.label, "--name", "mine")
    assert shell.run(*token, lines=(PASSWORD,))[0] == 2, "the code is missing"
    status, out, err = shell.run(*token, lines=(PASSWORD, codes[0]))
    assert status == 0, err
    made: dict[str, Any] = json.loads(out)
    assert made["proved_by"] == "second_factor"
    status, _, err = shell.run(*token, lines=(PASSWORD, codes[0]))
    assert (status, err.count("\n")) == (2, 1)
    assert "The code is wrong" in err
    assert shell.run("recovery-code", ada.label, lines=(PASSWORD, codes[1]))[0] == 0
    status, out, _ = shell.run("second-factor", "backup-codes", ada.label, lines=(PASSWORD, codes[2]))
    (renewed, *_) = json.loads(out)["backup_codes"]
    assert shell.run("second-factor", "disable", ada.label, lines=(PASSWORD, codes[3]))[0] == 2
    assert shell.run("second-factor", "disable", ada.label, lines=(PASSWORD, renewed))[0] == 0
    assert shell.run(*token, lines=(PASSWORD,))[0] == 0
    _enrol(shell, ada.label)
    status, out, err = shell.run("second-factor", "remove", ada.label, "--reason", "phone lost")
    assert status == 0, err
    assert json.loads(out)["second_factor"] is False


async def test_a_shell_sets_the_rule_when_nobody_can_sign_in(database: Database, shell: Shell) -> None:
    ada = await person(database, "platform_admin")
    status, out, err = shell.run("require", "second_factor", group="sign-in")
    assert (status, json.loads(out)["rule"]) == (0, "second_factor"), err
    status, _, err = shell.run("token", ada.label, "--name", "mine", lines=(PASSWORD,))
    assert (status, "needs a second factor" in err, err.count("\n")) == (2, True, 1)
    assert shell.run("require", "password", "--reason", "locked out", group="sign-in")[0] == 0
    status, out, _ = shell.run("show", group="sign-in")
    assert json.loads(out) == {"tenant_id": None, "rule": "password", "ended": 0}
    assert shell.run("token", ada.label, "--name", "mine", lines=(PASSWORD,))[0] == 0


async def test_a_shell_sets_the_identity_provider(database: Database, shell: Shell) -> None:
    wanted = ("provider", "set", "https://login.example.com", "penstock", "--domain", "example.com")
    status, out, err = shell.run(*wanted, lines=("the client secret",), group="sign-in")
    assert status == 0, err
    view = json.loads(out)
    assert (view["issuer"], view["mail_domains"]) == ("https://login.example.com", ["example.com"])
    assert json.loads(shell.run("provider", "show", group="sign-in")[1]) == view
    status, _, err = shell.run("require", "oidc", group="sign-in")
    assert (status, "no person has signed in through" in err, err.count("\n")) == (2, True, 1)
    async with database.system() as connection:
        provider = await identity_providers.find(connection, None)
        assert provider is not None
        await identity_providers.mark_used(connection, provider.id)  # as a sign-in in a browser does
    status, _, err = shell.run("require", "oidc", group="sign-in")
    assert status == 0, err
    status, _, err = shell.run("provider", "remove", group="sign-in")
    assert (status, "by it only" in err) == (2, True)
    assert shell.run("require", "password", group="sign-in")[0] == 0
    assert shell.run("provider", "remove", group="sign-in")[0] == 0
    status, _, err = shell.run("provider", "show", group="sign-in")
    assert (status, err.count("\n")) == (2, 1)
    status, _, err = shell.run(*wanted[:2], "http://a.example", *wanted[3:], "--keep-secret", group="sign-in")
    assert (status, "must begin with https" in err) == (2, True)
