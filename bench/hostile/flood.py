"""Sends hostile bodies at a constant rate, each on a connection of its own; prints the statuses as JSON at the end.

A process of its own: its work must not delay the streams that are measured.
"""

import argparse
import asyncio
import itertools
import json
from collections import Counter

import uvloop

from bench.hostile.bodies import bodies, in_turn

_ANSWER_S = 30.0


async def send(port: int, key: str, body: bytes) -> str:
    """Send one body and return the status of the answer, or the reason for none."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    writer = None
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            writer.write(body)
            line = await reader.readline()
            return line.decode("latin-1").split(" ")[1] if line else "closed"
    except (OSError, TimeoutError) as error:
        return type(error).__name__
    finally:
        if writer is not None:
            writer.transport.abort()


async def flood(
    port: int, keys: list[str], model: str, *, size: int, rate: float, seconds: float
) -> dict[str, int]:
    """Send `rate` bodies a second for `seconds`; return the number of answers by body and status."""
    counts: Counter[str] = Counter()
    following, key_of = in_turn(bodies(model, size)), itertools.cycle(keys)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one() -> None:
        name, body = following()
        counts[f"{name}: {await send(port, next(key_of), body)}"] += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(int(rate * seconds)):
            tasks.create_task(one())
            await asyncio.sleep(max(0.0, start + (number + 1) / rate - loop.time()))
    return dict(sorted(counts.items()))


def main() -> None:
    """Flood, then print the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", action="append", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    counts = uvloop.run(
        flood(given.port, given.key, given.model, size=given.size, rate=given.rate, seconds=given.seconds)
    )
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
