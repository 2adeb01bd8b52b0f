"""Parses a command line of `vllm serve` with the engine's own parser, and says what is wrong with it.

Runs as a script inside the engine's environment, with the words after `serve`; the platform never imports the engine.
Nothing is loaded and no GPU is used. Exits with 0, or with 2 and the parser's last line on stderr.
"""

import sys
from importlib import import_module


def main(words: list[str]) -> int:
    """Return the exit status."""
    launchers = import_module("vllm.entrypoints.launchers.cli_args")
    parsers = import_module("vllm.utils.argparse_utils")
    parser = launchers.make_arg_parser(parsers.FlexibleArgumentParser(prog="vllm serve"))
    try:
        launchers.validate_parsed_serve_args(parser.parse_args(words))
    except (TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
