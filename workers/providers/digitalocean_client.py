"""DigitalOcean's official client (pydo), asked once per call: its own retries would send a create up to four times.

The only module that knows pydo. It is imported when a token is set, since the client takes some 60 MiB of memory.
"""

import json
import logging
from collections.abc import Awaitable, Mapping
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from pydo.aio import Client

from workers.providers.droplet_api import ApiReply, NoAnswer

TIMEOUT_S = 30
"""Seconds for a connection, and for each read of a response."""
_QUIET = logging.getLogger("penstock.digitalocean")


class PydoApi:
    """DropletApi by pydo. `api` is the base URL; a test's plain HTTP is allowed, the real API is HTTPS."""

    def __init__(self, token: str, *, api: str = "https://api.digitalocean.com") -> None:
        _QUIET.setLevel(logging.WARNING)  # the client logs every request
        self._secret = token
        self._client = Client(
            token,
            endpoint=api,
            retry_total=0,
            redirect_max=0,
            connection_timeout=TIMEOUT_S,
            read_timeout=TIMEOUT_S,
            logger=_QUIET,
        )
        # pydo's methods are typed for their own replies; `cls` makes them ApiReply.
        self._droplets: Any = self._client.droplets
        self._actions: Any = self._client.actions
        self._sizes: Any = self._client.sizes
        self._account: Any = self._client.account
        self._options = {"enforce_https": not api.startswith("http://"), "cls": _reply}

    async def create(self, body: dict[str, Any]) -> ApiReply:
        """POST /v2/droplets"""
        return await self._send(self._droplets.create(body=body, **self._options))

    async def list_droplets(self, query: Mapping[str, str | int]) -> ApiReply:
        """GET /v2/droplets"""
        return await self._send(self._droplets.list(**query, **self._options))

    async def destroy(self, droplet_id: int) -> ApiReply:
        """DELETE /v2/droplets/{droplet_id}"""
        return await self._send(self._droplets.destroy(droplet_id, **self._options))

    async def list_actions(self, query: Mapping[str, str | int]) -> ApiReply:
        """GET /v2/actions"""
        return await self._send(self._actions.list(**query, **self._options))

    async def list_sizes(self, query: Mapping[str, str | int]) -> ApiReply:
        """GET /v2/sizes"""
        return await self._send(self._sizes.list(**query, **self._options))

    async def account(self) -> ApiReply:
        """GET /v2/account"""
        return await self._send(self._account.get(**self._options))

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()

    async def _send(self, call: Awaitable[Any]) -> ApiReply:
        try:
            reply: ApiReply = await call
        except HttpResponseError as error:
            if error.response is None:
                raise NoAnswer(self._plain(error)) from error
            return _from_response(error.response)
        except AzureError as error:
            raise NoAnswer(self._plain(error)) from error
        return reply

    def _plain(self, error: Exception) -> str:
        """The error's text without the token, should it ever hold it."""
        return f"{type(error).__name__}: {error}".replace(self._secret, "[token]")


def _reply(pipeline_response: Any, body: Any, headers: Any) -> ApiReply:
    return _from_response(pipeline_response.http_response)


def _from_response(response: Any) -> ApiReply:
    headers = {str(name).lower(): str(value) for name, value in response.headers.items()}
    try:
        text = response.text()
        body = json.loads(text) if text else None
    except ValueError:
        body = None
    return ApiReply(int(response.status_code), headers, body)
