"""An OpenID Connect provider on loopback, which remembers what it was asked."""

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

import flask
import httpx
from werkzeug.serving import make_server

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses a part of authlib that will move
    import oidc_provider_mock
    from oidc_provider_mock._app import OpenIDCode
    from oidc_provider_mock._app import _user_claims_for_scope as _claims_for_scope

HOST = "127.0.0.1"
IGNORED = (
    "ignore::authlib.deprecate.AuthlibDeprecationWarning",
    "ignore:get_jwt_config:DeprecationWarning",
)
"""The filters of warnings of tests that run the provider, which uses a part of authlib that will move."""


class ProviderServer:
    """The running provider."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.asked: list[dict[str, list[str]]] = []
        """Parameters of the requests to authorize."""
        self.issuer = ""
        self.plain_tokens = False
        """Whether ID tokens name a subject only, so that the rest stands in the user information."""
        self._new_key = False
        self._app = oidc_provider_mock.app(require_nonce=True)
        self._app.before_request(self._prepare)
        self._app.after_request(_without_outside_styles)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        self.paths.append(path)
        if path == "/oauth2/authorize":
            self.asked.append(parse_qs(environ["QUERY_STRING"]))
        return self._app(environ, start_response)

    def _prepare(self) -> None:
        if self._new_key:
            flask.g.oidc_provider_mock_storage.jwk = type(
                flask.g.oidc_provider_mock_storage.jwk
            ).generate_key(is_private=True)
            self._new_key = False

    def change_key(self) -> None:
        """Sign with another key from the next request on."""
        self._new_key = True

    def claims(self, user: Any, scope: str) -> dict[str, object]:
        """What an ID token says of somebody."""
        return {"sub": user.sub} if self.plain_tokens else _claims_for_scope(user, scope)

    async def know(self, sub: str, **claims: object) -> None:
        """Let the provider know somebody."""
        async with httpx.AsyncClient() as client:
            answer = await client.put(f"{self.issuer}/users/{sub}", json=claims)
        assert answer.status_code == 204, answer.text

    async def approve(self, address: str, sub: str) -> dict[str, str]:
        """Sign in there as a browser does; returns what comes back to the console."""
        async with httpx.AsyncClient() as client:
            answer = await client.post(address, data={"sub": sub})
        assert answer.status_code == 302, answer.text
        back = parse_qs(urlsplit(answer.headers["location"]).query)
        return {name: values[0] for name, values in back.items()}


def _without_outside_styles(response: Any) -> Any:
    """The provider's pages without the style sheet that they load from elsewhere."""
    if response.mimetype == "text/html":
        response.set_data(re.sub(r'<link[^>]*"https://[^>]*>', "", response.get_data(as_text=True)))
    return response


@contextmanager
def provider_server() -> Iterator[ProviderServer]:
    """A provider that knows nobody yet."""
    server = ProviderServer()
    http = make_server(HOST, 0, server, threaded=True)
    server.issuer = f"http://{HOST}:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        with patch.object(
            OpenIDCode, "generate_user_info", lambda _, user, scope: server.claims(user, scope)
        ):
            yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
