"""`make compat`: the tools of others against a whole platform with the real vLLM.

Exit status 1 when a feature broke that tools.toml does not know to fail, or works although it does.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.compat.play import Outcome, play
from tests.compat.report import page, table
from tests.compat.target import EMBEDDING_MODEL, MODEL, Target, target_of
from tests.compat.tools import ROOT, Tool, tools
from tests.support.second_host import second_host
from tests.support.stack import Stack

PAGE = ROOT / "docs" / "compatibility.md"


def main() -> int:
    """Run the tools one after the other and show what became of them."""
    wanted = _arguments()
    chosen = [tool for tool in tools() if not wanted.only or tool.key in wanted.only]
    console = Console(stderr=True, width=160 if not sys.stderr.isatty() else None)
    with tempfile.TemporaryDirectory(prefix="compat-") as scratch:
        stack = Stack(Path(scratch) / "data", "--engine", "vllm", "--model", MODEL)
        try:
            stack.start(600)
            with second_host(stack, Path(scratch) / "second", EMBEDDING_MODEL):
                outcomes = _play_all(chosen, target_of(stack, "Compatibility"), console)
        finally:
            stack.stop()
    if wanted.json:
        print(json.dumps([outcome.as_dict() for outcome in outcomes], indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(table(outcomes))
    if wanted.publish:
        PAGE.write_text(page(outcomes, datetime.now(UTC).date(), _commit()))
    return int(any(outcome.broken() or outcome.mended() for outcome in outcomes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make compat", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="KEY", choices=[tool.key for tool in tools()], help="some tools"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--publish", action="store_true", help=f"write {PAGE.relative_to(ROOT)}; needs all tools"
    )
    wanted = parser.parse_args()
    if wanted.publish and wanted.only:
        parser.error("--publish writes about all tools: leave out --only")
    return wanted


def _play_all(chosen: list[Tool], target: Target, console: Console) -> list[Outcome]:
    outcomes = []
    for tool in chosen:
        outcomes.append(play(tool, target))
        failed = [each.feature for each in outcomes[-1].broken()]
        console.print(f"{tool.name}: {'broken: ' + ', '.join(failed) if failed else 'as expected'}")
    return outcomes


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
