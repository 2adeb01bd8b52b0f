"""The endpoints of an engine's KV events: Unix sockets that only this user can open.

With ranks (workers/ranks.py) vLLM makes the endpoint of each from that of the first: it adds the rank to the number
behind the last colon unless that is 0, and refuses endpoints without `tcp` in them. So the sockets' names end with
`.tcp:1`, which is part of a path here.

Events hold the token ids of prompts and ZMQ does not authenticate, so they must not be on a network. vLLM binds
`tcp://*:port` to every address of the host and connects to `tcp://127.0.0.1:port` instead of binding it. It binds
`ipc://` endpoints, which the mode of their directory protects.
"""

import os
import tempfile
from hashlib import blake2b
from pathlib import Path

import msgspec

from core.errors import Unavailable

_MAX_PATH_BYTES = 100
"""Longest path of a socket; the limit of Unix sockets is about 104 bytes."""


class KvEndpoints(msgspec.Struct, frozen=True):
    """ZMQ addresses of one engine's event publisher and of its replay socket."""

    events: str
    replay: str

    def of_rank(self, rank: int) -> "KvEndpoints":
        """The endpoints of a rank, where these are those of the first. Raises ValueError when they end with no
        number."""
        return KvEndpoints(_offset(self.events, rank), _offset(self.replay, rank)) if rank else self


def kv_endpoints(data_dir: Path, replica_id: str, ranks: int = 1) -> KvEndpoints:
    """The endpoints of a replica, the same after a restart of the agent, which adopts running engines.

    Without ranks the names have no number: an engine that an earlier version started is adopted, too.
    """
    base, ending = str(_directory(data_dir.resolve()) / _digest(replica_id)), ".tcp:1" if ranks > 1 else ""
    return KvEndpoints(f"ipc://{base}.pub{ending}", f"ipc://{base}.replay{ending}")


def _offset(endpoint: str, rank: int) -> str:
    """An endpoint with the rank added to its last number; an empty one stays empty."""
    base, _, number = endpoint.rpartition(":")
    return f"{base}:{int(number) + rank}" if endpoint else ""


def make_directory(data_dir: Path) -> None:
    """Create the sockets' directory with mode 0700. Raises Unavailable unless it is this user's and private."""
    directory = _directory(data_dir.resolve())
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = directory.lstat()
    if directory.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise Unavailable(f"{directory} must be a directory of mode 700 of the user who runs the agent")


def _directory(data_dir: Path) -> Path:
    near = data_dir / "kv"
    if len(str(near)) + len("/12345678.replay.tcp:4096") <= _MAX_PATH_BYTES:
        return near
    return Path(tempfile.gettempdir()) / f"penstock-kv-{os.getuid()}-{_digest(str(data_dir))}"


def _digest(name: str) -> str:
    return blake2b(name.encode(), digest_size=4).hexdigest()
