"""The fake cloud behind HTTP, for the official client."""

import json

from aiohttp import web

from sim.digitalocean.cloud import FakeCloud, Request, decode_body
from sim.digitalocean.faults import Cut


def app(cloud: FakeCloud) -> web.Application:
    """The application to serve."""

    async def answer(request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        asked = Request(
            request.method, request.path, dict(request.query), decode_body(await request.read()), token
        )
        try:
            found = cloud.handle(asked)
        except Cut:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        headers = {"content-type": "application/json; charset=utf-8", **found.headers}
        text = b"" if found.body is None else json.dumps(found.body).encode()
        return web.Response(status=found.status, body=text, headers=headers)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    return application
