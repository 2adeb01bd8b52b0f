"""Logs: one JSON object per line on stderr. Prompts are never logged; API keys in a message are masked."""

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

_SECRETS = re.compile(
    r"pen_(?:live|test|admin)_[A-Za-z0-9]+"  # API keys and admin tokens
    r"|(?<=[Bb]earer )[^\s\"']+"
    r"|(?<=://)[^\s/@]*:[^\s/@]+(?=@)"  # user:password of a URL
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_MAX_CHARS = 8_000


def mask_secrets(text: str) -> str:
    """`text` with every API key, bearer token and URL password replaced by ***."""
    return _SECRETS.sub("***", text)


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON line; fields of `extra` become members of the object."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """The line without its newline; strings are masked and limited to 8,000 characters."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "role": self._role,
            "pid": record.process,
            "logger": record.name,
            "message": _clip(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line[name] = value if isinstance(value, bool | int | float | None) else _clip(str(value))
        if record.exc_info:
            line["error"] = _clip(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()


def _clip(text: str) -> str:
    """`text` masked and cut to _MAX_CHARS; lone surrogates, which JSON cannot hold, become question marks."""
    clipped = text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}... ({len(text)} characters)"
    return mask_secrets(clipped.encode("utf-8", "replace").decode())


def setup_logging(role: str, level: str) -> None:
    """Send all logs of this process to stderr as JSON lines; an entry point calls it once.

    `level` is a name of the logging module, in any case. Raises ValueError for another one.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "celery", "nicegui"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.access").setLevel(
        logging.WARNING
    )  # one line per request is the usage row's task
    logging.captureWarnings(True)
