"""Where an engine publishes its KV events: Unix sockets that only this user can open.

Events carry the token ids of prompts and ZMQ asks nobody who they are, so they do not belong on a network. vLLM
binds `tcp://*:port` to every address of the host and takes `tcp://127.0.0.1:port` as somewhere to connect to; an
`ipc://` endpoint it binds, and the directory's mode keeps others out.
"""

import os
import tempfile
from hashlib import blake2b
from pathlib import Path

import msgspec

from core.errors import Unavailable

_LONGEST = 100
"""Unix socket paths end at about 104 bytes."""


class KvEndpoints(msgspec.Struct, frozen=True):
    """ZMQ addresses of one engine's event publisher."""

    events: str
    replay: str


def kv_endpoints(data_dir: Path, replica_id: str) -> KvEndpoints:
    """The endpoints of a replica: the same ones after a restart of the agent, which adopts running engines."""
    base = str(_directory(data_dir.resolve()) / _short(replica_id))
    return KvEndpoints(f"ipc://{base}.pub", f"ipc://{base}.replay")


def make_directory(data_dir: Path) -> None:
    """Have the sockets' directory, private. Raises Unavailable when it belongs to somebody else."""
    directory = _directory(data_dir.resolve())
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = directory.lstat()
    if directory.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise Unavailable(f"{directory} must be a directory of mode 700 of the user who runs the agent")


def _directory(data_dir: Path) -> Path:
    near = data_dir / "kv"
    if len(str(near)) + len("/12345678.replay") <= _LONGEST:
        return near
    return Path(tempfile.gettempdir()) / f"penstock-kv-{os.getuid()}-{_short(str(data_dir))}"


def _short(name: str) -> str:
    return blake2b(name.encode(), digest_size=4).hexdigest()
