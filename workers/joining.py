"""A host joins: it shows its one-time token to any scheduler, until one lets its secret hold."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from core.addresses import Address
from core.framing import FrameTooLarge, pack, read_frame
from workers.join_token import JoinToken, secret_hash
from workers.own_credentials import AgentCredentials
from workers.scheduler_link import Connect, Untrusted
from workers.wire import AgentJoin, AgentRotation, JoinAnswer

TIMEOUT_S = 10.0
"""Seconds for one attempt at one scheduler."""
_WAITS_S = (0.5, 30.0)
"""Shortest and longest pause between two rounds over the schedulers."""
_MAX_ANSWER_BYTES = 4096

log = logging.getLogger(__name__)
_answer = msgspec.msgpack.Decoder(JoinAnswer)


async def join(
    credentials: AgentCredentials,
    addresses: Sequence[Address],
    connect: Connect,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Use the join token if there is one; returns when it was used. A problem is logged once, until it changes."""
    token = credentials.join_token
    if token is None:
        return
    wait, said = _WAITS_S[0], ""
    while True:
        problem = await _round(credentials, token, addresses, connect)
        if not problem:
            credentials.on_joined()
            log.info("this host has joined as %s", credentials.host_id)
            return
        if problem != said:
            said = problem
            log.error("this host cannot join: %s", problem)
        await pause(wait)
        wait = min(wait * 2, _WAITS_S[1])


async def _round(
    credentials: AgentCredentials, token: JoinToken, addresses: Sequence[Address], connect: Connect
) -> str:
    """Ask all schedulers; returns why the host has not joined, or an empty text."""
    hashed = secret_hash(credentials.next_secret)
    return await ask(AgentJoin(token.secret, credentials.host_id, hashed), addresses, connect)


async def ask(message: AgentJoin | AgentRotation, addresses: Sequence[Address], connect: Connect) -> str:
    """Ask the schedulers in turn; returns what the last one that was asked says, empty when it has agreed."""
    problem = ""
    for address in addresses:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await _ask(message, address, connect)
        except Untrusted as error:
            problem = str(error)
            continue
        except (OSError, EOFError, TimeoutError, FrameTooLarge, msgspec.MsgspecError) as error:
            problem = f"the scheduler at {address} does not answer: {error or type(error).__name__}"
            continue
        if not answer.error:
            return ""
        problem = f"the scheduler at {address}: {answer.error}"
    return problem


async def _ask(message: AgentJoin | AgentRotation, address: Address, connect: Connect) -> JoinAnswer:
    reader, writer = await connect(address)
    try:
        writer.write(pack(msgspec.msgpack.encode(message)))
        return _answer.decode(await read_frame(reader, _MAX_ANSWER_BYTES))
    finally:
        writer.close()
