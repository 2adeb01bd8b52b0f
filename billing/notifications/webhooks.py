"""Webhooks to addresses that customers set: signed, and protected against SSRF.

Webhooks are the only requests that Penstock sends to an address chosen by a customer. Only https is allowed; the
resolved address is checked when the socket is created (so DNS rebinding has no effect); redirects and proxies are not
used; only the status of the answer is read. `allow_hosts` is the operator's list of exceptions.
"""

import hashlib
import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit
from uuid import UUID

import aiohttp

from core.errors import InvalidRequest
from core.public_addresses import guarded_socket, is_public

MAX_URL = 500
"""Characters of a URL."""
TIMEOUT_S = 5.0
"""Seconds for one request."""
_PRIVATE_SUFFIXES = frozenset(
    {"local", "localhost", "localdomain", "internal", "lan", "home", "corp", "arpa"}
)


def endpoint_secret(pepper: bytes, endpoint_id: UUID, version: int) -> str:
    """The signing secret of an endpoint, derived from `pepper`, so that the database stores no secret."""
    text = f"penstock webhook|{endpoint_id}|{version}".encode()
    return "whsec_" + hmac.new(pepper, text, hashlib.sha256).hexdigest()


def signature(secret: str, unix_s: int, body: bytes) -> str:
    """The value of the header Penstock-Signature: `t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">`."""
    digest = hmac.new(secret.encode(), f"{unix_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={unix_s},v1={digest}"


def check_url(url: str, allow_hosts: frozenset[str]) -> str:
    """`url` when it is allowed as a target, else raises InvalidRequest. The resolved address is checked on sending."""
    problem = _url_problem(url, allow_hosts)
    if problem:
        raise InvalidRequest(f"the webhook address {problem}", param="target")
    return url


def _url_problem(url: str, allow_hosts: frozenset[str]) -> str | None:
    if len(url) > MAX_URL or not url.isascii() or any(c <= " " or c in "\\\x7f" for c in url):
        return f"must be at most {MAX_URL} ASCII characters without blanks or backslashes"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "cannot be understood; it looks like https://hooks.example.com/penstock"
    host = (parts.hostname or "").rstrip(".")
    if not host or port == 0:
        return "names no host; it looks like https://hooks.example.com/penstock"
    if parts.username is not None or parts.password is not None or parts.fragment:
        return "must not carry a user, a password or a fragment"
    if host in allow_hosts and parts.scheme in ("https", "http"):
        return None
    if parts.scheme != "https":
        return "must begin with https://"
    if _is_literal(host):
        return None if is_public(host) else f"{host} is not on the public internet"
    last = host.rpartition(".")[2]
    if "." not in host or last in _PRIVATE_SUFFIXES or not (last.isalpha() or last.startswith("xn--")):
        return f"{host} is not a name of the public internet"
    return None


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def post(url: str, body: bytes, headers: dict[str, str], allow_hosts: frozenset[str]) -> str | None:
    """POST `body` to `url`; returns None for an answer of 2xx, otherwise the error as a text. Never raises."""
    problem = _url_problem(url, allow_hosts)
    if problem:
        return f"the address {problem}"
    allowed = (urlsplit(url).hostname or "").rstrip(".") in allow_hosts
    connector = aiohttp.TCPConnector(
        limit=1,
        force_close=True,
        use_dns_cache=False,
        socket_factory=None if allowed else guarded_socket,
    )
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
            session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            status = answer.status
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if 200 <= status < 300:
        return None
    return f"answered {status}" + ("; redirects are not followed" if 300 <= status < 400 else "")
