"""Keys are refused outside of their networks and scopes, from their cached entry alone."""

from ipaddress import ip_network
from typing import Any
from uuid import UUID

import msgspec
import pytest

from api.key_restrictions import KeyRestrictions
from core.client_address import ClientAddresses
from core.errors import PermissionDenied
from tenants.principal import NO_LIMITS, Principal

PRINCIPAL = Principal(
    key_id=UUID(int=1),
    project_id=UUID(int=2),
    tenant_id=UUID(int=3),
    tenant="Acme",
    last4="abcd",
    kind="live",
    tier="standard",
    key_limits=NO_LIMITS,
    project_limits=NO_LIMITS,
    tenant_limits=NO_LIMITS,
    allowed_models=None,
    cache_salt="salt",
)
OFFICE = msgspec.structs.replace(
    PRINCIPAL, networks=(ip_network("203.0.113.0/24"), ip_network("2001:db8:0:1:2::/80"))
)


def asgi(peer: str | None, forwarded: str = "") -> dict[str, Any]:
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    return {"client": None if peer is None else (peer, 1), "headers": headers}


@pytest.mark.parametrize(
    ("peer", "forwarded", "allowed"),
    [
        ("203.0.113.9", "", True),
        ("::ffff:203.0.113.9", "", True),
        ("198.51.100.1", "", False),
        ("198.51.100.1", "203.0.113.9", False),
        ("10.0.0.1", "203.0.113.9", True),
        ("10.0.0.1", "203.0.113.9, 198.51.100.1", False),
        ("2001:db8:0:1:2::7", "", True),
        ("2001:db8:0:1:3::7", "", False),
        (None, "", False),
    ],
)
def test_a_key_is_used_from_its_networks_alone(peer: str | None, forwarded: str, allowed: bool) -> None:
    restrictions = KeyRestrictions(ClientAddresses("10.0.0.0/8"))
    assert restrictions.check(PRINCIPAL, asgi(peer, forwarded), "inference") is PRINCIPAL
    if allowed:
        assert restrictions.check(OFFICE, asgi(peer, forwarded), "inference") is OFFICE
        return
    with pytest.raises(PermissionDenied) as refused:
        restrictions.check(OFFICE, asgi(peer, forwarded), "inference")
    assert refused.value.code == "key_address_denied"


def test_a_key_is_used_for_its_scopes_alone() -> None:
    restrictions = KeyRestrictions(ClientAddresses(""))
    key = msgspec.structs.replace(PRINCIPAL, scopes=frozenset({"models"}))
    assert restrictions.check(key, asgi(None), "models") is key
    for use in ("inference", "generations"):
        with pytest.raises(PermissionDenied) as refused:
            restrictions.check(key, asgi(None), use)
        assert refused.value.code == "key_scope_denied"
