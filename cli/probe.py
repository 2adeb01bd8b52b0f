"""Health checks of containers: `python -m cli.probe [--alive] http://127.0.0.1:9100/healthz`.

Exits with 0 when the URL answers 200. With `--alive` an answer 503 is a good one, too, unless it says that a loop of
the process stands still: what an unhealthy process lacks, such as its database, no restart brings back.
"""

import json
import sys
import urllib.error
import urllib.request


def main(arguments: list[str]) -> int:
    """Request the URL in `arguments`. Returns 0 when healthy, 1 when not, 2 for wrong arguments."""
    alive = arguments[:1] == ["--alive"]
    urls = arguments[1:] if alive else arguments
    if len(urls) != 1 or not urls[0].startswith("http://"):
        print("usage: python -m cli.probe [--alive] http://HOST:PORT/healthz", file=sys.stderr)
        return 2
    try:
        with urllib.request.urlopen(urls[0], timeout=2.0) as answer:  # noqa: S310 - the scheme is checked above
            return 0 if answer.status == 200 else 1
    except urllib.error.HTTPError as error:
        if alive and not _stalled(error.read()):
            return 0
        print(f"{urls[0]}: {error}", file=sys.stderr)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        print(f"{urls[0]}: {error}", file=sys.stderr)
    return 1


def _stalled(body: bytes) -> bool:
    """Whether a body of /healthz says what `core.telemetry.MetricsServer` says of work that hangs."""
    try:
        health = json.loads(body)
    except ValueError:
        return False
    return isinstance(health, dict) and health.get("status") == "stalled"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
