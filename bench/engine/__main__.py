"""`python -m bench.engine`: measure the real vLLM on this machine's CPU, for `penstock sim validate`.

Starts penstock/tiny in the engine's own environment, sends loads of known lengths one after the other and writes
every request's times. Needs `make engine`.
"""

import argparse
import asyncio
import os
import platform
import random
import signal
import socket
import subprocess
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import psutil
from rich.progress import Progress, TimeElapsedColumn

from bench.engine.load import Shape, run_load
from sim.pool.validation.measured import Measurement
from workers.catalog import load_catalog
from workers.engine_command import CHECKOUT, cpu_environment, tiny_directory

MODEL = "penstock/tiny"
VOCABULARY = 4096
LOADS = (
    Shape("light", 2.0, 40.0, (64, 600), (32, 160)),
    Shape("half", 7.0, 40.0, (64, 600), (32, 160)),
    Shape("near the knee", 11.0, 40.0, (64, 600), (32, 160)),
    Shape("long prompts, short answers", 9.0, 30.0, (900, 1900), (4, 16)),
    Shape("short prompts, long answers", 4.0, 40.0, (16, 64), (200, 400)),
    Shape("shared prefixes", 9.0, 30.0, (32, 200), (32, 96), prefixes=4, prefix_tokens=1024),
)


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def healthy(url: str, engine: subprocess.Popen[bytes]) -> None:
    """Wait until the engine is healthy. Raises RuntimeError when it exits instead."""
    async with aiohttp.ClientSession() as session:
        while True:
            if engine.poll() is not None:
                raise RuntimeError(f"the engine ended with {engine.returncode}")
            try:
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)


async def measure(url: str, engine: subprocess.Popen[bytes], seed: int) -> Measurement:
    """Run all loads after a warm-up, and return their measurement."""
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn()) as progress:
        starting = progress.add_task("starting the engine", total=None)
        await healthy(url, engine)
        progress.remove_task(starting)
        rng = random.Random(seed)
        await run_load(
            url, MODEL, Shape("warm-up", 8.0, 5.0, (64, 600), (8, 64)), rng, VOCABULARY, tick=lambda: None
        )
        loads = []
        for shape in LOADS:
            tick = partial(progress.advance, progress.add_task(shape.name, total=shape.rate * shape.seconds))
            loads.append(await run_load(url, MODEL, shape, rng, VOCABULARY, tick=tick))
    profile = load_catalog().models[MODEL].profile("")
    return Measurement(
        engine="vLLM 0.32.0 on CPU",
        model=MODEL,
        machine=f"{psutil.cpu_count()} x {platform.machine()}",
        date=datetime.now(UTC).date().isoformat(),
        max_num_seqs=profile.capacity.max_num_seqs,
        max_batched_tokens=profile.capacity.max_batched_tokens,
        block_size=profile.block_size,
        kv_blocks=profile.capacity.kv_cache_tokens // profile.block_size,
        max_model_len=profile.capacity.max_model_len,
        loads=loads,
    )


def start(engine_env: Path, port: int, scratch: Path) -> subprocess.Popen[bytes]:
    """Start penstock/tiny on this port as the platform does. Raises RuntimeError when the model cannot be created."""
    python = engine_env / "bin" / "python"
    catalog = load_catalog()
    model = catalog.models[MODEL]
    directory = tiny_directory(scratch)
    made = subprocess.run([python, CHECKOUT / "workers" / "tiny_model.py", directory], check=False)
    if made.returncode:
        raise RuntimeError("the tiny model could not be made; is the engine installed (`make engine`)?")
    line = model.profile("").command_line(model, port, weights=str(directory))
    argv = [str(python), "-m", "vllm.entrypoints.cli.main", *line[1:]]
    environment = {**os.environ, **cpu_environment(model.profile("").env)}
    log = (scratch / "engine.log").open("wb")
    return subprocess.Popen(argv, env=environment, stdout=log, stderr=log)


def main() -> None:
    """Parse the command line, start the engine, measure and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: python -m bench.engine --out engine-cpu.json"
    )
    parser.add_argument("--out", type=Path, required=True, help="where the measurement goes (JSON)")
    parser.add_argument(
        "--engine-env", type=Path, default=CHECKOUT / ".engine", help="the engine's environment"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch:
        engine = start(options.engine_env, port, Path(scratch))
        try:
            measurement = asyncio.run(measure(f"http://127.0.0.1:{port}", engine, options.seed))
        finally:
            engine.send_signal(signal.SIGTERM)
            engine.wait(60)
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(measurement), indent=0))
    print(f"{sum(len(load.requests) for load in measurement.loads)} requests measured -> {options.out}")


if __name__ == "__main__":
    main()
