"""The access review names everybody and everything that may do something, and keeps organisations apart."""

import csv
import io
import json
from uuid import UUID

import httpx
import pytest
from sqlalchemy import text

from admin import keys as admin_keys
from admin import users as admin_users
from admin.access_review import list_access, to_file
from core.db import Database
from core.errors import PermissionDenied
from tests.integration.admin.people import PASSWORD, person
from tests.integration.admin.rest import Caller, token_of
from tests.integration.admin.test_commands import Shell, shell
from tests.integration.admin.test_second_factor import enrol
from tests.support.tenancy import ADMIN, PEPPER, make_organisation

__all__ = ["shell"]


async def test_people_tokens_and_keys_with_their_last_use(
    client: httpx.AsyncClient, admin: Caller, database: Database
) -> None:
    acme, other = await make_organisation(database, "Acme"), await make_organisation(database, "Other")
    owner = await person(database, "tenant_owner", acme.tenant_id)
    careful = await enrol(database, await person(database, "tenant_developer", acme.tenant_id))
    gone = await person(database, "tenant_viewer", acme.tenant_id)
    await admin_users.create_admin_token(
        database, ADMIN, pepper=PEPPER, user_id=UUID(owner.id), name="=cmd", scopes=["read"]
    )
    await admin_users.disable_user(database, ADMIN, user_id=UUID(gone.id))
    made = await admin_keys.create_key(
        database, ADMIN, pepper=PEPPER, tenant_id=acme.tenant_id, project_id=acme.project_id, name="prod",
        allowed_models=["m"], networks=["192.0.2.0/24"],
    )  # fmt: skip
    stranger = await person(database, "tenant_owner", other.tenant_id)

    answer = await admin("GET", f"/access-review?tenant_id={acme.tenant_id}&format=json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    rows = {(row["kind"], row["name"]): row for row in answer.json()}
    assert {row["tenant_id"] for row in rows.values()} == {str(acme.tenant_id)}
    mine = rows["person", owner.label]
    assert (mine["role"], mine["second_factor"], mine["sign_in"]) == ("tenant_owner", False, "password")
    assert mine["last_sign_in_at"] >= mine["created_at"]
    guarded = rows["person", careful.actor.label]
    assert (guarded["second_factor"], guarded["sign_in"]) == (True, "password and code")
    assert rows["person", gone.label]["status"] == "disabled"
    token = rows["token", "=cmd"]
    assert (token["owner"], token["scopes"], token["status"]) == (owner.label, ["read"], "active")
    key = rows["key", "prod"]
    assert (key["id"], key["status"], key["role"]) == (str(made.view.id), "active", None)
    assert key["restrictions"] == "models m; networks 192.0.2.0/24"
    assert key["project"]

    async with database.system() as connection:  # a use is written down once a minute at most
        await connection.execute(text("UPDATE admin_tokens SET created_at = created_at - interval '1 hour'"))
    whole = await admin("GET", "/access-review")
    assert whole.headers["content-type"].startswith("text/csv")
    table = list(csv.DictReader(io.StringIO(whole.text)))
    names = {row["name"] for row in table}
    assert {owner.label, stranger.label, "'=cmd", "prod"} <= names
    used = [row for row in table if row["role"] == "platform_admin" and row["kind"] == "token"]
    assert [row["last_used_at"] != "" for row in used] == [True]

    theirs = await list_access(database, stranger)
    assert {row.tenant_id for row in theirs} == {other.tenant_id}
    assert to_file(theirs, "json").count(b'"kind":"person"') == 1
    for actor, tenant_id in ((careful.actor, None), (stranger, acme.tenant_id)):
        with pytest.raises(PermissionDenied):
            await list_access(database, actor, tenant_id=tenant_id)
    finance = Caller(client, await token_of(database, "finance"))
    assert (await finance("GET", "/access-review")).status_code == 200


def test_the_command(shell: Shell) -> None:
    shell.json("tenants", "create", "Acme Robotics")
    shell(
        "users",
        "create",
        "ada@example.com",
        "tenant_owner",
        "--tenant",
        "acme-robotics",
        stdin=PASSWORD + "\n",
    )
    shown = shell("users", "access-review", "--tenant", "acme-robotics")
    assert shown.stdout.splitlines()[0].startswith("kind,id,name,owner,tenant_id")
    [row] = [one for one in csv.DictReader(io.StringIO(shown.stdout)) if one["kind"] == "person"]
    assert (row["name"], row["tenant"], row["last_sign_in_at"]) == ("ada@example.com", "Acme Robotics", "")
    [same, *_] = json.loads(shell("users", "access-review", "--json").stdout)
    assert (same["kind"], same["name"]) == ("person", "ada@example.com")
