"""Exit 0 when a URL answers 200, for container health checks: `python -m cli.probe http://127.0.0.1:9100/healthz`."""

import sys
import urllib.error
import urllib.request


def main(arguments: list[str]) -> int:
    """Request the only URL in `arguments`. Returns 0 when healthy, 1 when not, 2 for wrong arguments."""
    if len(arguments) != 1 or not arguments[0].startswith("http://"):
        print("usage: python -m cli.probe http://HOST:PORT/healthz", file=sys.stderr)
        return 2
    try:
        with urllib.request.urlopen(arguments[0], timeout=2.0) as answer:  # noqa: S310 - the scheme is checked above
            return 0 if answer.status == 200 else 1
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
