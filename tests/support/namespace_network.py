"""A network of droplets for a test, and how a droplet starts this checkout's `penstock`."""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from sim.digitalocean.namespaces import NamespaceNetwork, NoNamespaces


@contextmanager
def namespace_network(addresses: IPv4Network) -> Iterator[NamespaceNetwork]:
    """A network that is removed at the end; the test is skipped where the machine allows none."""
    made = NamespaceNetwork(f"pk{secrets.token_hex(2)}", addresses)
    try:
        made.start()
    except NoNamespaces as error:
        made.close()
        pytest.skip(f"this machine allows no network namespaces: {error}")
    try:
        yield made
    finally:
        made.close()


def droplet_environment(directory: Path) -> dict[str, str]:
    """The variables of a droplet's first boot: its `penstock` is a script in `directory`."""
    command = directory / "penstock"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli.main "$@"\n')
    command.chmod(0o755)
    return {"PATH": os.environ["PATH"], "PENSTOCK_COMMAND": str(command)}
