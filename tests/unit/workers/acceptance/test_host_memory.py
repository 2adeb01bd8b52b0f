"""A host with less memory than its kind serves, and says so: KV caches and sleeping weights get less."""

import pytest

from workers.acceptance.check import expected_of
from workers.acceptance.readings import HostReading
from workers.acceptance.rules import judge
from workers.catalog import load_catalog

KIND = "gpu-h100x8-640gb"


@pytest.mark.parametrize(("ram_gb", "kind", "noted"), [(1000, KIND, True), (1800, KIND, False), (0, KIND, False),
                                                       (1000, "gpu-h100x1-80gb", False)])  # fmt: skip
def test_less_memory_than_stated_is_noted(ram_gb: float, kind: str, noted: bool) -> None:
    expected = expected_of(load_catalog(), kind)
    found = [
        each
        for each in judge(HostReading(), HostReading(ram_gb=ram_gb), expected)
        if each.check == "host memory"
    ]
    assert bool(found) == noted
    for each in found:
        assert (each.severity, each.text) == (
            "note",
            "the host has 1000 GB of memory, and 1900 GB are stated for its kind: less is left for kv_offload and for "
            "sleeping replicas",
        )
