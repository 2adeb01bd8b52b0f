"""The network of droplets beside what else the machine has."""

from ipaddress import IPv4Network

import pytest

from sim.digitalocean.namespaces import NamespaceNetwork, TakenAddresses
from tests.support.namespace_network import namespace_network

ADDRESSES = IPv4Network("10.213.79.0/24")


def test_addresses_that_a_killed_run_has_left_to_its_bridge_are_refused() -> None:
    with namespace_network(ADDRESSES) as left:
        with pytest.raises(TakenAddresses, match=f"remove it: ip link del {left.bridge}"):
            NamespaceNetwork("pknext", IPv4Network("10.213.79.128/25")).start()
        other = NamespaceNetwork("pkother", IPv4Network("10.213.80.0/24"))
        other.start()
        other.close()
