"""What the first start makes, and that later starts leave it alone."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import func, select, text

from admin.accounts import get_account
from admin.actor import system_actor
from admin.keys import find_key, revoke_key
from admin.limits import list_limits
from admin.logins import TokenLives, authenticate_token, list_admin_tokens, revoke_admin_token, verify_login
from admin.model_life import retire_model
from admin.models import list_models
from admin.prices import list_prices, set_price
from admin.tenants import list_tenants
from admin.users import create_user, disable_user, list_users, set_role
from cli.bootstrap import bootstrap
from cli.commands.roles import migrate
from cli.rundir import Secrets
from core.db import Database
from core.money import usd_to_pico
from tenants.principal import Limits
from tenants.tables import api_keys
from workers.catalog import load_catalog

ACTOR = system_actor("test")
CATALOG = load_catalog()
LIMITS = Limits(requests_per_min=600, concurrency=9)


async def test_the_first_start_makes_everything_once(database: Database) -> None:
    secrets = Secrets()
    pepper = secrets.key_pepper.encode()
    warnings = await bootstrap(database, secrets, CATALOG, demo=True, limits=LIMITS)
    assert warnings == [
        "the catalog's price of deepseek-v3.2 is below cost: see `penstock economics breakeven --model deepseek-v3.2`"
    ]
    first = (secrets.demo_api_key, secrets.admin_token)
    assert first[0].startswith("pen_live_")
    assert await bootstrap(database, secrets, CATALOG, demo=True, limits=LIMITS) == []
    assert (secrets.demo_api_key, secrets.admin_token) == first

    assert {model.name for model in await list_models(database, ACTOR)} == set(CATALOG.models)
    assert {price.model for price in await list_prices(database, ACTOR)} == set(CATALOG.models)
    [tenant] = await list_tenants(database, ACTOR)
    assert (tenant.name, tenant.slug) == ("Demo", "demo")
    account = await get_account(database, ACTOR, tenant_id=tenant.id)
    assert usd_to_pico(account.balance_usd) == usd_to_pico("10")
    key = await find_key(database, ACTOR, pepper=pepper, raw=secrets.demo_api_key)
    assert key.tenant_id == tenant.id
    [scope] = await list_limits(database, ACTOR, tenant_id=tenant.id)
    assert (scope.scope_kind, scope.limits) == ("tenant", LIMITS)
    login = await verify_login(database, secrets.admin_email, secrets.admin_password)
    assert login is not None
    assert login.role == "platform_admin"
    assert (
        await authenticate_token(database, secrets.admin_token, pepper=pepper)
    ).label == secrets.admin_email
    async with database.read() as connection:
        assert await connection.scalar(select(func.count()).select_from(api_keys)) == 1
        stored = str((await connection.execute(text("SELECT * FROM audit_log"))).all())
    for secret in (secrets.demo_api_key, secrets.admin_token, secrets.admin_password):
        assert secret not in stored


async def test_a_revoked_key_and_token_are_replaced(database: Database) -> None:
    secrets = Secrets()
    pepper = secrets.key_pepper.encode()
    await bootstrap(database, secrets, CATALOG, demo=True, limits=LIMITS)
    old_key, old_token = secrets.demo_api_key, secrets.admin_token
    key = await find_key(database, ACTOR, pepper=pepper, raw=old_key)
    await revoke_key(database, ACTOR, key_id=key.id, reason="test")
    [user] = await list_users(database, ACTOR)
    [token] = await list_admin_tokens(database, ACTOR, user_id=user.id)
    await revoke_admin_token(database, ACTOR, token_id=token.id)
    await bootstrap(database, secrets, CATALOG, demo=True, limits=LIMITS)
    assert secrets.demo_api_key != old_key
    assert secrets.admin_token != old_token
    fresh = await find_key(database, ACTOR, pepper=pepper, raw=secrets.demo_api_key)
    assert fresh.status == "active"
    account = await get_account(database, ACTOR, tenant_id=fresh.tenant_id)
    assert usd_to_pico(account.balance_usd) == usd_to_pico("10")


async def test_what_an_operator_changed_stays(database: Database) -> None:
    secrets = Secrets()
    await bootstrap(database, secrets, CATALOG, demo=False, limits=LIMITS)
    assert secrets.demo_api_key == ""
    assert await list_tenants(database, ACTOR) == []
    name = next(iter(CATALOG.models))
    await set_price(database, ACTOR, model=name, input="7", output="9")
    await retire_model(database, ACTOR, name=name)
    await bootstrap(database, secrets, CATALOG, demo=False, limits=LIMITS)
    prices = {price.model: price for price in await list_prices(database, ACTOR)}
    assert usd_to_pico(prices[name].input) == usd_to_pico("7")
    status = {model.name: model.status for model in await list_models(database, ACTOR)}
    assert status[name] == "retired"


async def test_migrate_offers_the_catalog_and_leaves_what_is_set(
    database: Database, pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    await asyncio.to_thread(migrate)
    assert "penstock: warning: the catalog's price of deepseek-v3.2 is below cost" in capsys.readouterr().err
    assert {model.name for model in await list_models(database, ACTOR)} == set(CATALOG.models)
    assert {price.model for price in await list_prices(database, ACTOR)} == set(CATALOG.models)
    name = next(iter(CATALOG.models))
    await set_price(database, ACTOR, model=name, input="9", output="9")
    await retire_model(database, ACTOR, name=name)
    await asyncio.to_thread(migrate)
    assert capsys.readouterr().err == ""
    assert {model.status for model in await list_models(database, ACTOR) if model.name == name} == {"retired"}
    [price] = [price for price in await list_prices(database, ACTOR) if price.model == name]
    assert price.input == "9.00"
    assert await list_users(database, ACTOR) == []


async def test_the_token_keeps_to_the_operators_longest_life(database: Database) -> None:
    await bootstrap(
        database, Secrets(), CATALOG, demo=False, limits=LIMITS, lives=TokenLives(default=5, longest=7)
    )
    [user] = await list_users(database, ACTOR)
    [token] = await list_admin_tokens(database, ACTOR, user_id=user.id)
    assert token.expires_at - token.created_at == timedelta(days=7)


@pytest.mark.parametrize("act", ["disable", "role"])
async def test_a_first_admin_who_is_one_no_longer_gets_no_token(database: Database, act: str) -> None:
    secrets = Secrets()
    await bootstrap(database, secrets, CATALOG, demo=False, limits=LIMITS)
    [user] = await list_users(database, ACTOR)
    await create_user(
        database, ACTOR, email="second@example.com", password="a long password", role="platform_admin"
    )
    if act == "disable":
        await disable_user(database, ACTOR, user_id=user.id)
    else:
        await set_role(database, ACTOR, user_id=user.id, role="finance")
    await bootstrap(database, secrets, CATALOG, demo=False, limits=LIMITS)
    assert secrets.admin_token == ""
    assert len(await list_admin_tokens(database, ACTOR, user_id=user.id)) == 1
