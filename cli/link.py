"""Makes `penstock` of a virtual environment run this checkout: `python -m cli.link .venv`.

Writes a launcher into its bin/ and a .pth file that puts the checkout on its path.
"""

import sys
import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

# A path with blanks or above 127 characters does not work behind "#!", so sh finds the interpreter beside the launcher.
_LAUNCHER = """#!/bin/sh
'''exec' "$(dirname "$(readlink -f "$0")")/python" "$0" "$@"
' '''
from cli.main import main

main()
"""


def link(environment: Path) -> Path:
    """Write both files into `environment` and return the launcher."""
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment.resolve())}))
    (site / "penstock.pth").write_text(f"{CHECKOUT}\n")
    launcher = environment / "bin" / "penstock"
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)
    return launcher


if __name__ == "__main__":
    link(Path(sys.argv[1]))
