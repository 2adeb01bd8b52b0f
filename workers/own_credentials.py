"""What lets an agent report as its host: a secret of its own that a join token made hold, else the internal token.

The secret and the key of the host's engines are made here and kept in the data directory, readable by its owner alone.
The secret is written before it is used, so that an agent that is cut off while it joins can ask again.
"""

import logging

import msgspec

from core.errors import InvalidRequest
from core.private_tls import fingerprint
from core.settings import Settings
from core.whole_file import replace_file
from workers.join_token import JoinToken, new_secret, parse_token, secret_hash

TOKEN_FILE = "join-token"  # noqa: S105 - a file's name
"""File of the data directory with a join token, which is removed when it was used."""
_FILE = "host-credentials.json"

log = logging.getLogger(__name__)


class OwnSecret(msgspec.Struct, frozen=True):
    """The content of the file."""

    secret: str
    engine_key: str
    token_hash: bytes
    """Of the join token that it is for: a new token gets a new secret."""
    joined: bool = False
    authority: bytes = b""
    """Certificate of the authority that the host trusts, in PEM; empty = it has asked for none yet."""
    next_secret: str = ""
    """One that is to take the place of `secret`, and does not hold yet as far as the host knows; empty = none."""
    next_token_hash: bytes = b""
    """Of the join token that `next_secret` is for; empty = an admin has asked for it."""


class AgentCredentials:
    """How an agent shows who it is. `token` is the internal token where the host has no secret of its own."""

    def __init__(self, settings: Settings, host_id: str) -> None:
        """Raises InvalidRequest when a file or token cannot be read."""
        self.host_id = host_id
        self._directory = settings.data_dir
        self._shared = settings.internal_token.get_secret_value()
        self._engine_key = settings.engine_key.get_secret_value()
        self._own = self._load()
        given = _given_token(settings)
        self.join_token: JoinToken | None = None
        """The token that is still to be used."""
        if given is not None:
            self._prepare_join(given)
        if self._own is not None and not self._own.joined:
            if given is None:
                raise InvalidRequest(
                    f"{self._directory / _FILE} is of a host that has not joined, and its join token is gone: "
                    "`penstock hosts invite` prints another, for the setting PENSTOCK_JOIN_TOKEN"
                )
            self.join_token = given

    def _prepare_join(self, given: JoinToken) -> None:
        """Make the secret that a token is for. One that holds goes on being used until the host has joined with it."""
        own = self._own
        if own is None or (not own.joined and own.token_hash != given.hash):
            keys = own or OwnSecret("", new_secret(), b"")
            self._own = msgspec.structs.replace(
                keys, secret=new_secret(), token_hash=given.hash, authority=b"", next_secret=""
            )
            self._save()
        elif own.joined and own.token_hash != given.hash:
            if not own.next_secret or own.next_token_hash != given.hash:
                own = msgspec.structs.replace(own, next_secret=new_secret(), next_token_hash=given.hash)
            self.join_token, self._own = given, own
            self._save()
            if not own.authority or given.authority != fingerprint(own.authority):
                self._own = msgspec.structs.replace(own, authority=b"")  # not on the disk before it is proved

    @property
    def reports(self) -> bool:
        """Whether the host may report already: it needs no join token, or has another secret that did hold."""
        return self.join_token is None or (self._own is not None and self._own.joined)

    @property
    def rotates(self) -> bool:
        """Whether a secret that an admin has asked for waits to be told to a scheduler."""
        return self._own is not None and bool(self._own.next_secret) and not self._own.next_token_hash

    @property
    def next_secret(self) -> str:
        """The secret for which the join token, or the right to another secret, is to be used."""
        return self._own.next_secret or self._own.secret if self._own is not None else ""

    @property
    def joined(self) -> bool:
        """Whether the host has a secret of its own."""
        return self._own is not None

    @property
    def token(self) -> str:
        """What its hello carries."""
        return self._own.secret if self._own is not None else self._shared

    @property
    def engine_key(self) -> str:
        """What engines require of API processes: as set, else made here where the host has a secret of its own."""
        return self._engine_key or (self._own.engine_key if self._own is not None else "")

    @property
    def keys_mark(self) -> str:
        """A hash by which an agent knows engines that it started with the same keys."""
        return secret_hash(f"{self.engine_key} {self.joined}").hex()[:16]

    @property
    def stated_engine_key(self) -> str:
        """The engine key as the scheduler is told; empty = the one of the whole platform."""
        return self.engine_key if self.joined else ""

    @property
    def authority(self) -> bytes:
        """Certificate of the authority that the host trusts, in PEM; empty = none yet."""
        return self._own.authority if self._own is not None else b""

    def trust(self, authority: bytes) -> None:
        """Keep the certificate of the authority whose fingerprint the join token has."""
        if self._own is None:
            raise RuntimeError("this host has no secret to join with")
        self._own = msgspec.structs.replace(self._own, authority=authority)
        self._save()

    def on_joined(self) -> None:
        """The secret holds: keep that, and remove the file of the token."""
        if self._own is None:
            raise RuntimeError("this host has no secret to join with")
        used = self.join_token.hash if self.join_token is not None else self._own.token_hash
        self._own = msgspec.structs.replace(
            self._own,
            secret=self.next_secret,
            token_hash=used,
            joined=True,
            next_secret="",
            next_token_hash=b"",
        )
        self._save()
        self.join_token = None
        (self._directory / TOKEN_FILE).unlink(missing_ok=True)

    def make_next(self) -> None:
        """Make the secret that an admin has asked for, unless there is one already that waits."""
        if self._own is None:
            raise RuntimeError("this host has no secret that could be replaced")
        if not self._own.next_secret:
            self._own = msgspec.structs.replace(self._own, next_secret=new_secret())
            self._save()

    def on_rotated(self) -> None:
        """The next secret holds: use that."""
        if self._own is None:
            raise RuntimeError("this host has no secret that could be replaced")
        self._own = msgspec.structs.replace(self._own, secret=self.next_secret, next_secret="")
        self._save()

    def _load(self) -> OwnSecret | None:
        path = self._directory / _FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=OwnSecret)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise InvalidRequest(
                f"{path} cannot be read: {error}; remove it and invite the host again"
            ) from None

    def _save(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        replace_file(self._directory / _FILE, msgspec.json.encode(self._own), mode=0o600)


def may_show_itself(settings: Settings) -> bool:
    """Whether there is anything with which an agent can show who it is."""
    files = (settings.data_dir / name for name in (TOKEN_FILE, _FILE))
    tokens = (settings.internal_token, settings.join_token)
    return any(token.get_secret_value() for token in tokens) or any(path.exists() for path in files)


def _given_token(settings: Settings) -> JoinToken | None:
    """The join token of the setting, else of the file."""
    if text := settings.join_token.get_secret_value():
        return parse_token(text, "PENSTOCK_JOIN_TOKEN")
    path = settings.data_dir / TOKEN_FILE
    try:
        return parse_token(path.read_text().strip(), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
