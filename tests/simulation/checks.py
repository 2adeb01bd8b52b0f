"""What must hold at the end of every schedule (docs/promises.md, 1 to 8 and 13)."""

from collections import defaultdict
from uuid import UUID

from billing.metering.records import Outcome
from core.tokens import TokenUsage
from tests.simulation.platform import Platform
from tests.simulation.sql_model import UsageRow, month_of
from tests.simulation.traffic import Request

LOST_BY_KILL_S = 1.0
"""Usage that the death of a process may lose: what the next checkpoint would have recorded."""
SYNCS = 5
"""Syncs after which an end is durable at the latest: those of a compaction, then its own."""
_SLACK_S = 0.06
"""Time between a checkpoint that is due and its write, in a process that other work delays."""


def check_books(platform: Platform) -> None:
    """The ledger is exact, agrees with accounts and usage rows, and nothing is held."""
    world, model = platform.world, platform.server.model
    booked: dict[tuple[UUID, str], int] = defaultdict(int)
    of_request: dict[UUID, int] = defaultdict(int)
    for (source, kind), transfer in model.transfers.items():
        booked[transfer.tenant, transfer.debit] -= transfer.amount
        booked[transfer.tenant, transfer.credit] += transfer.amount
        if kind in ("usage", "uncollectible"):
            of_request[source] += transfer.amount
    if sum(booked.values()):
        world.problem(f"the ledger does not balance: {sum(booked.values())}")
    for tenant, account in model.accounts.items():
        if account.balance < 0:
            world.problem(f"balance {account.balance} below zero")
        if account.balance != (booked[tenant, "credit"] if account.mode == "prepaid" else 0):
            world.problem(f"balance {account.balance} is not the ledger's {booked[tenant, 'credit']}")
        if account.owed != -booked[tenant, "receivable"]:
            world.problem(f"owed {account.owed} is not the ledger's {-booked[tenant, 'receivable']}")
        if account.invoiced != -booked[tenant, "invoiced"]:
            world.problem(f"invoiced {account.invoiced} is not the ledger's {-booked[tenant, 'invoiced']}")
        if (account.held, account.open_holds) != (0, 0):
            world.problem(f"{account.held} in {account.open_holds} holds are still held")
    for budget in model.budgets.values():
        if budget.held:
            world.problem(f"{budget.held} of the budget of {budget.label} are still held")
        rows = [
            one for one in model.usage.values() if budget.label in one.labels and one.tenant == budget.tenant
        ]
        spent = sum(one.cost for one in rows if month_of(one.ended_at) == budget.month)
        if budget.spent_month != spent:
            world.problem(f"the budget of {budget.label} counts {budget.spent_month}, its rows {spent}")
    for request_id, row in model.usage.items():
        if of_request.pop(request_id, 0) != row.cost:
            world.problem(f"{request_id} costs {row.cost}, but that is not what is booked")
    if of_request:
        world.problem(f"booked without a usage row: {list(of_request)}")
    for request_id, hold in model.holds.items():
        if hold.state == "open":
            world.problem(f"the hold of {request_id} is open after its time to live and the reaper")
    if model.parked:
        world.problem(f"parked: {model.parked}")
    unreadable = [name for name in platform.disk.names if name.endswith(".unreadable")]
    if unreadable and not any(one.disk_failed or one.died_of == "power" for one in platform.apis):
        world.problem(f"quarantined without a fault of the disk: {unreadable}")


def check_requests(platform: Platform) -> None:
    """Each admitted request has one row, which lies between what was delivered and what was generated."""
    known = {request.id for request in platform.requests}
    for request_id in platform.server.model.usage:
        if request_id not in known:
            platform.world.problem(f"usage of a request that never came: {request_id}")
    for request in platform.requests:
        problem = _problem(platform, request)
        if problem:
            platform.world.problem(f"request {request.id} of {request.process.name}: {problem}")


def _problem(platform: Platform, request: Request) -> str:
    row = platform.server.model.usage.get(request.id)
    if row is None:
        return _why_no_row(request)
    if not request.open_tried:
        return "a usage row without an open line"
    return _wrong_row(platform, request, row) or _lost_hold(platform, request)


def _why_no_row(request: Request) -> str:
    """What is wrong when a request has no usage row; empty when nothing is."""
    if not request.admitted or (_power_was_lost(request) and not _is_durable(request, request.opened_at)):
        return ""
    return f"admitted, but no usage row (ended: {request.settled_at})"


def _power_was_lost(request: Request) -> bool:
    """Whether the host lost power when the request's process died, or later."""
    return request.process.dead and "lose power" in request.process.platform.struck


def _is_durable(request: Request, written_at: float | None) -> bool:
    """Whether what the process wrote at an instant must survive a loss of power."""
    process = request.process
    if written_at is None or process.disk_failed:
        return False
    disk = process.platform.disk
    if disk.promised.get(f"/spool/{process.name}.spool", -1.0) > written_at:
        return True
    # The end of a request is synced, and with it all that was written before.
    end = request.settled_at
    return end is not None and written_at <= end and end + _SLACK_S + SYNCS * disk.sync_s < process.died_at


def _wrong_row(platform: Platform, request: Request, row: UsageRow) -> str:
    process = request.process
    billed = TokenUsage(row.input, row.cached_input, row.output, row.reasoning)
    generated = request.generated
    if _power_was_lost(request) and request.opened is not None:
        # The open line of the second attempt may be lost; then the first one's counts are billed.
        generated = generated + request.opened.earlier_usage
    if row.output > generated.output or row.input > generated.input:
        return f"billed {billed}, generated {generated}"
    outcome = Outcome(row.outcome)
    expected = 0 if outcome.free else _cost(billed)
    if row.cost != expected:
        return f"costs {row.cost}, not {expected}"
    if request.record is not None and outcome is request.record.outcome and billed == request.record.usage:
        wanted = request.delivered_by(process.world.now)
        return "" if outcome.free or row.output >= wanted else f"billed {row.output} of {wanted} delivered"
    if not process.dead:
        return f"{row.outcome} {billed} is not what the process settled: {request.record}"
    if outcome is not Outcome.INTERRUPTED:
        return f"{row.outcome} {billed}, though the process was killed"
    if process.disk_failed or process.was_full:
        return ""
    lost_power = _power_was_lost(request)
    if request.settled_at is not None and not (lost_power and not _is_durable(request, request.settled_at)):
        return f"{billed} is not what the process had written at its end"
    if lost_power:
        durable = [usage.output for at, usage in request.checkpoints if _is_durable(request, at)]
        wanted = max(durable, default=0)
    else:
        wanted = request.delivered_by(process.died_at - LOST_BY_KILL_S - _SLACK_S)
    if request.hold is not None and request.hold.whole:
        wanted = 0
    return f"billed {row.output}, but {wanted} were delivered in time" if row.output < wanted else ""


def _cost(usage: TokenUsage) -> int:
    return (usage.input - usage.cached_input) * 3 + usage.cached_input + usage.output * 7


def _lost_hold(platform: Platform, request: Request) -> str:
    """An admitted request keeps its hold, unless its process or the database died or was away."""
    hold = platform.server.model.holds.get(request.id)
    if hold is None:
        return "" if _database_was_away(platform) else "the hold has vanished"
    if hold.state == "voided" and request.admitted:
        return "the hold of an admitted request was voided"
    if hold.state == "expired" and not request.process.dead and not _database_was_away(platform):
        return "the hold of a running request has expired"
    return ""


def _database_was_away(platform: Platform) -> bool:
    return any("database" in fault or fault == "crash after commit" for fault in platform.struck)
