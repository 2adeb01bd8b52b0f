"""The user data of a host: the operator's own script, and ours (deploy/cloud-init/host.sh), with which it joins."""

import re
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

import msgspec

from core.errors import InvalidRequest

TEMPLATE = Path(__file__).resolve().parents[2] / "deploy" / "cloud-init" / "host.sh"
_NAMED = re.compile(r"@([a-z_]+)@")
_SAFE = re.compile(r"[A-Za-z0-9._:,/\[\]@+-]*")
"""What may stand in a value, which a shell and systemd read alike."""

_KINDS = {
    "#!": "x-shellscript",
    "#cloud-config-archive": "cloud-config-archive",
    "#cloud-config": "cloud-config",
    "#cloud-boothook": "cloud-boothook",
    "#include-once": "x-include-once-url",
    "#include": "x-include-url",
    "#part-handler": "part-handler",
    "## template: jinja": "jinja2",
}
"""Subtypes of text/ by the beginning of the content, as cloud-init tells them apart; a longer one stands first.
https://docs.cloud-init.io/en/latest/explanation/format/index.html"""


class FirstBoot(msgspec.Struct, frozen=True):
    """What a host is told at its first start."""

    join_token: str
    schedulers: str
    """Addresses of the schedulers, as the host reaches them."""
    region: str
    kind: str
    """Kind of host, where the catalog has it; empty = found by the GPUs."""
    model: str
    """Model to serve; empty = the default."""
    profile: str = ""
    """Profile of the model; empty = one that fits."""
    replicas: str = "0"
    """How many; 0 = as many as its GPUs hold."""


def script(boot: FirstBoot) -> str:
    """Our script with these values. Raises InvalidRequest for a value that a shell would read otherwise."""
    values = msgspec.structs.asdict(boot)
    for name, value in values.items():
        if not _SAFE.fullmatch(value):
            raise InvalidRequest(
                f"{name} of a host is {value!r}; it has characters that no shell script takes"
            )
    return _NAMED.sub(lambda found: values[found[1]], TEMPLATE.read_text())


def user_data(own: str, boot: FirstBoot | None) -> str:
    """User data from the operator's own script or cloud-config, which may be empty, and ours, which runs after it.

    Raises InvalidRequest for what cloud-init would take for a kind that cannot be a part.
    """
    if boot is None:
        return own
    ours = script(boot)
    if not own:
        return ours
    parts = MIMEMultipart(boundary="penstock-user-data")
    for number, (subtype, content) in enumerate(((_kind(own), own), ("x-shellscript", ours))):
        part = MIMEText(content, subtype, "us-ascii" if content.isascii() else "utf-8")
        part.add_header("Content-Disposition", "attachment", filename=f"part-{number}")
        parts.attach(part)
    return parts.as_string()


def _kind(own: str) -> str:
    """What cloud-init takes an operator's user data for."""
    for begin, kind in _KINDS.items():
        if own.startswith(begin):
            return kind
    raise InvalidRequest(
        f"user data begins with {own[:20]!r}; it must begin with one of {', '.join(_KINDS)}, because Penstock "
        "adds a part"
    )
