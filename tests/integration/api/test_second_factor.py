"""The second factor over REST: enrolled and asked for with mail address and password alone."""

from uuid import UUID

import httpx
import pyotp

from core.db import Database
from tenants import members
from tests.integration.api.test_members import PASSWORD, Caller, acme, caller, client
from tests.support.tenancy import Organisation

__all__ = ["acme", "client"]


async def test_a_member_enrols_and_signs_in_over_rest(
    client: httpx.AsyncClient, database: Database, acme: Organisation
) -> None:
    owner = await caller(client, database, "tenant_owner", acme)
    me = (await owner("GET", f"/users/{owner.user_id}")).json()
    assert me["second_factor"] is False
    own = {"email": me["email"], "password": PASSWORD}

    async def post(path: str, **more: str) -> httpx.Response:
        return await client.post(f"/v1/{path}", json={**own, **more})

    wrong = await client.post("/v1/second-factor", json={**own, "password": "wrong"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "wrong_credentials")
    made = await post("second-factor")
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    assert (await post("sessions")).status_code == 201, "it is not confirmed yet"
    refused = await post("second-factor/confirm", code="000000")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "wrong_second_factor")
    confirmed = await post("second-factor/confirm", code=pyotp.TOTP(made.json()["secret"]).now())
    first, second, third, *_ = confirmed.json()["backup_codes"]
    assert confirmed.headers["cache-control"] == "no-store"

    bare = await post("sessions")
    assert (bare.status_code, bare.json()["error"]["code"]) == (401, "second_factor_required")
    opened = await post("sessions", code=first)
    assert opened.status_code == 201
    assert opened.json()["proved_by"] == "second_factor"
    assert (await owner("GET", "/audit")).status_code == 401, "what the password alone opened has ended"
    owner = Caller(client, opened.json()["secret"], owner.user_id)
    assert (await post("sessions", code=first)).status_code == 401
    assert (await owner("GET", f"/users/{owner.user_id}")).json()["second_factor"] is True
    assert (await post("second-factor")).status_code == 409
    renewed = await post("second-factor/backup-codes", code=second)
    assert (await post("second-factor/disable", code=third)).status_code == 401
    assert (await post("second-factor/disable", code=renewed.json()["backup_codes"][0])).status_code == 204
    assert (await post("sessions")).status_code == 201
    foreign = await client.post("/v1/second-factor", json=own, headers={"sec-fetch-site": "cross-site"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "cross_site")
    audit = (await owner("GET", "/audit")).json()["data"]
    assert [row["action"] for row in audit if "factor" in row["action"] or "backup" in row["action"]] == [
        "user.disable_second_factor",
        "user.use_backup_code",
        "user.make_backup_codes",
        "user.use_backup_code",
        "user.use_backup_code",
        "user.enrol_second_factor",
        "user.wrong_second_factor",
    ]


async def test_people_of_the_platform_are_not_served(client: httpx.AsyncClient, database: Database) -> None:
    admin = await caller(client, database, "platform_admin", None)
    async with database.read() as connection:
        user = await members.get_user(connection, UUID(admin.user_id))
    assert user is not None
    own = {"email": user.email, "password": PASSWORD, "code": "000000"}
    for path in ("", "/confirm", "/backup-codes", "/disable"):
        body = {name: value for name, value in own.items() if path or name != "code"}
        refused = await client.post(f"/v1/second-factor{path}", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "wrong_credentials")
