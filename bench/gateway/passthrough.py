"""The minimal ASGI proxy: it forwards the body and returns the bytes, without keys, billing or counting."""

import argparse

import aiohttp
import uvicorn

from api.serve import bind


class PassThrough:
    """A raw ASGI application in front of one engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.session: aiohttp.ClientSession | None = None

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        if self.session is None:
            self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {"Content-Type": "application/json"}
        async with self.session.post(self.engine + scope["path"], data=body, headers=headers) as answer:
            kind = answer.headers["content-type"].encode()
            await send(
                {"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]}
            )
            while data := await answer.content.readany():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--engine", required=True)
    given = arguments.parse_args()
    config = uvicorn.Config(
        PassThrough(given.engine),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
    uvicorn.Server(config).run(sockets=[bind("127.0.0.1", given.port)])


if __name__ == "__main__":
    main()
