"""Authentication by password (console) or token (admin REST API), each giving an Actor with the present role."""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, actor_of, require_scope, visible_user
from admin.audit import record, record_self
from admin.denials import record_denial
from admin.factor_codes import GivenCode, code_needed, use_backup, use_totp, wrong_code
from admin.sign_in_attempts import count_attempt, counted_code, mail_address
from admin.transactions import now_of, write_system
from core.db import Database
from core.errors import (
    AuthenticationFailed,
    Conflict,
    InvalidRequest,
    NotFound,
    PermissionDenied,
)
from core.ids import uuid7
from core.settings import Settings
from tenants import admin_tokens, logins, members, second_factors, sign_in_rules
from tenants.key_format import hash_key, new_key, secret_kind
from tenants.names import PASSWORD_MAX_LENGTH, clean_name
from tenants.passwords import hash_password, needs_rehash, verify_password
from tenants.proofs import Proof
from tenants.token_scopes import DEFAULT_SCOPES, clean_scopes
from tenants.views import TokenView, UserView

LIVE_TOKENS_PER_USER = 20


class TokenLives(msgspec.Struct, frozen=True):
    """How many days tokens live."""

    default: int = 90
    longest: int = 365

    def days(self, wanted: int | None) -> int:
        """The days of a token for which `wanted` are asked (None = the default). Raises InvalidRequest."""
        if wanted is None:
            return min(self.default, self.longest)
        if not 1 <= wanted <= self.longest:
            raise InvalidRequest(
                f"a token lives 1 to {self.longest} days (PENSTOCK_TOKEN_LONGEST_DAYS), not {wanted}",
                param="days",
            )
        return wanted

    @classmethod
    def of(cls, settings: Settings) -> "TokenLives":
        """As the settings say."""
        return cls(settings.token_days, settings.token_longest_days)


TOKEN_LIVES = TokenLives()
"""Unless settings say otherwise."""


class CreatedToken(msgspec.Struct, frozen=True):
    """A new token. `secret` exists here only: show it once, store it nowhere."""

    view: TokenView
    secret: str

    def __repr__(self) -> str:
        """Without the secret, so that no log can show it."""
        return f"CreatedToken(view={self.view!r})"


class SignIn(msgspec.Struct, frozen=True):
    """A person who has just signed in, and the hash to which the password was compared."""

    actor: Actor
    password_hash: str | None
    """None = an identity provider said who it is."""
    proved_by: Proof = "password"

    def __repr__(self) -> str:
        """Without the hash, so that no log can show it."""
        return f"SignIn(actor={self.actor!r}, proved_by={self.proved_by!r})"


class RightPassword(msgspec.Struct, frozen=True):
    """A right password that was given. It is no sign-in: `complete` asks for what else the person needs."""

    user_id: UUID
    email: str
    tenant_id: UUID | None
    digest: bytes
    """Of the hash to which the password was compared: another password ends what was begun with this one."""
    needs_code: bool = False
    must_enrol: bool = False
    """Whether the person must have a second factor and has none: nothing else is possible before."""

    def __repr__(self) -> str:
        """Without the digest, so that no log can show it."""
        return f"RightPassword(user_id={self.user_id}, needs_code={self.needs_code})"


async def verify_login(database: Database, email: str, password: str, *, address: str = "") -> Actor | None:
    """The actor of `sign_in` without a code; None when address and password do not match."""
    found = await sign_in(database, email, password, address=address)
    return None if found is None else found.actor


async def sign_in(
    database: Database, email: str, password: str, *, address: str = "", code: GivenCode | None = None
) -> SignIn | None:
    """The person with this e-mail address and password; None when they do not match.

    `address` is the network address of the client. Raises AuthenticationFailed when the person's second factor demands
    a code and there is none, or a wrong one, or it is locked, and RateLimited after 5 failures of a pair of mail and
    network address (50 of a mail address) within 15 minutes. Takes the same time for unknown addresses.
    """
    right = await check_password(database, email, password, address=address)
    return None if right is None else await complete(database, right, address=address, code=code)


async def check_password(
    database: Database, email: str, password: str, *, address: str = ""
) -> RightPassword | None:
    """The person whose password it is; None when they do not match. Counts as a failed sign-in until `complete`.

    Raises RateLimited. Takes the same time for unknown addresses.
    """
    known_shape, email = mail_address(email)
    await count_attempt(database, email, address)
    async with database.read() as connection:
        login = await members.find_login(connection, email) if known_shape else None
        tenant_id = None if login is None else login.user.tenant_id
        rule = await sign_in_rules.read_rule(connection, tenant_id)
    right = len(password) <= PASSWORD_MAX_LENGTH and await verify_password(
        password, None if login is None else login.password_hash
    )
    if login is None or not right or login.user.status != "active":
        return None
    if needs_rehash(login.password_hash):
        login = await _rehash(database, login, password)
    user = login.user
    return RightPassword(
        user.id,
        user.email,
        user.tenant_id,
        _digest(login.password_hash),
        needs_code=user.second_factor,
        must_enrol=rule == "second_factor" and not user.second_factor,
    )


async def right_password(database: Database, email: str, password: str, *, address: str) -> RightPassword:
    """As `check_password`; raises AuthenticationFailed when address and password do not match."""
    right = await check_password(database, email, password, address=address)
    if right is None:
        raise wrong_credentials()
    return right


async def complete(
    database: Database, right: RightPassword, *, address: str = "", code: GivenCode | None = None
) -> SignIn | None:
    """Sign in a person whose password was right; None when the person was disabled or the password changed meanwhile.

    The code is used up, and the failures of before are forgotten. Raises AuthenticationFailed when the person's second
    factor demands a code and there is none, or a wrong one, and PermissionDenied when that is less than the rule of the
    person's organisation demands.
    """
    signed_in = None
    try:
        async with counted_code(database, right.user_id, code, address), database.system() as connection:
            signed_in = await prove(connection, right, address=address, code=code)
            if signed_in is not None:
                await check_rule(connection, right.tenant_id, signed_in.proved_by)
                await record(
                    connection,
                    signed_in.actor,
                    "user.sign_in",
                    tenant_id=signed_in.actor.tenant_id,
                    object_kind="user",
                    object_id=right.user_id,
                    after={"address": address[:64], "proved_by": signed_in.proved_by},
                )
    except PermissionDenied as error:
        if signed_in is not None:
            await record_denial(database, signed_in.actor, "sign in", error, address=address)
        raise
    return signed_in


async def prove(
    connection: AsyncConnection, right: RightPassword, *, address: str, code: GivenCode | None
) -> SignIn | None:
    """Check again that the password holds, and the code where the person has a second factor; see `complete`.

    Locks the person's row. Call it within `counted_code`.
    """
    user = await members.get_user(connection, right.user_id, lock=True)
    login = None if user is None else await members.find_login(connection, user.email)
    if login is None or login.user.status != "active" or _digest(login.password_hash) != right.digest:
        return None
    actor = actor_of("user", login.user)
    proved_by: Proof = "password"
    if login.user.second_factor:
        if code is None or not code.text.strip():
            raise code_needed()
        if not await use_totp(connection, right.user_id, code):
            if not await use_backup(connection, right.user_id, code):
                raise wrong_code()
            await record_self(connection, actor, "user.use_backup_code")
        proved_by = "second_factor"
        await second_factors.forget_wrong_codes(connection, right.user_id)
    await logins.clear_failures(connection, login.user.email, address[:64])
    return SignIn(actor, login.password_hash, proved_by)


def wrong_credentials() -> AuthenticationFailed:
    """The answer to a mail address and a password that do not match."""
    return AuthenticationFailed("The mail address or the password is wrong.", code="wrong_credentials")


async def _rehash(database: Database, login: members.Login, password: str) -> members.Login:
    """Renew a hash that was made with other parameters than the present ones."""
    fresh = await hash_password(password)
    async with database.system() as connection:
        if not await _is_password(connection, login.user.id, login.password_hash):
            return login  # changed meanwhile: completing the sign-in notices
        await members.set_password_hash(connection, login.user.id, fresh)
    return members.Login(login.user, fresh)


def _digest(password_hash: str) -> bytes:
    return hashlib.sha256(password_hash.encode()).digest()


async def _is_password(connection: AsyncConnection, user_id: UUID, password_hash: str) -> bool:
    """Whether the person, whose row it locks, is active and still has this password hash."""
    user = await members.get_user(connection, user_id, lock=True)
    if user is None or user.status != "active":
        return False
    login = await members.find_login(connection, user.email)
    return login is not None and login.password_hash == password_hash


async def check_still_signed_in(
    connection: AsyncConnection, actor: Actor, user_id: UUID, password_hash: str | None = None
) -> None:
    """Lock the row of a person who is to get a token or session, and check again that the actor may make it.

    What ends a person's access locks the row, too: it either sees the new token or session, or it was first, and then
    the actor's token or session is revoked, or `password_hash`, to which the password was compared, is no longer the
    person's. Raises AuthenticationFailed.
    """
    user = await members.get_user(connection, user_id, lock=True)
    live = user is not None and user.status == "active"
    if live and actor.token is not None:
        live = await admin_tokens.is_live(connection, actor.token.id)
    if live and password_hash is not None:
        live = await _is_password(connection, user_id, password_hash)
    if not live:
        raise AuthenticationFailed(
            "The sign-in, password or token was ended meanwhile. Sign in again.", code="access_ended"
        )


async def check_rule(connection: AsyncConnection, tenant_id: UUID | None, proved_by: Proof) -> None:
    """Raise PermissionDenied when the rule of these people demands more; it stays until the transaction ends."""
    await sign_in_rules.hold_still(connection)
    rule = await sign_in_rules.read_rule(connection, tenant_id)
    if proved_by in sign_in_rules.MEETS[rule]:
        return
    if rule == "oidc":
        raise PermissionDenied(
            "This account signs in by its organisation's identity provider only, in the console. Tokens made there "
            "work over REST and in commands.",
            code="oidc_required",
        )
    raise PermissionDenied(
        "This account needs a second factor. Enrol one by signing in to the console, with `penstock users "
        "second-factor enrol` or with POST /v1/second-factor; then sign in with a code.",
        code="second_factor_not_enrolled",
    )


async def create_admin_token(
    database: Database,
    actor: Actor,
    *,
    pepper: bytes,
    user_id: UUID,
    name: str,
    scopes: Sequence[str] = DEFAULT_SCOPES,
    days: int | None = None,
    lives: TokenLives = TOKEN_LIVES,
    signed_in: SignIn | None = None,
) -> CreatedToken:
    """Make a token for oneself; the platform itself may make one for others, as the first start does.

    It ends after `days` (None = as `lives` says). One that a token makes has no scope that the token lacks, and
    ends no later. `signed_in`: the actor, who has just signed in. Raises AuthenticationFailed when the actor's access
    or the person's was ended meanwhile, PermissionDenied for a token of another user and for a maker without the scope
    `access`, Conflict beyond 20 live ones, NotFound, InvalidRequest.
    """
    require_scope(actor, "access")
    user = await _token_owner(database, actor, user_id)
    name, granted, days = clean_name(name), clean_scopes(scopes), lives.days(days)
    secret = new_key("admin", pepper)
    async with write_system(database) as connection:
        await check_still_signed_in(
            connection, actor, user_id, None if signed_in is None else signed_in.password_hash
        )
        proved_by = _proved_by(actor, signed_in)
        if actor.kind != "system":  # the first start holds the pepper, and could not be asked for a code
            await check_rule(connection, user.tenant_id, proved_by)
        if await admin_tokens.count_live_tokens(connection, user_id) >= LIVE_TOKENS_PER_USER:
            raise Conflict(f"{user.email} has {LIVE_TOKENS_PER_USER} live tokens; revoke one first")
        now = await now_of(connection)
        expires_at = now + timedelta(days=days)
        if actor.token is not None and actor.token.kind == "token":
            expires_at = min(expires_at, actor.token.expires_at)
        view = await admin_tokens.insert_token(
            connection,
            user_id,
            uuid7(),
            name=name,
            token_hash=hash_key(secret, pepper),
            last4=secret[-4:],
            scopes=granted,
            created_at=now,
            expires_at=expires_at,
            proved_by=proved_by,
        )
        await record(
            connection,
            actor,
            "token.create",
            tenant_id=user.tenant_id,
            object_kind="token",
            object_id=view.id,
            after=view,
        )
    return CreatedToken(view, secret)


def _proved_by(actor: Actor, signed_in: SignIn | None) -> Proof:
    """What a new token inherits: how its maker has signed in."""
    if signed_in is not None:
        return signed_in.proved_by
    return "password" if actor.token is None else actor.token.proved_by


async def list_admin_tokens(database: Database, actor: Actor, *, user_id: UUID) -> list[TokenView]:
    """Tokens of a person the actor may see, dead ones included. Raises NotFound."""
    async with database.read() as connection:
        visible_user(actor, user_id, await members.get_user(connection, user_id))
        return await admin_tokens.list_tokens(connection, user_id)


async def revoke_admin_token(database: Database, actor: Actor, *, token_id: UUID) -> TokenView:
    """Revoke a token. Raises PermissionDenied, Conflict when it is already revoked, NotFound."""
    async with database.read() as connection:
        before = await admin_tokens.get_token(connection, token_id)
    if before is None or before.kind == "console":
        raise NotFound(f"there is no token with the id {token_id}")
    user = await _token_owner(database, actor, before.user_id, revoke=True)
    async with write_system(database) as connection:
        if not await admin_tokens.mark_revoked(connection, token_id):
            raise Conflict(f"the token {before.name!r} (…{before.last4}) is revoked already")
        after = await admin_tokens.get_token(connection, token_id)
        await record(
            connection,
            actor,
            "token.revoke",
            tenant_id=user.tenant_id,
            object_kind="token",
            object_id=token_id,
            before=before,
            after=after,
            scope="write" if actor.token is not None and actor.token.id == token_id else None,
        )
    return after or before


async def authenticate_token(database: Database, secret: str, *, pepper: bytes) -> Actor:
    """The actor of a bearer token of the admin REST API. Raises AuthenticationFailed, which omits the token."""
    if secret_kind(secret) != "admin":
        raise _bad_token(
            "The admin token is malformed: tokens look like pen_admin_ and 38 letters and digits."
        )
    async with database.system() as connection:
        token = await admin_tokens.find_live_token(connection, hash_key(secret, pepper))
        user = None if token is None else await members.get_user(connection, token.user_id)
        if token is None or user is None:
            raise _bad_token("The admin token is not known, revoked or expired.")
        await admin_tokens.touch(connection, token.id)
    return msgspec.structs.replace(actor_of("token", user), token=token)


async def _token_owner(database: Database, actor: Actor, user_id: UUID, *, revoke: bool = False) -> UserView:
    """The person whose tokens the actor may change. Raises NotFound, PermissionDenied."""
    async with database.read() as connection:
        user = visible_user(actor, user_id, await members.get_user(connection, user_id))
    if actor.kind == "system":
        return user
    if revoke and actor.role == "platform_admin":
        return user
    if actor.kind not in ("user", "token") or actor.id != str(user_id):
        raise PermissionDenied("a token acts as its person, so only that person can make or revoke it")
    return user


def _bad_token(message: str) -> AuthenticationFailed:
    return AuthenticationFailed(
        message + " Make one with `penstock users token`.", code="invalid_admin_token"
    )
