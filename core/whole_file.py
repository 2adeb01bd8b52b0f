"""Writes a file whole or not at all, through a crash of the machine as well."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace `path` atomically with `content`, synced to disk; `mode` is that of a new file, less the umask."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
