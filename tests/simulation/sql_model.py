"""A model of the SQL functions of the money path: the same results and the same changes, in Python.

tests/integration/billing/metering/test_sql_model.py holds it to PostgreSQL. Amounts are picodollars, instants are
microseconds since the Unix epoch. A call is one transaction: it changes everything or, when it raises, nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from billing.metering.settle_calls import SettleRow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LATE_US = 48 * 3600 * 1_000_000
_FAR_US = 35 * 60 * 1_000_000
_LONGEST_US = 604_800_000_000
_MOST_TOKENS = 2_147_483_647


class RefusedByDatabase(Exception):
    """A constraint of the schema does not allow the change."""


def to_us(instant: datetime) -> int:
    """Microseconds since the Unix epoch."""
    return (instant - EPOCH) // _MICROSECOND


def to_instant(us: int) -> datetime:
    """The instant of microseconds since the Unix epoch."""
    return EPOCH + timedelta(microseconds=us)


def month_of(us: int) -> tuple[int, int]:
    """Year and month of an instant, in UTC."""
    instant = to_instant(us)
    return instant.year, instant.month


def label_scope(tenant: UUID, label: str) -> UUID:
    """penstock_label_scope."""
    return UUID(bytes=sha256(f"{tenant}\n{label}".encode()).digest()[:16])


def label_scopes(tenant: UUID, labels: str | None) -> tuple[UUID, ...]:
    """penstock_label_scopes."""
    return tuple(label_scope(tenant, one) for one in labels.split("\n")) if labels else ()


class Price(msgspec.Struct, frozen=True):
    """A price version that holds for all time; `tenant` None is the list price."""

    id: int
    model: str
    tier: str
    tenant: UUID | None
    input: int
    cached_input: int
    output: int
    reasoning: int


class Account(msgspec.Struct, frozen=True):
    """A row of billing_accounts."""

    tenant: UUID
    mode: str
    month: tuple[int, int]
    balance: int = 0
    owed: int = 0
    invoiced: int = 0
    held: int = 0
    open_holds: int = 0
    budget: int | None = None
    spent_month: int = 0
    credit_limit: int | None = None
    has_label_budgets: bool = False
    end_user_budget: int | None = None

    def spent(self, now: int) -> int:
        """penstock_spent."""
        return self.spent_month if self.month == month_of(now) else 0

    @property
    def funds(self) -> int | None:
        """penstock_funds."""
        if self.mode == "prepaid":
            return self.balance
        return None if self.credit_limit is None else max(self.credit_limit - self.owed - self.invoiced, 0)


class ScopeBudget(msgspec.Struct, frozen=True):
    """A row of scope_budgets."""

    tenant: UUID
    scope: str
    amount: int | None
    held: int
    spent_month: int
    month: tuple[int, int]
    label: str | None = None
    stops: bool = True

    def spent(self, now: int) -> int:
        """penstock_scope_spent."""
        return self.spent_month if self.month == month_of(now) else 0

    def rest(self, account: Account, now: int) -> int:
        """What is not spent of it, before open holds are subtracted."""
        amount = account.end_user_budget if self.amount is None else self.amount
        assert amount is not None
        return amount - self.spent(now)


class Hold(msgspec.Struct, frozen=True):
    """A row of holds."""

    tenant: UUID
    scopes: tuple[UUID, UUID]
    """Project and key."""
    price: int
    output_tokens: int
    amount: int
    renewed_at: int
    state: str = "open"
    labels: str | None = None


class UsageRow(msgspec.Struct, frozen=True):
    """A row of usage_rows with its tenant."""

    tenant: UUID
    scopes: tuple[UUID, UUID]
    """Project and key."""
    outcome: str
    ended_at: int
    late: bool
    input: int
    cached_input: int
    output: int
    reasoning: int
    cost: int
    discount: int
    labels: tuple[str, ...] = ()


class Transfer(msgspec.Struct, frozen=True):
    """A row of ledger_transfers, with codes for accounts."""

    tenant: UUID
    debit: str
    credit: str
    amount: int
    effective_at: int


class Reaper(msgspec.Struct, frozen=True):
    """The row of reaper_state."""

    seen_at: int
    started_at: int
    paused_until: int


class SqlModel:
    """The tables of the money path and the functions that change them."""

    def __init__(self, now: Callable[[], int]) -> None:
        """`now` is clock_timestamp()."""
        self.now = now
        self.started_at = 0
        """pg_postmaster_start_time()."""
        self.prices: dict[int, Price] = {}
        self.adapters: dict[str, tuple[UUID, str]] = {}
        """Organisation and model of each adapter, by public name."""
        self.accounts: dict[UUID, Account] = {}
        self.budgets: dict[UUID, ScopeBudget] = {}
        self.holds: dict[UUID, Hold] = {}
        self.usage: dict[UUID, UsageRow] = {}
        self.transfers: dict[tuple[UUID, str], Transfer] = {}
        self.parked: dict[UUID, str] = {}
        self.unbilled: dict[tuple[UUID, int], dict[str, Any]] = {}
        self.unpriced: dict[tuple[str, str, UUID], int] = {}
        self.reaper: dict[int, Reaper] = {}
        self.locked: set[UUID] = set()
        """Tenants whose account another transaction has locked."""
        self.undo: list[tuple[dict[Any, Any], Any, Any]] = []
        """What the changes since the last `commit` replaced: table, key and row, None = there was none."""

    # -- transactions ----------------------------------------------------------------------------------------------

    def put(self, table: dict[Any, Any], key: Any, row: Any) -> None:
        """Insert or replace a row."""
        self.undo.append((table, key, table.get(key)))
        table[key] = row

    def remove(self, table: dict[Any, Any], key: Any) -> None:
        """Delete a row."""
        self.undo.append((table, key, table.pop(key)))

    def roll_back(self, mark: int = 0) -> None:
        """Undo the changes after the first `mark` ones."""
        while len(self.undo) > mark:
            table, key, row = self.undo.pop()
            if row is None:
                table.pop(key, None)
            else:
                table[key] = row

    def _change(self, account: Account, **values: Any) -> None:
        changed = replace(account, **values)
        if changed.balance < 0:
            raise RefusedByDatabase(f"balance {changed.balance} of {account.tenant}")
        self.put(self.accounts, account.tenant, changed)

    def _hold_in_scopes(self, scopes: Iterable[UUID], amount: int) -> None:
        for scope in scopes:
            budget = self.budgets.get(scope)
            if budget is not None:
                self.put(self.budgets, scope, replace(budget, held=budget.held + amount))

    def _book(
        self, tenant: UUID, kind: str, debit: str, credit: str, amount: int, source: UUID, effective_at: int
    ) -> None:
        if (source, kind) in self.transfers:
            raise RefusedByDatabase(f"{kind} of {source} is booked already")
        self.put(self.transfers, (source, kind), Transfer(tenant, debit, credit, amount, effective_at))

    # -- functions -------------------------------------------------------------------------------------------------

    def open_account(self, tenant: UUID, mode: str) -> None:
        """penstock_open_account."""
        if tenant not in self.accounts:
            self.put(self.accounts, tenant, Account(tenant, mode, month_of(self.now())))

    def grant(self, source: UUID, tenant: UUID, amount: int) -> int:
        """penstock_grant; returns the balance."""
        if (source, "grant") not in self.transfers:
            self._book(tenant, "grant", "promotions", "credit", amount, source, self.now())
            account = self.accounts[tenant]
            self._change(account, balance=account.balance + amount)
        return self.accounts[tenant].balance

    def book(self, kind: str, tenant: UUID, debit: str, credit: str, amount: int, source: UUID) -> bool:
        """penstock_book, for a tenant with these accounts; returns whether the transfer is new."""
        known = self.transfers.get((source, kind))
        if known is not None:
            if (known.tenant, known.debit, known.credit, known.amount) != (tenant, debit, credit, amount):
                raise RefusedByDatabase(f"{kind} {source} is booked already with other facts")
            return False
        self._book(tenant, kind, debit, credit, amount, source, self.now())
        account = self.accounts[tenant]
        moved = {"credit": 0, "receivable": 0, "invoiced": 0} | {debit: amount, credit: -amount}
        self._change(
            account,
            balance=account.balance - moved["credit"],
            owed=account.owed + moved["receivable"],
            invoiced=account.invoiced + moved["invoiced"],
        )
        return True

    def set_scope_budget(self, tenant: UUID, scope: str, scope_id: UUID, amount: int | None) -> bool:
        """penstock_set_scope_budget; None can only remove a budget that was never there, as rows cannot be deleted."""
        known = self.budgets.get(scope_id)
        if amount is None or tenant not in self.accounts:
            assert known is None
            return tenant in self.accounts
        month = month_of(self.now())
        if known is not None:
            self.put(self.budgets, scope_id, replace(known, amount=amount))
            return True
        held = sum(
            one.amount for one in self.holds.values() if one.state == "open" and scope_id in one.scopes
        )
        spent = sum(
            one.cost
            for one in self.usage.values()
            if scope_id in one.scopes and month_of(one.ended_at) >= month
        )
        self.put(self.budgets, scope_id, ScopeBudget(tenant, scope, amount, held, spent, month))
        return True

    def set_label_budget(self, tenant: UUID, label: str, amount: int | None, stops: bool) -> bool:
        """penstock_set_label_budget."""
        account = self.accounts.get(tenant)
        if account is None:
            return False
        every, scope = account.end_user_budget, label_scope(tenant, label)
        known = self.budgets.get(scope)
        if label == "user":
            self._set_every_end_user(account, amount)
        elif amount is None:
            if known is not None and every is not None and label.startswith("user="):
                self.put(self.budgets, scope, replace(known, amount=None, stops=True))
            elif known is not None:
                self.remove(self.budgets, scope)
        elif known is not None:
            self.put(self.budgets, scope, replace(known, amount=amount, stops=stops))
        else:
            self._count_label(tenant, label, amount, stops)
        account = self.accounts[tenant]
        labelled = any(one.tenant == tenant and one.label is not None for one in self.budgets.values())
        self._change(account, has_label_budgets=account.end_user_budget is not None or labelled)
        return True

    def _set_every_end_user(self, account: Account, amount: int | None) -> None:
        tenant = account.tenant
        if amount is None:
            for scope in [
                key for key, one in self.budgets.items() if (one.tenant, one.amount) == (tenant, None)
            ]:
                self.remove(self.budgets, scope)
        elif account.end_user_budget is None:
            used = {one for row in self.usage.values() if row.tenant == tenant for one in self._in_month(row)}
            held = {
                one
                for row in self.holds.values()
                if row.tenant == tenant and row.state == "open" and row.labels
                for one in row.labels.split("\n")
            }
            for label in sorted(used | held):
                if label.startswith("user=") and label_scope(tenant, label) not in self.budgets:
                    self._count_label(tenant, label)
        self._change(account, end_user_budget=amount)

    def _in_month(self, row: UsageRow) -> tuple[str, ...]:
        return row.labels if month_of(row.ended_at) >= month_of(self.now()) else ()

    def _count_label(
        self, tenant: UUID, label: str, amount: int | None = None, stops: bool = True, *, spent: bool = True,
        settled: Iterable[UUID] = (),
    ) -> None:  # fmt: skip
        """Insert a label's row with what open holds and those of `settled` reserve and, if `spent`, its costs."""
        held = sum(
            one.amount
            for key, one in self.holds.items()
            if (one.state == "open" or (key in set(settled) and one.state == "settled"))
            and one.tenant == tenant
            and label in (one.labels or "").split("\n")
        )
        cost = sum(
            one.cost for one in self.usage.values() if one.tenant == tenant and label in self._in_month(one)
        )
        scope = "end_user" if label.startswith("user=") else "tag"
        row = ScopeBudget(
            tenant, scope, amount, held, cost if spent else 0, month_of(self.now()), label, stops
        )
        self.put(self.budgets, label_scope(tenant, label), row)

    def _budgets_of(self, account: Account, scopes: Iterable[UUID], labels: str | None) -> tuple[UUID, ...]:
        """The scopes whose budgets a request counts in."""
        known = label_scopes(account.tenant, labels) if account.has_label_budgets else ()
        return (*scopes, *known)

    def price(self, model: str, tier: str, tenant: UUID | None) -> Price | None:
        """penstock_price."""
        fitting = [one for one in self.prices.values() if (one.model, one.tier) == (model, tier)]
        own = [one for one in fitting if one.tenant is not None and one.tenant == tenant]
        listed = [one for one in fitting if one.tenant is None]
        return next(iter(own + listed), None)

    def hold(
        self,
        incarnation: str,
        requests: Sequence[UUID],
        tenants: Sequence[UUID],
        projects: Sequence[UUID],
        keys: Sequence[UUID],
        models: Sequence[str],
        tiers: Sequence[str],
        inputs: Sequence[int],
        outputs: Sequence[int],
        defaults: Sequence[int],
        wholes: Sequence[bool | None] = (),
        wait: bool = True,
        labels: Sequence[str | None] = (),
        adapters: Sequence[str | None] = (),
    ) -> list[dict[str, Any]]:
        """penstock_hold; with `wait` it must not be called for a locked account."""
        order = sorted(range(len(requests)), key=lambda i: (tenants[i], i))
        return [
            self._hold_one(
                requests[i], tenants[i], (projects[i], keys[i]), models[i], tiers[i], inputs[i], outputs[i],
                defaults[i],
                bool(wholes[i]) if i < len(wholes) else False, labels[i] if i < len(labels) else None,
                (adapters[i] if i < len(adapters) else None) or "",
            )
            for i in order
        ]  # fmt: skip

    def _hold_one(
        self, request: UUID, tenant: UUID, scopes: tuple[UUID, UUID], model: str, tier: str, inputs: int,
        outputs: int, default: int, asked_whole: bool, labels: str | None, adapter: str,
    ) -> dict[str, Any]:  # fmt: skip
        now = self.now()
        row: dict[str, Any] = dict.fromkeys(_HOLD_COLUMNS)
        row.update(request_id=request, can_wait=False, admitted_at=to_instant(now), whole=False)
        account = self.accounts.get(tenant)
        if account is None:
            return {**row, "verdict": "no_account"}
        if tenant in self.locked:
            return {**row, "verdict": "busy"}
        funds = account.funds
        budget = None if account.budget is None else account.budget - account.spent(now)
        row.update(funds=funds, held=account.held, open_holds=account.open_holds)
        price = (self.price(adapter, tier, tenant) if adapter else None) or self.price(model, tier, tenant)
        if price is None:
            return {**row, "verdict": "unpriced"}
        own = price.tenant is None or price.model != model
        listed = price if own else self.price(model, tier, None) or price
        for prefix, one in (("price", price), ("list", listed)):
            row[f"{prefix}_id"], row[f"{prefix}_input"] = one.id, one.input
            row[f"{prefix}_cached"], row[f"{prefix}_output"] = one.cached_input, one.output
            row[f"{prefix}_reasoning"] = one.reasoning
        rate = max(price.output, price.reasoning)
        counted = self._budgets_of(account, scopes, labels)
        named = labels is not None and labels.startswith("user=")
        if labels and named and account.end_user_budget is not None and counted[2] not in self.budgets:
            self._count_label(tenant, labels.split("\n")[0], spent=False)
        stopping = [
            (self.budgets[one], one) for one in counted if one in self.budgets and self.budgets[one].stops
        ]
        stopping.sort(key=lambda one: (one[0].rest(account, now) - one[0].held, one[0].scope, one[1]))
        own = [one for one, _ in stopping]
        rests = [one.rest(account, now) for one in own]
        limits = [one - account.held for one in (funds, budget) if one is not None]
        limits += [one.rest(account, now) - one.held for one in own]
        left = min(limits) if limits else None
        prompt = max(inputs, 0) * max(price.input, price.cached_input)
        tokens = outputs
        if asked_whole:
            tokens = outputs if outputs > 0 else default
            row["whole"] = left is None or (prompt + tokens * rate) * 16 <= left
        if outputs <= 0 and not row["whole"]:
            tokens = min(default, 4096)
            if rate > 0 and left is not None:
                tokens = max(1, min(tokens, left // (4 * rate)))
        needed = prompt + tokens * rate
        row.update(output_tokens=tokens, needed=needed)
        if left is not None and needed > left:
            if funds is not None and needed > funds - account.held:
                can_wait = all(needed <= one for one in (funds, budget, *rests) if one is not None)
                return {**row, "verdict": "insufficient_credit", "can_wait": can_wait}
            row["can_wait"] = all(needed <= one for one in (budget, *rests) if one is not None)
            if budget is not None and needed > budget - account.held:
                return {**row, "verdict": "budget_exceeded", "funds": budget, "budget_scope": "tenant"}
            facts = {"funds": rests[0], "held": own[0].held, "budget_label": own[0].label}
            return {**row, "verdict": "budget_exceeded", "budget_scope": own[0].scope, **facts}
        if request in self.holds:
            return {**row, "verdict": "duplicate"}
        self.put(self.holds, request, Hold(tenant, scopes, price.id, tokens, needed, now, labels=labels))
        self._hold_in_scopes(counted, needed)
        self._change(account, held=account.held + needed, open_holds=account.open_holds + 1)
        return {**row, "verdict": "granted", "amount": needed}

    def extend(self, requests: Sequence[UUID], tokens: Sequence[int]) -> list[dict[str, Any]]:
        """penstock_extend."""
        now = self.now()
        rows = []
        for request, more in zip(requests, tokens, strict=True):
            hold = self.holds.get(request)
            extended: bool | None = False
            if hold is not None and hold.tenant in self.locked:
                extended = None
            elif hold is not None and hold.state == "open":
                account, price = self.accounts[hold.tenant], self.prices[hold.price]
                cost = more * max(price.output, price.reasoning)
                budget = None if account.budget is None else account.budget - account.spent(now)
                limits = [one - account.held for one in (account.funds, budget) if one is not None]
                scopes = self._budgets_of(account, hold.scopes, hold.labels)
                own = [self.budgets[one] for one in scopes if one in self.budgets]
                limits += [one.rest(account, now) - one.held for one in own if one.stops]
                extended = not limits or cost <= min(limits)
                if extended:
                    self._hold_in_scopes(scopes, cost)
                    changed = replace(
                        hold,
                        amount=hold.amount + cost,
                        output_tokens=hold.output_tokens + more,
                        renewed_at=now,
                    )
                    self.put(self.holds, request, changed)
                    self._change(account, held=account.held + cost)
            rows.append({"request_id": request, "extended": extended})
        return rows

    def renew(self, requests: Sequence[UUID]) -> list[UUID]:
        """penstock_renew."""
        now = self.now()
        still_open = [one for one in requests if one in self.holds and self.holds[one].state == "open"]
        for request in still_open:
            self.put(self.holds, request, replace(self.holds[request], renewed_at=now))
        return still_open

    def release(self, requests: Iterable[UUID], state: str) -> list[UUID]:
        """penstock_release; with the state `voided` penstock_void. Returns the requests of locked accounts."""
        left = []
        for request in dict.fromkeys(requests):
            hold = self.holds.get(request)
            if hold is None or hold.state != "open":
                continue
            if hold.tenant in self.locked:
                left.append(request)
                continue
            self.put(self.holds, request, replace(hold, state=state))
            account = self.accounts[hold.tenant]
            self._hold_in_scopes(self._budgets_of(account, hold.scopes, hold.labels), -hold.amount)
            self._change(account, held=account.held - hold.amount, open_holds=account.open_holds - 1)
        return left

    def reap(self, ttl_us: int, gap_us: int, limit: int) -> int:
        """penstock_reap."""
        now = self.now()
        state = self.reaper.get(1) or Reaper(now, self.started_at, now)
        paused_until = state.paused_until
        if state.started_at != self.started_at or state.seen_at < now - gap_us:
            paused_until = now + ttl_us
        self.put(self.reaper, 1, Reaper(now, self.started_at, paused_until))
        if now < paused_until:
            return 0
        lapsed = sorted(
            request
            for request, hold in self.holds.items()
            if hold.state == "open" and hold.renewed_at < now - ttl_us and request not in self.usage
        )
        lapsed = lapsed[:limit]
        return len(lapsed) - len(self.release(lapsed, "expired"))

    def settle_with_unbilled(
        self, batch: Sequence[SettleRow], notes: Iterable[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """penstock_settle_with_unbilled."""
        rows = self.settle(batch)
        fresh = {row["request_id"] for row in rows if row["result"] != "duplicate"}
        for note in notes:
            key = (UUID(note["request_id"]), note["part"])
            if key[0] in fresh and key not in self.unbilled:
                self.put(self.unbilled, key, note)
        return rows

    def settle_labelled(
        self, batch: Sequence[SettleRow], notes: Iterable[dict[str, Any]], requests: Sequence[UUID],
        tenants: Sequence[UUID], names: Sequence[str], values: Sequence[str],
    ) -> list[dict[str, Any]]:  # fmt: skip
        """penstock_settle_labelled, for fewer labels than the caps allow."""
        rows = self.settle_with_unbilled(batch, notes)
        labels: dict[UUID, list[str]] = defaultdict(list)
        for request, name, value in zip(requests, names, values, strict=True):
            labels[request].append(f"{name}={value}")
        settled = [row["request_id"] for row in rows if row["result"] == "settled"]
        for request, own in labels.items():
            if request in settled:
                self.put(self.usage, request, replace(self.usage[request], labels=tuple(own)))
        if any(one in self.accounts and self.accounts[one].has_label_budgets for one in tenants):
            self._charge_labels(settled, self.now())
        return rows

    def _charge_labels(self, settled: list[UUID], now: int) -> None:
        """penstock_charge_labels."""
        costs: dict[UUID, dict[UUID, int]] = defaultdict(dict)
        freed: dict[UUID, int] = defaultdict(int)
        for request in settled:
            row, hold = self.usage[request], self.holds.get(request)
            for label in row.labels:
                scope = label_scope(row.tenant, label)
                every = self.accounts[row.tenant].end_user_budget
                if every is not None and label.startswith("user=") and scope not in self.budgets:
                    self._count_label(row.tenant, label, spent=False, settled=settled)
                costs[scope][request] = row.cost
            if hold is not None and hold.state == "settled":
                for scope in label_scopes(hold.tenant, hold.labels):
                    freed[scope] += hold.amount
        for scope in {*costs, *freed}:
            budget = self.budgets.get(scope)
            if budget is not None:
                counted = self._spent(budget, costs[scope], now)
                self.put(self.budgets, scope, replace(budget, held=budget.held - freed[scope], **counted))

    def count_unpriced(
        self, models: Sequence[str], tiers: Sequence[str], tenants: Sequence[UUID], counts: Sequence[int]
    ) -> None:
        """penstock_count_unpriced, for models and tenants that exist."""
        for key, count in zip(zip(models, tiers, tenants, strict=True), counts, strict=True):
            self.put(self.unpriced, key, self.unpriced.get(key, 0) + count)

    def park(self, request: UUID, reason: str) -> None:
        """penstock_park."""
        if request not in self.parked:
            self.put(self.parked, request, reason)

    # -- settlement ------------------------------------------------------------------------------------------------

    def settle(self, batch: Sequence[SettleRow]) -> list[dict[str, Any]]:
        """penstock_settle."""
        now = self.now()
        results, fresh = {}, []
        for record in sorted({one.request_id: one for one in reversed(batch)}.values()):
            request = record.request_id
            problem = self._problem(record)
            if problem is not None:
                self.park(request, problem)
                results[request] = "parked"
            elif self.is_settled(request):
                results[request] = "duplicate"
            else:
                self.put(self.usage, request, self._usage_row(record, now))
                results[request] = "settled"
                fresh.append(request)
        held: dict[UUID, int] = {}
        for request in fresh:
            hold = self.holds.get(request)
            if hold is not None and hold.state == "open":
                held[request] = hold.amount
                self.put(self.holds, request, replace(hold, state="settled"))
        by_tenant: dict[UUID, list[UUID]] = defaultdict(list)
        for request in fresh:
            by_tenant[self.usage[request].tenant].append(request)
        for tenant, requests in by_tenant.items():
            self._charge(tenant, requests, held, now)
        return [{"request_id": request, "result": result} for request, result in results.items()]

    def is_settled(self, request: UUID) -> bool:
        """Whether the request has its usage row."""
        return request in self.usage

    def _problem(self, record: SettleRow) -> str | None:
        price = self.prices.get(record.price_version)
        if record.tenant_id not in self.accounts:
            return f"tenant {record.tenant_id} has no billing account"
        if (
            price is None
            or (
                price.model != record.model
                and self.adapters.get(price.model) != (record.tenant_id, record.model)
            )
            or (price.tenant is not None and price.tenant != record.tenant_id)
        ):
            return f"price version {record.price_version} is not one of model {record.model} for this tenant"
        if record.list_price_version not in self.prices:
            return f"list price version {record.list_price_version} does not exist"
        counts = (
            record.input_tokens, record.cached_input_tokens, record.output_tokens, record.reasoning_tokens,
            record.unbilled_input_tokens, record.unbilled_output_tokens, record.queue_us, record.ttft_us,
            record.duration_us,
        )  # fmt: skip
        if min(counts) < 0:
            return "a count or duration is negative"
        if max(record.input_tokens, record.output_tokens, *counts[4:6]) > _MOST_TOKENS:
            return "more than 2147483647 tokens"
        if record.cached_input_tokens > record.input_tokens:
            return "more cached than input tokens"
        if record.reasoning_tokens > record.output_tokens:
            return "more reasoning than output tokens"
        return None

    def _usage_row(self, record: SettleRow, now: int) -> UsageRow:
        claimed = to_us(record.admitted_at) + min(record.duration_us, _LONGEST_US)
        late = claimed < now - _LATE_US
        cost = 0 if record.free else _cost(self.prices[record.price_version], record)
        return UsageRow(
            tenant=record.tenant_id,
            scopes=(record.project_id, record.key_id),
            outcome=record.outcome,
            ended_at=now if late or claimed > now else claimed,
            late=late,
            input=record.input_tokens,
            cached_input=record.cached_input_tokens,
            output=record.output_tokens,
            reasoning=record.reasoning_tokens,
            cost=cost,
            discount=0 if record.free else _cost(self.prices[record.list_price_version], record) - cost,
        )

    def _charge(self, tenant: UUID, requests: list[UUID], held: dict[UUID, int], now: int) -> None:
        """penstock_charge for one tenant; `held` has the amounts of holds that were open."""
        account = self.accounts[tenant]
        prepaid = account.mode == "prepaid"
        costs = {request: self.usage[request].cost for request in requests}
        free = account.balance - account.held
        free += sum(held[one] - cost for one, cost in costs.items() if cost <= held.get(one, -1))
        charged = 0
        for request, cost in costs.items():
            ended_at, hold = self.usage[request].ended_at, held.get(request, 0)
            if not prepaid or cost <= hold:
                charged += cost
                if cost > 0:
                    debit = "credit" if prepaid else "receivable"
                    self._book(tenant, "usage", debit, "revenue", cost, request, ended_at)
                continue
            paid = min(cost, hold + free)
            free -= paid - hold
            charged += paid
            if paid > 0:
                self._book(tenant, "usage", "credit", "revenue", paid, request, ended_at)
            if cost > paid:
                self._book(
                    tenant, "uncollectible", "uncollectible", "revenue", cost - paid, request, ended_at
                )
        released = [held[request] for request in requests if request in held]
        self._change(
            account,
            balance=account.balance - (charged if prepaid else 0),
            owed=account.owed + (0 if prepaid else sum(costs.values())),
            held=account.held - sum(released),
            open_holds=account.open_holds - len(released),
            **self._spent(account, costs, now),
        )
        for scope in {one for request in requests for one in self.usage[request].scopes}:
            budget = self.budgets.get(scope)
            if budget is not None:
                within = {one: cost for one, cost in costs.items() if scope in self.usage[one].scopes}
                freed = sum(held.get(one, 0) for one in within)
                counted = self._spent(budget, within, now)
                self.put(self.budgets, scope, replace(budget, held=budget.held - freed, **counted))

    def _spent(self, account: Account | ScopeBudget, costs: dict[UUID, int], now: int) -> dict[str, Any]:
        """The budget's counter after costs, each in the month of its row: the present one or the one before."""
        present = month_of(now)
        before = (present[0] - (present[1] == 1), (present[1] - 2) % 12 + 1)
        in_present = [one for one in costs if month_of(self.usage[one].ended_at) >= present]
        month = max(account.month, present if in_present else before)
        counted = sum(
            cost for request, cost in costs.items() if (request in in_present) == (month >= present)
        )
        kept = account.spent_month if account.month >= (present if in_present else before) else 0
        return {"month": month, "spent_month": kept + counted}


def _cost(price: Price, record: SettleRow) -> int:
    return (
        (record.input_tokens - record.cached_input_tokens) * price.input
        + record.cached_input_tokens * price.cached_input
        + (record.output_tokens - record.reasoning_tokens) * price.output
        + record.reasoning_tokens * price.reasoning
    )


_HOLD_COLUMNS = (
    "request_id", "verdict", "can_wait", "admitted_at", "price_id", "price_input", "price_cached", "price_output",
    "price_reasoning", "list_id", "list_input", "list_cached", "list_output", "list_reasoning", "amount",
    "output_tokens", "whole", "needed", "funds", "held", "open_holds", "budget_scope", "budget_label",
)  # fmt: skip
