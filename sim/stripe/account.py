"""The complete simulated account: every module's operations and timers on one state."""

from pathlib import Path
from types import ModuleType

from core.clock import Clock
from sim.stripe import (
    catalog,
    charges,
    checkout,
    collecting,
    credit_notes,
    customers,
    disputes,
    events,
    invoices,
    items,
    meter_events,
    meters,
    methods,
    payments,
    refunds,
)
from sim.stripe.routes import Route
from sim.stripe.sim import Options, Sim
from sim.stripe.views import render

_SUBJECTS: tuple[ModuleType, ...] = (
    catalog, charges, checkout, collecting, credit_notes, customers, disputes, events, invoices, items, meter_events,
    meters, methods, payments, refunds,
)  # fmt: skip

ROUTES: list[Route] = [each for subject in _SUBJECTS for each in subject.ROUTES]


def open_account(clock: Clock, options: Options | None = None, path: Path | None = None) -> Sim:
    """Open an account; with `path`, its state is loaded from and kept in that file. Times come from `clock`."""
    sim = Sim(clock, options, path)
    sim.shown = lambda value: render(sim, value)
    for subject in _SUBJECTS:
        sim.actions |= getattr(subject, "ACTIONS", {})
    checkout.move(sim)
    return sim
