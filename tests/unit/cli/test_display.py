"""What a start shows, on a terminal and in a log."""

import io

import pytest
from rich.console import Console

from cli.display import Display
from cli.runtime_info import show_panel

LONG = (
    "curl http://127.0.0.1:8000/v1/chat/completions -H 'Authorization: Bearer pen_live_x' -d '"
    + "x" * 300
    + "'"
)


def draw(terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, highlight=False, color_system=None)
    with Display(console) as display:
        with display.step("Engine") as step:
            step.note("loading [weights]")
            step.note("loading [weights]")
        display.print_line("a plain [line]")
    display.panel("Penstock is running", [("API", "http://127.0.0.1:8000/v1")], ["A toy model."], LONG)
    return out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_everything_is_said_and_the_command_can_be_copied(terminal: bool) -> None:
    shown = draw(terminal)
    for part in ("Engine", "loading [weights]", "a plain [line]", "http://127.0.0.1:8000/v1", "A toy model."):
        assert part in shown
    assert LONG in shown.splitlines()


def test_a_log_gets_each_news_once_and_no_escape_codes() -> None:
    shown = draw(terminal=False)
    assert shown.count("loading [weights]") == 1
    assert "\x1b" not in shown


def test_a_step_that_fails_is_not_shown_as_done() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=False))
    with pytest.raises(ValueError, match="no"), display, display.step("Engine"):
        raise ValueError("no")
    assert "done" not in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_secrets_are_shown_on_a_terminal_alone(terminal: bool) -> None:
    out = io.StringIO()
    info = {
        "base_url": "http://127.0.0.1:8000/v1",
        "console_url": "http://127.0.0.1:8001",
        "model": "penstock/tiny",
        "api_key": "pk-demo",
        "admin_email": "admin@penstock.local",
        "admin_password": "first-password",
        "data_dir": "/data",
        "stripe_base_url": "http://127.0.0.1:1",
        "stripe_simulated": True,
    }
    show_panel(Display(Console(file=out, width=200, force_terminal=terminal)), info, [], [])
    shown = out.getvalue()
    assert "admin@penstock.local" in shown
    assert [secret in shown for secret in ("first-password", "pk-demo")] == [terminal, terminal]
    assert ("/data/runtime.json" in shown) is not terminal
