"""Starts what is measured: mock engine, the two pass-throughs, whole platforms, and other gateways where installed."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.gateway.load import Client, Target
from bench.gateway.load_process import end_process
from bench.gateway.mock_engine import MODEL
from bench.gateway.peers import PEERS, Peer
from bench.provenance import commit_of
from bench.stack import ROOT, Stack, up_knows
from core.child import free_port

MAX_NUM_SEQS = 4096
"""Sequences that the platform may send to the mock engine at the same time."""
FLOORS: dict[str, tuple[str, ...]] = {"splice": (), "splice-metered": ("--meter",)}
"""Targets that show the least a process in Python can do, and their flags."""
ASKING = "splice-asking"
"""The target that shows the least that a metered request waits for."""
_ANSWER_TIMEOUT_S = 120.0


@dataclass
class Cores:
    """Processors of the gateways and of everything else; () = all of them."""

    gateways: Sequence[int]
    others: Sequence[int]

    @classmethod
    def chosen(cls, gateways: str) -> "Cores":
        """Return the processors for a list such as "0,1"; "" pins nothing."""
        if not gateways:
            return cls((), ())
        mine = sorted({int(each) for each in gateways.split(",")})
        return cls(mine, sorted(os.sched_getaffinity(0) - set(mine)) or mine)


@dataclass
class Rig:
    """Everything that runs, and ends with `stack`."""

    cores: Cores
    stack: ExitStack
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines about versions, and what is missing."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Started processes by the name of their log."""

    def __post_init__(self) -> None:
        self.scratch = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateway-")))
        self.scratch.chmod(0o755)

    def spawn(
        self, argv: Sequence[str], *, cores: Sequence[int], log: str, env: dict[str, str] | None = None
    ) -> int:
        """Start a process on these processors; return its id."""
        if cores:
            argv = ["taskset", "-c", ",".join(map(str, cores)), *argv]
        with (self.scratch / log).open("wb") as output:
            process = subprocess.Popen(
                argv, cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})}, start_new_session=True,
            )  # fmt: skip
        self.stack.callback(end_process, process)
        self.processes[log] = process
        return process.pid

    def start_engine(self) -> Target:
        """Start the mock engine, the target `direct`."""
        port = free_port()
        argv = [sys.executable, "-m", "bench.gateway.mock_engine", "--port", str(port)]
        pid = self.spawn(argv, cores=self.cores.others, log="engine.log")
        return self._add(Target("direct", port, MODEL, groups={"engine": (pid, True)}))

    def start_bare(self, engine: Target) -> None:
        """Start the pass-through, the target `bare`."""
        port = free_port()
        argv = [
            sys.executable,
            "-m",
            "bench.gateway.passthrough",
            "--port",
            str(port),
            "--engine",
            url(engine),
        ]
        pid = self.spawn(argv, cores=self.cores.gateways, log="bare.log")
        self._add(Target("bare", port, MODEL, groups={"bare": (pid, True)}))

    def start_floors(self, engine: Target) -> None:
        """Start the process that only reads and writes, and the one that also counts: FLOORS."""
        for name, flags in FLOORS.items():
            self._start_splice(name, engine, *flags)

    def start_asking(self, engine: Target, platform: Stack) -> None:
        """Start the process that asks the servers of a platform before it passes a request on: ASKING."""
        ready = platform.ready
        self._start_splice(ASKING, engine, "--meter", "--ask", ready["redis_url"], ready["database_url"])

    def _start_splice(self, name: str, engine: Target, *flags: str) -> None:
        port = free_port()
        argv = [sys.executable, "-m", "bench.gateway.splice", "--port", str(port)]
        argv += ["--engine", str(engine.port), *flags]
        pid = self.spawn(argv, cores=self.cores.gateways, log=f"{name}.log")
        self._add(Target(name, port, MODEL, groups={name: (pid, True)}))

    def start_platform(self, name: str, repo: Path, engine: Target) -> Stack:
        """Start `penstock up` of a checkout with a tenant. Raises RuntimeError when it does not start."""
        flags = ["--engine", "external", "--engine-url", url(engine)]
        if up_knows(repo, "--max-num-seqs"):
            flags += ["--max-num-seqs", str(MAX_NUM_SEQS)]
        else:
            self.notes.append(
                f"{name}: this checkout has no --max-num-seqs; above 256 streams it is not measured"
            )
        stack = Stack(repo, self.scratch / name, *flags, cores=self.cores.gateways)
        self.stack.callback(stack.stop)
        stack.start()
        self._add(Target(name, stack.port, MODEL, key=stack.make_tenant(), groups=dict(stack.groups)))
        self.notes.append(f"{name}: commit {commit_of(repo)}")
        return stack

    def start_peer(self, peer: Peer, program: Path, engine: Target) -> None:
        """Start another gateway."""
        port = free_port()
        argv = peer.command(str(program), port, url(engine), self.scratch)
        pid = self.spawn(argv, cores=self.cores.gateways, log=f"{peer.name}.log", env=peer.env)
        self._add(
            Target(peer.name, port, peer.model, key=peer.key, path=peer.path, groups={peer.name: (pid, True)})
        )

    def start_peers(self, folders: Sequence[Path], engine: Target, only: Sequence[str] | None) -> None:
        """Start every known gateway whose program is in one of the folders, and note those that are not."""
        for peer in (peer for peer in PEERS if not only or peer.name in only):
            found = [folder / peer.program for folder in folders if (folder / peer.program).exists()]
            if found:
                self.start_peer(peer, found[0], engine)
                self.notes.append(f"{peer.name}: {_version(found[0])}")
            else:
                self.notes.append(f"{peer.name}: skipped, no program {peer.program} in --peers-bin")

    async def ready(self) -> None:
        """Wait until every target answers; one that does not is dropped with a note, unless it is ours."""
        for target in list(self.targets):
            try:
                await _answers(target, self.processes.get(f"{target.name}.log"))
            except RuntimeError as error:
                if "api" in target.groups or target.name in ("direct", "bare", ASKING, *FLOORS):
                    raise
                self.targets.remove(target)
                log = (self.scratch / f"{target.name}.log").read_text(errors="replace")[-300:]
                self.notes.append(f"{target.name}: skipped, {error} {log}")

    def _add(self, target: Target) -> Target:
        self.targets.append(target)
        return target


def url(target: Target) -> str:
    """Return the base URL of a target."""
    return f"http://127.0.0.1:{target.port}"


def _version(program: Path) -> str:
    """Return the version of the distribution that a script belongs to; "" when its environment does not tell."""
    code = f"from importlib.metadata import version; print(version({program.name!r}))"
    python = program.parent / "python"
    if not python.exists():
        return ""
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


async def _answers(target: Target, process: subprocess.Popen[bytes] | None) -> None:
    """Wait until a target answers with success. Raises RuntimeError when it ends or does not in time."""
    client = Client(target)
    raw = client.raw(max_tokens=1)
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while True:
        try:
            client.idle.append(await asyncio.wait_for(client.ask(raw), 10))
            client.close()
            return
        except (OSError, RuntimeError, TimeoutError) as error:
            if time.monotonic() > deadline or (process is not None and process.poll() is not None):
                raise RuntimeError(f"{target.name} does not answer: {error}") from error
            await asyncio.sleep(0.3)
