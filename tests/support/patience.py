"""Requests on a machine with little CPU, where PostgreSQL may be silent for the half second that refuses a request."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import openai

ResultT = TypeVar("ResultT")


async def patiently(ask: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """What `ask` returns; asked again while it is refused with 503 `billing_unavailable`, which costs nothing."""
    while True:
        try:
            return await ask()
        except openai.InternalServerError as error:
            if error.code != "billing_unavailable":
                raise
            await asyncio.sleep(0.2)
