"""The data directory of `penstock up`: its lock, its secrets, and runtime.json for other commands."""

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from core.directory_lock import DirectoryLock
from core.embedded import write_private
from core.errors import Conflict, InvalidRequest
from core.process_identity import runs

LEFT_S = 30.0
"""Seconds that the roles of a killed supervisor may take to end; they need ORPHANED_S of core/exit_deadline.py."""
_POLL_S = 0.1


class Secrets(msgspec.Struct, kw_only=True):
    """Secrets of a data directory, kept in a 0600 file. Losing `key_pepper` invalidates all API keys."""

    internal_token: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    key_pepper: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    engine_key: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    console_secret: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    stripe_sim_key: str = msgspec.field(default_factory=lambda: f"sk_test_{secrets.token_hex(16)}")
    stripe_sim_webhook_secret: str = msgspec.field(default_factory=lambda: f"whsec_{secrets.token_hex(16)}")
    admin_email: str = "admin@penstock.local"
    admin_password: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(12))
    admin_token: str = ""
    demo_api_key: str = ""
    """The demo organisation's API key, for the panel of later starts. The database stores keys only as HMACs."""


class RunDir:
    """Paths of a data directory, which one supervisor at a time may lock."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir.resolve()
        self.logs = self.path / "logs"
        self._lock = DirectoryLock(self.path / "lock")

    @property
    def lock_descriptor(self) -> int:
        """What the roles inherit, so that the directory stays locked until the last of them has ended; -1 = none."""
        return self._lock.descriptor

    def acquire(self, tell: Callable[[str], None] = lambda text: None) -> None:
        """Create the directory and take its lock.

        When the supervisor before this one was killed, its roles may be ending still: they are waited for, because
        they use the same ports and files, and `tell` says so. Raises Conflict when another supervisor holds the lock,
        or what one has left does not end within LEFT_S; InvalidRequest when the directory is not writable.
        """
        deadline, told = time.monotonic() + LEFT_S, False
        while not self._try_acquire():
            holder = self._lock.holder()
            if holder is None or runs(holder.process):
                pid = holder.process.pid if holder is not None else "of an earlier version"
                raise Conflict(
                    f"another `penstock up` (process {pid}) runs on {self.path}; stop it or give another --data-dir"
                )
            left = ", ".join(map(str, self._lock.open_in()))
            if time.monotonic() >= deadline:
                raise Conflict(
                    f"processes of a killed `penstock up` on {self.path} do not end: {left}; end them by hand"
                )
            if not told:
                tell(f"waiting for the end of what a killed `penstock up` has left here (processes {left})")
                told = True
            time.sleep(_POLL_S)

    def _try_acquire(self) -> bool:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            return self._lock.acquire()
        except OSError as error:
            raise InvalidRequest(f"the data directory {self.path} cannot be used: {error.strerror}") from None

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    @property
    def restoring(self) -> Path:
        """The file that exists while a restore makes the directory."""
        return self.path / "restoring"

    def load_secrets(self) -> Secrets:
        """Read the secrets, which the first start creates. Raises InvalidRequest when the file is damaged, or a restore
        of the directory has not ended."""
        if self.restoring.exists():
            raise InvalidRequest(
                f"a restore of {self.path} has not ended; remove the directory and `penstock restore` again"
            )
        path = self.path / "secrets.json"
        if not path.exists():
            made = Secrets()
            self.save_secrets(made)
            return made
        try:
            return msgspec.json.decode(path.read_bytes(), type=Secrets)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(
                f"{path} is damaged ({error}); restore it: without it no API key is valid"
            ) from None

    def save_secrets(self, value: Secrets) -> None:
        """Write `value` to the secrets file."""
        write_private(
            self.path / "secrets.json", msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"
        )

    def publish(self, info: dict[str, Any], ready_file: Path | None) -> None:
        """Write `info` to runtime.json, and without _INTERNAL to `ready_file`; both atomically with mode 0600."""
        text = json.dumps(info, indent=2) + "\n"
        write_private(self.path / "runtime.json", text)
        if ready_file is not None:
            shown = {name: value for name, value in info.items() if name not in _INTERNAL}
            write_private(ready_file, json.dumps(shown, indent=2) + "\n")

    def unpublish(self) -> None:
        """Remove runtime.json after the stop."""
        (self.path / "runtime.json").unlink(missing_ok=True)


_INTERNAL = frozenset({"schedulers", "internal_token", "key_pepper", "stripe_webhook_secret"})
"""Entries of runtime.json that `ready_file` does not contain."""
