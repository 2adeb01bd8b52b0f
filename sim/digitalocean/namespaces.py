"""Droplets of the fake as network namespaces of this machine, on one bridge, each with its metadata service.

What a droplet runs is its user data's real script, which starts a real agent. Needs root and `ip netns`.
"""

# ruff: noqa: S603, S607 - `ip`, with names that this module makes, and the user data, whose purpose is to run
import email
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

from sim.digitalocean.metadata import ADDRESS

_ROOT = Path(__file__).resolve().parents[2]


class NoNamespaces(Exception):
    """This machine or kernel does not allow them; the text says what was refused."""


class TakenAddresses(Exception):
    """Another device of this machine has the addresses; the text says which, and how to remove it."""


class NamespaceNetwork:
    """A private network of namespaces. This machine has its first address."""

    def __init__(self, name: str, network: IPv4Network) -> None:
        """`name` begins those of the bridge and the namespaces, at most eight characters."""
        self.bridge = name
        """The device over which all that passes between the namespaces and this machine goes."""
        self._name, self._addresses, self._hosts = name, network, network.hosts()
        self._prefix = network.prefixlen
        self.gateway = str(next(self._hosts))
        self.namespaces: list[str] = []
        """In the order in which they were added."""
        self._services: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Make the bridge. Raises NoNamespaces, and TakenAddresses where packets would go to another device."""
        device = _device_of(self._addresses)
        if device:
            raise TakenAddresses(
                f"the device {device} has addresses of {self._addresses}, perhaps since a run that was killed; "
                f"remove it: ip link del {device}"
            )
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{self.gateway}/{self._prefix}", "dev", self._name)
        _ip("link", "set", self._name, "up")

    def add(self) -> tuple[str, str]:
        """Make a namespace; returns its name and address. Raises NoNamespaces."""
        namespace, address = f"{self._name}-{len(self.namespaces)}", str(next(self._hosts))
        _ip("netns", "add", namespace)
        self.namespaces.append(namespace)
        _ip("link", "add", namespace, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", namespace, "master", self._name, "up")
        _ip("-n", namespace, "addr", "add", f"{address}/{self._prefix}", "dev", "eth0")
        _ip("-n", namespace, "addr", "add", f"{ADDRESS}/32", "dev", "lo")
        for device in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", device, "up")
        return namespace, address

    def boot(self, name: str, user_data: str, root: Path, environment: Mapping[str, str]) -> str:
        """Start a droplet with its files below `root`: metadata service, then user data. Returns its address."""
        namespace, address = self.add()
        service = [*_inside(namespace), sys.executable, "-m", "sim.digitalocean.metadata", name, address]
        with (root / "metadata.log").open("ab") as output:
            self._services.append(subprocess.Popen(service, stdout=output, stderr=output, cwd=_ROOT))
        for script in scripts(user_data):
            subprocess.run(
                [*_inside(namespace), "/bin/sh"],
                input=script,
                text=True,
                check=True,
                cwd=_ROOT,
                env={**environment, "PENSTOCK_ROOT": str(root)},
            )
        return address

    def halt(self, namespace: str) -> None:
        """Kill what runs in a namespace, as the end of its droplet does, until nothing is left: a process that was
        started after a list was made is in the next one."""
        while pids := _processes(namespace):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End what runs in the namespaces, and remove them and the bridge."""
        for namespace in self.namespaces:
            self.halt(namespace)
            subprocess.run(["ip", "netns", "del", namespace], check=False)
        for service in self._services:
            service.wait()
        subprocess.run(["ip", "link", "del", self._name], check=False)


def _processes(namespace: str) -> list[int]:
    """The processes in a namespace that have not ended."""
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in listed.stdout.split()]


def run_inside(namespace: str, *command: str, timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
    """Run a command in a namespace."""
    return subprocess.run(
        [*_inside(namespace), *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        cwd=_ROOT,
    )


def scripts(user_data: str) -> list[str]:
    """The shell scripts of user data in their order, as cloud-init runs them."""
    if user_data.startswith("#!"):
        return [user_data]
    parts = email.message_from_string(user_data).walk()
    decoded = [
        part.get_payload(decode=True) for part in parts if part.get_content_subtype() == "x-shellscript"
    ]
    return [content.decode() for content in decoded if isinstance(content, bytes)]


def _inside(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]


def _device_of(addresses: IPv4Network) -> str:
    """The device to which packets for `addresses` go; empty = none but the default route."""
    for line in _ip("-4", "-o", "addr", "show").splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[2] == "inet" and IPv4Interface(fields[3]).network.overlaps(addresses):
            return fields[1]
    return ""


def _ip(*words: str) -> str:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoNamespaces(f"ip {' '.join(words)}: {error.strerror}") from None
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
