"""Passwords and codes for commands: asked for in a terminal, else lines of standard input; never arguments."""

import sys
from pathlib import Path

import typer

from admin.factor_codes import GivenCode
from cli.context import pepper
from core.clock import SystemClock

SHELL = "shell"
"""The network address under which sign-ins in a shell are counted."""
_LONGEST_LINE = 4096


def read_secret(what: str, *, confirm: bool = False) -> str:
    """Read a secret without an argument, which the shell history would keep."""
    if sys.stdin.isatty():
        typed: str = typer.prompt(what, hide_input=True, confirmation_prompt=confirm, err=True)
        return typed
    return sys.stdin.readline(_LONGEST_LINE).rstrip("\r\n")


def ask_code(data_dir: Path | None) -> GivenCode:
    """Read a code of the second factor."""
    if sys.stdin.isatty():
        typed: str = typer.prompt("code of your authenticator, or backup code", err=True)
    else:
        typed = sys.stdin.readline(_LONGEST_LINE)
    return GivenCode(typed.strip(), pepper(data_dir), SystemClock().now())
