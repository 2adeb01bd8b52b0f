"""Pages without NiceGUI: sign-in and messages. They need no session."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import segno
from jinja2 import Environment, FileSystemLoader
from starlette.responses import HTMLResponse

from admin.second_factor import Enrolment

STATIC = Path(__file__).parent / "static"
_TEMPLATES = Path(__file__).parent / "templates"


@cache
def asset_version() -> str:
    """A version of stylesheets and scripts for cache busting; it changes with their content."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _environment() -> Environment:
    return Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True)


def _render(template: str, status: int, **values: object) -> HTMLResponse:
    html = _environment().get_template(template).render(version=asset_version(), **values)
    return HTMLResponse(html, status)


def sign_in_page(
    *, status: int = 200, error: str = "", email: str = "", target: str = "", providers: bool = False
) -> HTMLResponse:
    """The sign-in form; `error` is shown above it, `target` is the path to open afterwards.

    `providers`: whether there are identity providers, so that the form offers them.
    """
    return _render(
        "sign_in.html", status, title="Sign in", error=error, email=email, next=target, providers=providers
    )


def provider_page(*, email: str = "", target: str = "") -> HTMLResponse:
    """The form that asks for a mail address, whose domain has an identity provider."""
    return _render("provider.html", 200, title="Identity provider", email=email, next=target)


def leave_page(*, address: str, issuer: str) -> HTMLResponse:
    """The page that goes on to an identity provider."""
    return _render("leave.html", 200, title="One moment", address=address, issuer=issuer)


def link_page(
    *, status: int, error: str, email: str, issuer: str, needs_code: bool, ticket: str, target: str
) -> HTMLResponse:
    """The form that asks once for the password of an account, to link it with an identity provider."""
    return _render(
        "link.html",
        status,
        title="Link your account",
        error=error,
        email=email,
        issuer=issuer,
        needs_code=needs_code,
        ticket=ticket,
        next=target,
    )


def code_page(
    *, status: int = 200, error: str = "", email: str = "", ticket: str = "", target: str = ""
) -> HTMLResponse:
    """The second step of the form, for a person with a second factor; `ticket` is what the first step has shown."""
    return _render(
        "code.html", status, title="Second factor", error=error, email=email, ticket=ticket, next=target
    )


def enrol_page(
    *, status: int = 200, error: str = "", made: Enrolment, ticket: str, target: str = ""
) -> HTMLResponse:
    """The second step of the form, for a person who must enrol a second factor first."""
    return _render(
        "enrol.html",
        status,
        title="Enrol a second factor",
        error=error,
        secret=made.secret,
        qr=qr_code(made.uri),
        ticket=ticket,
        next=target,
    )


def backup_codes_page(*, codes: Sequence[str], target: str) -> HTMLResponse:
    """The new backup codes, which are shown once, with a link to the page that was asked for."""
    return _render("backup_codes.html", 200, title="Your backup codes", codes=codes, next=target)


def qr_code(uri: str) -> str:
    """The address of an image that shows `uri` as a QR code, without any outside resource."""
    return str(segno.make(uri, micro=False).svg_data_uri(scale=5, border=3, light="#fff"))


def message_page(status: int, title: str, body: str) -> HTMLResponse:
    """A page with a title and one sentence."""
    return _render("message.html", status, title=title, body=body)
