"""Rules of FOCUS 1.2 that the official requirements model states as prose, as checks over the rows of a file.

Source of every rule: its id and text in finopsfoundation/focus_validator 2.0.1 (commit 240cea2, the model in
tests/data/focus), which numbers the sentences of FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2, below
specification/columns/. `tests/support/focus_model.py` runs the rules that the model itself can check.

A check takes all rows and yields the numbers of those that break its rule.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

Row = Mapping[str, str | None]
Check = Callable[[Sequence[Row]], Iterable[int]]


class Rule(NamedTuple):
    """One sentence of the specification."""

    id: str
    """Its id in the official model."""
    text: str
    """What it demands, shortened."""
    check: Check


class NotChecked(NamedTuple):
    """A sentence that no file can prove or that does not hold here, with the reason."""

    id: str
    reason: str


def _each(wrong: Callable[[Row], bool]) -> Check:
    return lambda rows: (number for number, row in enumerate(rows) if wrong(row))


def _amount(row: Row, column: str) -> Decimal:
    return Decimal(row[column] or "0")


def _instant(row: Row, column: str) -> datetime:
    return datetime.fromisoformat(row[column] or "")


def _one_for_each(key: str, value: str) -> Check:
    """A value of `key` always has the same value of `value`."""

    def check(rows: Sequence[Row]) -> Iterator[int]:
        first: dict[str, str | None] = {}
        for number, row in enumerate(rows):
            name = row.get(key)
            if name is not None and first.setdefault(name, row.get(value)) != row.get(value):
                yield number

    return check


def _unrelated(row: Row) -> bool:
    """Whether the charge is calculated from no other charge and buys or uses nothing: a credit or an adjustment."""
    return row["ChargeCategory"] in ("Credit", "Adjustment")


def _as_billed(column: str) -> Check:
    return _each(lambda row: _unrelated(row) and _amount(row, column) != _amount(row, "BilledCost"))


def _product(price: str, cost: str) -> Check:
    def wrong(row: Row) -> bool:
        if row.get(price) is None or row.get("PricingQuantity") is None or row["ChargeClass"] == "Correction":
            return False
        return _amount(row, price) * _amount(row, "PricingQuantity") != _amount(row, cost)

    return _each(wrong)


def _no_calendar_month(row: Row) -> bool:
    start, end = _instant(row, "BillingPeriodStart"), _instant(row, "BillingPeriodEnd")
    return start.day != 1 or end != (start + timedelta(days=32)).replace(day=1)


def _outside_billing_period(row: Row) -> bool:
    start, end = _instant(row, "ChargePeriodStart"), _instant(row, "ChargePeriodEnd")
    return not (_instant(row, "BillingPeriodStart") <= start < end <= _instant(row, "BillingPeriodEnd"))


def _sku_details(row: Row) -> dict[str, object]:
    found: dict[str, object] = json.loads(row.get("SkuPriceDetails") or "{}")
    return found


def _other_unit_than_sku(rows: Sequence[Row]) -> Iterator[int]:
    units: dict[str, set[str | None]] = defaultdict(set)
    for number, row in enumerate(rows):
        sku = row.get("SkuId")
        if sku is not None:
            units[sku].add(row.get("PricingUnit"))
            if len(units[sku]) > 1:
                yield number


RULES: tuple[Rule, ...] = (
    Rule(
        "BillingPeriodStart-C-004-M", "the inclusive start of the billing period", _each(_no_calendar_month)
    ),
    Rule("BillingPeriodEnd-C-004-M", "the exclusive end of the billing period", _each(_no_calendar_month)),
    Rule("ChargePeriodStart-C-004-M", "the inclusive start of the charge", _each(_outside_billing_period)),
    Rule("ChargePeriodEnd-C-004-M", "the exclusive end of the charge", _each(_outside_billing_period)),
    Rule(
        "EffectiveCost-C-005-C",
        "0 for a purchase that covers future charges; we sell none, so no other purchase may have 0 either",
        _each(
            lambda row: (
                row["ChargeCategory"] == "Purchase"
                and _amount(row, "EffectiveCost") != _amount(row, "BilledCost")
            )
        ),
    ),
    Rule("EffectiveCost-C-010-C", "of an unrelated charge: the BilledCost", _as_billed("EffectiveCost")),
    Rule("ContractedCost-C-008-C", "of an unrelated charge: the BilledCost", _as_billed("ContractedCost")),
    Rule("ListCost-C-008-C", "of an unrelated charge: the BilledCost", _as_billed("ListCost")),
    Rule(
        "PricingQuantity-C-009-C",
        "PricingQuantity x unit price = cost, for list prices",
        _product("ListUnitPrice", "ListCost"),
    ),
    Rule(
        "ContractedCost-C-009-C",
        "PricingQuantity x unit price = cost, for contracted prices",
        _product("ContractedUnitPrice", "ContractedCost"),
    ),
    Rule(
        "BilledCost-C-006-M, EffectiveCost-C-006-M, ListCost-C-005-M, ContractedCost-C-005-M, ListUnitPrice-C-009-M, "
        "ContractedUnitPrice-C-010-C",
        "costs are in the BillingCurrency, which is always ours",
        _each(lambda row: row["BillingCurrency"] != "USD"),
    ),
    Rule(
        "BillingAccountId-C-004-M",
        "unique: one name for each",
        _one_for_each("BillingAccountId", "BillingAccountName"),
    ),
    Rule("BillingAccountType-C-006-M", "consistent", _one_for_each("ProviderName", "BillingAccountType")),
    Rule(
        "SubAccountType-C-006-M",
        "consistent: one for each account",
        _one_for_each("SubAccountId", "SubAccountType"),
    ),
    Rule(
        "SubAccountId-C-004-C, SubAccountId-C-005-C",
        "null unless the charge is one of a sub account, whose name and type it then has",
        _each(
            lambda row: (
                len({row.get(name) is None for name in ("SubAccountId", "SubAccountName", "SubAccountType")})
                > 1
            )
        ),
    ),
    Rule(
        "ResourceId-C-004-C, ResourceId-C-005-C",
        "null unless the charge is one of a resource: usage that is no correction",
        _each(
            lambda row: (
                "ResourceId" in row
                and (row["ResourceId"] is None)
                == (row["ChargeCategory"] == "Usage" and row["ChargeClass"] is None)
            )
        ),
    ),
    Rule("ResourceId-C-007-M", "unique: one name for each", _one_for_each("ResourceId", "ResourceName")),
    Rule(
        "ResourceName-C-004-C, ResourceName-C-005-C",
        "null exactly when ResourceId is",
        _each(lambda row: (row.get("ResourceId") is None) != (row.get("ResourceName") is None)),
    ),
    Rule(
        "ResourceName-C-006-C",
        "does not repeat ResourceId",
        _each(
            lambda row: row.get("ResourceId") is not None and row.get("ResourceId") == row.get("ResourceName")
        ),
    ),
    Rule(
        "SkuId-C-011-C, SkuPriceId-C-012-C",
        "set for usage that is no correction, which all is of a resource",
        _each(lambda row: row.get("ResourceId") is not None and None in (row["SkuId"], row["SkuPriceId"])),
    ),
    Rule(
        "SkuPriceDetails-C-007-M, SkuPriceDetails-C-008-M",
        "of its SKU price: model, tier and class are those of the SkuId",
        _each(
            lambda row: (
                row.get("SkuPriceDetails") is not None
                and "/".join(map(str, _sku_details(row).values())) != row["SkuId"]
            )
        ),
    ),
    Rule(
        "SkuPriceId-C-014-C",
        "leads to the ListUnitPrice: one for each",
        _one_for_each("SkuPriceId", "ListUnitPrice"),
    ),
    Rule(
        "ConsumedQuantity-C-008-C",
        "a decimal number when not null",
        _each(
            lambda row: (
                row["ConsumedQuantity"] is not None and not Decimal(row["ConsumedQuantity"]).is_finite()
            )
        ),
    ),
    Rule(
        "RegionId-C-004-C",
        "set where a resource is operated",
        _each(lambda row: row.get("ResourceId") is not None and row["RegionId"] is None),
    ),
    Rule("SkuMeter-C-006-O", "consistent for a SkuId", _one_for_each("SkuId", "SkuMeter")),
    Rule("SkuId-C-009-M", "consistent across PricingCategory", _one_for_each("SkuId", "PricingCategory")),
    Rule("PricingUnit-C-008-M", "that of the price list: one for each SKU", _other_unit_than_sku),
    Rule(
        "SkuPriceDetails-C-017-C",
        "keys that FOCUS does not define have the prefix x_",
        _each(lambda row: any(not name.startswith("x_") for name in _sku_details(row))),
    ),
    Rule(
        "ChargeClass-C-003-C",
        "null when the row is no correction of an earlier month: usage that was priced is none",
        _each(lambda row: row["ChargeClass"] is not None and row.get("PricingQuantity") is not None),
    ),
    Rule(
        "PricingCategory-C-008-C, PricingCategory-C-009-C, PricingCategory-C-010-C, PricingCategory-C-011-C",
        "Standard where prices are agreed in advance, as all of ours are",
        _each(lambda row: row.get("PricingQuantity") is not None and row["PricingCategory"] != "Standard"),
    ),
)
"""Every sentence without a check in the model that a file of ours can prove."""

NOT_CHECKED = (
    NotChecked(
        "BilledCost-C-007-M",
        "a file has exact amounts; an invoice rounds each line to cents once and carries small totals over",
    ),
    NotChecked("BillingCurrency-C-005-M", "over the invoice too; both have USD and know no other currency"),
    NotChecked(
        "InvoiceId-C-007-C", "over the invoices too; InvoiceId is the number of the organisation's invoice"
    ),
    NotChecked("PricingUnit-C-009-C", "over the invoice too, whose lines are per million tokens"),
    NotChecked(
        "SkuPriceId-C-013-M, SkuPriceId-C-015-C", "over the price list, which has the version in SkuPriceId"
    ),
    NotChecked(
        "SkuPriceDetails-C-010-C, SkuPriceDetails-C-018-C, SkuPriceDetails-C-020-M, SkuPriceDetails-C-021-M, "
        "SkuPriceDetails-C-022-C",
        "our details are names; FOCUS defines no property of that meaning, and none of them is a number",
    ),
    NotChecked(
        "Tags-C-004-M, Tags-C-005-M, Tags-C-012-M, Tags-C-015-C, Tags-C-016-C, Tags-C-017-M",
        "names and values are facts of ours, which tests/integration/billing/usage/test_labels.py compares: customers' "
        "names begin with tag_ and have no colon, ours with penstock:",
    ),
    NotChecked("Tags-C-008-M", "every tag has a value"),
    NotChecked(
        "Tags-C-010-C",
        "values are those of requests; beyond the published number of a month they are '(other)'",
    ),
    NotChecked("ServiceName-C-006-C", "AI and Machine Learning, Generative AI suits the service"),
    NotChecked(
        "EffectiveCost-C-009-C, ContractedCost-C-007-C, ListCost-C-007-C",
        "no charge is calculated from other charges, such as a tax",
    ),
    NotChecked(
        "EffectiveCost-C-012-C, EffectiveCost-C-013-C", "there are no commitment discounts as FOCUS has them"
    ),
    NotChecked(
        "ChargeClass-C-004-C", "what an adjustment corrects is a fact of ours, which test_focus.py compares"
    ),
    NotChecked("SkuPriceId-C-009-M, SkuPriceId-C-010-M", "over several files; a price version never changes"),
    NotChecked("SkuId-C-008-M, SkuId-C-010-M", "over several files; the id is made of model, tier and class"),
)
"""Binding sentences on columns of ours that no single file can prove."""


def broken(rows: Sequence[Row]) -> dict[str, str]:
    """By rule id: the rule and the first row that breaks it; empty when all of RULES hold."""
    found = {}
    for rule in RULES:
        first = next(iter(rule.check(rows)), None)
        if first is not None:
            found[rule.id] = f"{rule.text}: {rows[first]}"
    return found
