#!/usr/bin/env python3
"""Bake a snapshot of a prepared GPU host at DigitalOcean: `DIGITALOCEAN_TOKEN=... deploy/images/snapshot.py --help`.

Creates one droplet from the base image, whose first start fetches an archive of Penstock, runs deploy/images/prepare.sh
and switches the machine off; then snapshots the droplet and destroys it. The droplet carries a tag of its own, by which
it is destroyed in any case, also when a create that seemed to fail has made it. Only Python's standard library is used.
"""

import argparse
import json
import os
import secrets
import shlex
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

Call = Callable[[str, str, dict[str, Any] | None], dict[str, Any]]
"""Method, path and body of a call of the API; returns its answer. Raises Refused."""

USER_DATA = """#!/bin/bash
set -euo pipefail
exec > /var/log/penstock-image.log 2>&1
install -d /opt/penstock
curl --fail --silent --show-error --location --retry 5 --output /tmp/penstock.tar.gz {url}
echo {checksum}'  /tmp/penstock.tar.gz' | sha256sum --check
tar -C /opt/penstock -xzf /tmp/penstock.tar.gz
rm /tmp/penstock.tar.gz
bash /opt/penstock/deploy/images/prepare.sh {options} --seal
# Only a host that is prepared is switched off: the snapshot waits for that.
shutdown -h now
"""


SURE_S = 300.0
"""Seconds for which a droplet may still appear whose create had no clear answer."""


class Refused(Exception):
    """A call failed, or what was waited for did not happen; the message says what and why."""

    def __init__(self, message: str, status: int = 0, *, final: bool = False) -> None:
        """`status`: of HTTP, 0 = no answer. `final`: no further look will change it."""
        super().__init__(message)
        self.status, self.final = status, final


def api(token: str, url: str) -> Call:
    """Calls of DigitalOcean's API. None is repeated: a create that is sent twice makes two droplets."""

    def call(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the scheme is the operator's
            f"{url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
                return dict(json.loads(answer.read() or b"{}"))
        except urllib.error.HTTPError as error:
            raise Refused(
                f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:300]}"
            ) from None
        except (OSError, ValueError) as error:
            raise Refused(f"{method} {path}: {error}") from None

    return call


def bake(
    call: Call,
    options: argparse.Namespace,
    *,
    name: str,
    tell: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Make the snapshot `name`; returns its id. The droplet is destroyed whatever happens. Raises Refused."""
    began = now()

    def stage(title: str) -> None:
        tell(f"{now() - began:7.1f} s  {title}")

    def until(what: str, limit_s: float, look: Callable[[], int | None]) -> int:
        """The first answer of `look` that is not None; a look that fails is repeated."""
        end, last = now() + limit_s, ""
        while now() < end:
            try:
                if (found := look()) is not None:
                    return found
            except Refused as error:
                if error.final:
                    raise
                last = f" ({error})"
            pause(options.poll_s)
        raise Refused(f"{what} did not happen within {limit_s:.0f} s{last}")

    def switched_off() -> int | None:
        return droplet if call("GET", f"/v2/droplets/{droplet}", None)["droplet"]["status"] == "off" else None

    def snapshotted() -> int | None:
        status = call("GET", f"/v2/actions/{action}", None)["action"]["status"]
        if status == "errored":
            raise Refused(f"the snapshot failed: action {action}", final=True)
        return action if status == "completed" else None

    def destroyed() -> int | None:
        left = _tagged(call, name)
        for each in left:
            call("DELETE", f"/v2/droplets/{each}", None)
        return None if left or now() < sure_at else 0

    sure_at = 0.0
    try:
        try:
            droplet = int(call("POST", "/v2/droplets", _request(options, name))["droplet"]["id"])
        except Refused as error:
            if not 400 <= error.status < 500:
                sure_at = now() + SURE_S
            raise
        stage(f"droplet {droplet} is being created")
        until("the preparation", options.limit_s, switched_off)
        stage("prepared and switched off")
        asked = {"type": "snapshot", "name": name}
        action = int(call("POST", f"/v2/droplets/{droplet}/actions", asked)["action"]["id"])
        until("the snapshot", options.limit_s, snapshotted)
        made = call("GET", f"/v2/droplets/{droplet}/snapshots", None)["snapshots"]
        [snapshot] = [int(each["id"]) for each in made if each["name"] == name]
        stage(f"snapshot {snapshot}")
        return snapshot
    finally:
        until(f"the end of the droplets with the tag {name}", SURE_S + 600.0, destroyed)
        stage("no droplet is left")


def _request(options: argparse.Namespace, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "region": options.region,
        "size": options.size,
        "image": options.image,
        "tags": [name],
        "user_data": user_data(options),
        "ssh_keys": options.ssh_key,
    }


def _tagged(call: Call, tag: str) -> list[int]:
    """The droplets with the tag. GPU droplets are listed by their type alone, and not by a tag."""
    found = set()
    for query in (f"tag_name={tag}", "type=gpus"):
        page, full = 1, True
        while full:
            listed = call("GET", f"/v2/droplets?{query}&per_page=200&page={page}", None)["droplets"]
            found |= {int(each["id"]) for each in listed if tag in each["tags"]}
            page, full = page + 1, len(listed) == 200
    return sorted(found)


def user_data(options: argparse.Namespace) -> str:
    """The script of the droplet's first start."""
    weights = [word for name in options.weights for word in ("--weights", name)]
    return USER_DATA.format(
        url=shlex.quote(options.archive),
        checksum=options.sha256,
        options=shlex.join(["--engine", "gpu", *weights]),
    )


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 0, or 2 with one line when something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: snapshot.py --region nyc2 --size gpu-h100x1-80gb --archive https://... --sha256 ...",
    )
    parser.add_argument("--region", required=True)
    parser.add_argument(
        "--size", required=True, help="of the droplet that is prepared, such as gpu-h100x1-80gb"
    )
    parser.add_argument(
        "--image", default="gpu-h100x1-base", help="base image with the driver (gpu-h100x1-base)"
    )
    parser.add_argument("--archive", required=True, help="https address of a .tar.gz of a checkout")
    parser.add_argument("--sha256", required=True, help="its checksum")
    parser.add_argument(
        "--weights", action="append", default=[], help="model whose weights are baked in; repeatable"
    )
    parser.add_argument(
        "--ssh-key", action="append", default=[], help="id or fingerprint, to look when it fails"
    )
    parser.add_argument("--limit-s", type=float, default=3600.0, help="longest time of each stage (3600)")
    parser.add_argument("--poll-s", type=float, default=10.0, help="seconds between two looks (10)")
    parser.add_argument("--url", default="https://api.digitalocean.com", help="base URL of the API")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    token = os.environ.get("DIGITALOCEAN_TOKEN", "")
    if not token:
        print("snapshot.py: DIGITALOCEAN_TOKEN is not set", file=sys.stderr)
        return 2
    name = f"penstock-image-{secrets.token_hex(4)}"
    try:
        made = bake(
            api(token, options.url),
            options,
            name=name,
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except Refused as error:
        print(f"snapshot.py: {error}", file=sys.stderr)
        return 2
    print(
        json.dumps({"snapshot": made, "name": name})
        if options.json
        else f"PENSTOCK_DIGITALOCEAN_IMAGE={made}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
