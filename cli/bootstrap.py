"""Sets up a new platform: models, prices, a platform admin, and the demo organisation.

Every change goes through admin/ and is audited. Running it again changes nothing that exists.
"""

from decimal import Decimal

import msgspec

from admin.actor import Actor, system_actor
from admin.credits import grant_credit
from admin.keys import create_key, find_key
from admin.logins import TOKEN_LIVES, TokenLives, authenticate_token, create_admin_token
from admin.models import add_model, list_models
from admin.money_rules import store_first_rules
from admin.price_losses import catalog_losses
from admin.prices import ensure_list_prices
from admin.projects import list_projects
from admin.tenants import create_tenant, find_tenant
from admin.users import create_user, list_users
from billing.pricing.prices import Rates
from cli.rundir import Secrets
from core.db import Database
from core.errors import AuthenticationFailed, NotFound
from core.settings import Settings
from tenants.principal import Limits
from tenants.roles import PLATFORM_ADMIN
from tenants.token_scopes import ALL_SCOPES
from workers.catalog import Catalog

DEMO = "Demo"
DEMO_CREDIT_USD = "10"
_RULES = ("approval_limit_usd", "approval_days", "default_credit_limit_usd")
"""Settings that only the first start reads."""


async def bootstrap(
    database: Database,
    secrets: Secrets,
    catalog: Catalog,
    *,
    demo: bool,
    limits: Limits,
    lives: TokenLives = TOKEN_LIVES,
) -> list[str]:
    """Create what is missing. Sets the admin token and, with `demo`, the demo key of `secrets`; returns warnings.

    `limits`: those of the demo organisation. The admin token lives as long as `lives` allows.
    """
    actor = system_actor("penstock up")
    warnings = await offer_models(database, actor, catalog)
    await _make_admin(database, actor, secrets, lives)
    if demo:
        await _make_demo(database, actor, secrets, limits)
    return warnings


async def store_rules(database: Database, actor: Actor, settings: Settings) -> list[str]:
    """Store the rules about money of the environment on the first start.

    Later the database's hold. Returns a warning for each that the environment states otherwise.
    """
    stated = {name: getattr(settings, name) for name in _RULES}
    rules = await store_first_rules(database, actor, **stated)
    held = msgspec.structs.asdict(rules)
    return [
        f"PENSTOCK_{name.upper()} is {stated[name]}, but this platform's is {held[name]}, and that holds: "
        "change it with `penstock approvals set-rules`"
        for name in _RULES
        if name in settings.model_fields_set and Decimal(stated[name]) != Decimal(held[name])
    ]


async def offer_models(database: Database, actor: Actor, catalog: Catalog) -> list[str]:
    """Offer every model of the catalog, at its list price unless one is set.

    Returns a warning for each price that was set now and does not pay for a full host.
    """
    known = {model.name for model in await list_models(database, actor)}
    for name in catalog.models:
        if name not in known:
            await add_model(database, actor, name=name)
    rates = {
        name: Rates(
            input=model.list_price.input,
            cached_input=model.list_price.cached_input,
            output=model.list_price.output,
            reasoning=model.list_price.reasoning,
        )
        for name, model in catalog.models.items()
        if model.list_price is not None
    }
    made = await ensure_list_prices(database, actor, rates)
    losses = await catalog_losses(database, actor, models={price.model for price in made})
    return [
        f"the catalog's price of {each.model} is below cost: see `penstock economics breakeven --model {each.model}`"
        for each in losses
    ]


async def _make_admin(database: Database, actor: Actor, secrets: Secrets, lives: TokenLives) -> None:
    """Create the first platform admin with a token for the admin REST API; none for one disabled or of another role."""
    pepper = secrets.key_pepper.encode()
    users = {user.email: user for user in await list_users(database, actor)}
    user = users.get(secrets.admin_email)
    if user is None:
        user = await create_user(
            database, actor, email=secrets.admin_email, password=secrets.admin_password, role=PLATFORM_ADMIN
        )
    if user.status != "active" or user.role != PLATFORM_ADMIN:
        secrets.admin_token = ""
        return
    if secrets.admin_token:
        try:
            await authenticate_token(database, secrets.admin_token, pepper=pepper)
            return
        except AuthenticationFailed:  # revoked, or the database is another one
            pass
    made = await create_admin_token(
        database,
        actor,
        pepper=pepper,
        user_id=user.id,
        name="penstock up",
        scopes=ALL_SCOPES,
        days=lives.longest,
        lives=lives,
    )
    secrets.admin_token = made.secret


async def _make_demo(database: Database, actor: Actor, secrets: Secrets, limits: Limits) -> None:
    """Create the demo organisation with credit and a key. A key that no longer works is replaced."""
    pepper = secrets.key_pepper.encode()
    try:
        tenant = await find_tenant(database, actor, text=DEMO.lower())
    except NotFound:
        tenant = await create_tenant(database, actor, name=DEMO, limits=limits)
        await grant_credit(
            database, actor, tenant_id=tenant.id, amount_usd=DEMO_CREDIT_USD, reason="demo credit"
        )
    if secrets.demo_api_key:
        try:
            key = await find_key(database, actor, pepper=pepper, raw=secrets.demo_api_key)
            if key.status == "active":
                return
        except NotFound:
            pass
    [project] = [
        each for each in await list_projects(database, actor, tenant_id=tenant.id) if each.name == "default"
    ]
    made = await create_key(
        database, actor, pepper=pepper, tenant_id=tenant.id, project_id=project.id, name="demo"
    )
    secrets.demo_api_key = made.secret
