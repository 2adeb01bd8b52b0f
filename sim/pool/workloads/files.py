"""Reads external files, plain or gzip, line by line, with limits on bytes, lines and line length."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from core.errors import InvalidRequest

MAX_FILE_BYTES = 512 << 20
"""Maximum size of a file in bytes after decompression."""
MAX_LINE_BYTES = 1 << 20
"""Maximum length of a line in bytes."""
MAX_ROWS = 2_000_000
"""Maximum number of rows in a file."""
MAX_TOKENS = 4_000_000
"""Maximum tokens of one request's prompt or answer."""


def refuse(path: Path, line: int, why: str) -> InvalidRequest:
    """Return the error for a line that cannot be parsed."""
    return InvalidRequest(f"{path.name}, line {line}: {why}")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without their line ends; empty lines are omitted.

    Raises InvalidRequest for a file that cannot be read, is not UTF-8 or is too large.
    """
    size, rows = 0, 0
    try:
        with gzip.open(path) if _is_gzip(path) else path.open("rb") as file:
            for number in range(1, MAX_ROWS * 2):
                raw = file.readline(MAX_LINE_BYTES + 1)
                if not raw:
                    return
                size += len(raw)
                if len(raw) > MAX_LINE_BYTES:
                    raise refuse(path, number, f"longer than {MAX_LINE_BYTES:,} bytes")
                if size > MAX_FILE_BYTES:
                    raise refuse(path, number, f"the file is larger than {MAX_FILE_BYTES:,} bytes")
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    rows += 1
                    if rows > MAX_ROWS:
                        raise refuse(path, number, f"more than {MAX_ROWS:,} rows")
                    yield number, text
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path.name} is not UTF-8 text") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidRequest(f"{path.name} is damaged: {error}") from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None


def tokens(path: Path, line: int, column: str, value: object) -> int:
    """Return a token count, given as a whole number. Raises InvalidRequest for any other value."""
    try:
        count = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else -1
    except ValueError:
        count = -1
    if not 0 <= count <= MAX_TOKENS:
        raise refuse(path, line, f"{column} is {value!r}, not a count of tokens up to {MAX_TOKENS:,}")
    return count


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"
