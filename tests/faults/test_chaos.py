"""`make chaos` with twenty faults, one of every kind at least: afterwards the books agree with what clients saw."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bench.chaos.plan import CARDS, DECK_SIZE
from bench.stack import ROOT

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.mark.promise(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 24)
def test_the_books_agree_with_the_clients_after_random_faults(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    done = subprocess.run(
        [sys.executable, "-m", "bench.chaos", "--faults", str(DECK_SIZE), "--seed", str(seed), "--json",
         "--out", str(tmp_path / "chaos.json")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-9000:]}"
    found = json.loads(done.stdout)
    assert {fault["kind"] for fault in found["faults"]} == set(CARDS)
    undone = [fault for fault in found["faults"] if fault["said"].startswith("FAILED")]
    assert not undone
    (audit,) = found["audits"]
    # Each request was compared (bench/chaos/books.py); these say that there was something to compare.
    assert audit["rows"] > 50
    assert audit["compared"] > audit["rows"] / 2
    assert audit["delivered"] > 0
    assert audit["billed"] > 0
