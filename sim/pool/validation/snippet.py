"""Writes fitted figures as lines of a catalog profile."""

from datetime import date

from sim.pool.validation.sweep_fit import SweepFigures
from sim.pool.validation.sweeps import Sweep

_DIGITS = 3


def profile_snippet(sweep: Sweep, figures: SweepFigures, day: date) -> str:
    """Return the lines of the profile and of its figures, in TOML.

    Figures from a published sweep are `computed`; those of a sweep without a source are the operator's, `measured`.
    """
    basis = "computed" if sweep.source else "measured"
    origin = f"{sweep.source}: " if sweep.source else ""
    source = _text(f"penstock sim fit, {origin}{sweep.title}")
    lines = ["# of the profile:", f"sweep = {_text(sweep.name)}", "# of its figures:"]
    values = {
        "prefill_tokens_per_s": figures.prefill_tokens_per_s,
        "request_s": figures.request_s,
        "step_base_s": figures.step_base_s,
        "step_experts_s": figures.step_experts_s,
        "step_per_seq_s": figures.step_per_seq_s,
    }
    for name, value in values.items():
        if value:
            number = f"{float(f'{value:.{_DIGITS}g}'):.10g}"
            lines.append(
                f'{name} = {{ value = {number}, basis = "{basis}", date = {day}, source = {source} }}'
            )
    return "\n".join(lines) + "\n"


def _text(words: str) -> str:
    return '"' + words.replace("\\", "\\\\").replace('"', '\\"') + '"'
