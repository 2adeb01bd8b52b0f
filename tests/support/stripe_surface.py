"""What the installed official Stripe package says about objects and parameters, read out of its type hints.

`python -m tests.support.stripe_surface` compares sim/stripe/fixtures.json.gz with the package; with a path to
Stripe's fixture file (fixtures3.json of stripe/openapi, gzip) it writes the file anew.
"""

import ast
import gzip
import json
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CARRIED = Path(__file__).resolve().parents[2] / "sim" / "stripe" / "fixtures.json.gz"

RESOURCES = {
    "balance": "_balance.py:Balance",
    "balance_transaction": "_balance_transaction.py:BalanceTransaction",
    "billing.meter": "billing/_meter.py:Meter",
    "billing.meter_event": "billing/_meter_event.py:MeterEvent",
    "billing.meter_event_adjustment": "billing/_meter_event_adjustment.py:MeterEventAdjustment",
    "billing.meter_event_summary": "billing/_meter_event_summary.py:MeterEventSummary",
    "charge": "_charge.py:Charge",
    "checkout.session": "checkout/_session.py:Session",
    "credit_note": "_credit_note.py:CreditNote",
    "credit_note_line_item": "_credit_note_line_item.py:CreditNoteLineItem",
    "customer": "_customer.py:Customer",
    "customer_balance_transaction": "_customer_balance_transaction.py:CustomerBalanceTransaction",
    "dispute": "_dispute.py:Dispute",
    "event": "_event.py:Event",
    "invoice": "_invoice.py:Invoice",
    "invoice_payment": "_invoice_payment.py:InvoicePayment",
    "invoiceitem": "_invoice_item.py:InvoiceItem",
    "item": "_line_item.py:LineItem",
    "line_item": "_invoice_line_item.py:InvoiceLineItem",
    "payment_intent": "_payment_intent.py:PaymentIntent",
    "payment_method": "_payment_method.py:PaymentMethod",
    "price": "_price.py:Price",
    "product": "_product.py:Product",
    "refund": "_refund.py:Refund",
    "setup_intent": "_setup_intent.py:SetupIntent",
    "tax_id": "_tax_id.py:TaxId",
    "webhook_endpoint": "_webhook_endpoint.py:WebhookEndpoint",
    "v2.billing.meter_event": "v2/billing/_meter_event.py:MeterEvent",
    "v2.billing.meter_event_session": "v2/billing/_meter_event_session.py:MeterEventSession",
    "v2.billing.meter_event_adjustment": "v2/billing/_meter_event_adjustment.py:MeterEventAdjustment",
}
"""Object name -> file and class in the package."""

_OPERATIONS = """
balance_retrieve balance_transaction_list balance_transaction_retrieve billing/meter_create billing/meter_list
billing/meter_retrieve billing/meter_update billing/meter_deactivate billing/meter_reactivate
billing/meter_event_create billing/meter_event_adjustment_create billing/meter_event_summary_list charge_list
charge_retrieve charge_update checkout/session_create checkout/session_retrieve checkout/session_list
checkout/session_expire checkout/session_line_item_list credit_note_create credit_note_preview credit_note_list
credit_note_retrieve credit_note_update credit_note_void_credit_note credit_note_line_item_list
credit_note_preview_lines_list customer_create customer_list customer_retrieve customer_update customer_delete
customer_tax_id_create customer_tax_id_list customer_tax_id_retrieve customer_tax_id_delete
customer_payment_method_list customer_payment_method_retrieve customer_balance_transaction_create
customer_balance_transaction_list customer_balance_transaction_retrieve dispute_list dispute_retrieve
dispute_update dispute_close event_list event_retrieve invoice_create invoice_retrieve invoice_update
invoice_delete invoice_list invoice_add_lines invoice_finalize_invoice invoice_pay invoice_send_invoice
invoice_void_invoice invoice_attach_payment invoice_mark_uncollectible invoice_line_item_list invoice_payment_list
invoice_payment_retrieve invoice_item_create invoice_item_retrieve invoice_item_update invoice_item_delete
invoice_item_list payment_intent_create payment_intent_retrieve payment_intent_update payment_intent_list
payment_intent_confirm payment_intent_cancel payment_method_attach payment_method_detach payment_method_retrieve
payment_method_list payment_method_create price_create price_retrieve price_list price_update product_create
product_retrieve product_list product_update refund_create refund_retrieve refund_list refund_update refund_cancel
setup_intent_create setup_intent_retrieve setup_intent_list setup_intent_confirm setup_intent_cancel
webhook_endpoint_create webhook_endpoint_retrieve webhook_endpoint_update webhook_endpoint_list
webhook_endpoint_delete v2/billing/meter_event_create v2/billing/meter_event_session_create
v2/billing/meter_event_stream_create v2/billing/meter_event_adjustment_create
"""
PARAMS = _OPERATIONS.split()
"""Operations: parameter files of the package, without their _ and _params.py."""

Fields = dict[str, str]
Tree = dict[str, Any]


def package_root() -> Path:
    """Folder of the installed package."""
    spec = find_spec("stripe")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def _module(path: str) -> ast.Module:
    return ast.parse((package_root() / path).read_text())


def _hint(node: ast.expr) -> str:
    """An annotation as text, its quotes taken off."""
    text = ast.unparse(node)
    while text.startswith(("NotRequired[", "Required[")) and text.endswith("]"):
        text = text.partition("[")[2][:-1]
    if isinstance(inner := ast.parse(text, mode="eval").body, ast.Constant) and isinstance(inner.value, str):
        text = inner.value
    return text.replace(" ", "").replace("\n", "")


def _class_tree(node: ast.ClassDef) -> Tree:
    fields = {
        item.target.id: _hint(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is None
    }
    fields = {
        name: hint for name, hint in fields.items() if not hint.startswith("ClassVar") and name[0] != "_"
    }
    nested = {item.name: _class_tree(item) for item in node.body if isinstance(item, ast.ClassDef)}
    renamed = _renamed(node)
    fields = {renamed.get(name, name): hint for name, hint in fields.items()}
    return {"fields": fields, "nested": {name: tree for name, tree in nested.items() if tree["fields"]}}


def _renamed(node: ast.ClassDef) -> dict[str, str]:
    """`_field_remappings`: names that Python does not allow, as they are on the wire."""
    for item in node.body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "_field_remappings":
            return dict(ast.literal_eval(item.value))
    return {}


@cache
def resource(name: str) -> Tree:
    """Fields and nested classes of an object: {"fields": {name: hint}, "nested": {class: tree}}."""
    file, _, cls = RESOURCES[name].partition(":")
    for node in _module(file).body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            return _class_tree(node)
    raise AssertionError(f"{name}: no class {cls} in {file}")


def params(name: str) -> Tree:
    """Parameters of an operation: {field: [required, type, more]}; see `_param`."""
    folder, _, leaf = name.rpartition("/")
    path = f"params/{folder}/_{leaf}_params.py" if folder else f"params/_{leaf}_params.py"
    classes = {node.name: node for node in _module(path).body if isinstance(node, ast.ClassDef)}
    wanted = leaf.replace("_", "") + "params"
    [top] = [node for cls, node in classes.items() if cls.lower() == wanted]
    aliases = {name: node for name, node in classes.items() if node is not top}
    return _param_fields(top, aliases)


def _param_fields(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Tree:
    found: Tree = {}
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    for base in bases:
        if base.startswith("_") and base in classes:
            found |= _param_fields(classes[base], classes)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            required = "NotRequired[" not in ast.unparse(item.annotation)
            found[item.target.id] = [required, *_param(_hint(item.annotation), classes)]
    for call in node.bases:  # functional TypedDicts carry names that Python does not allow
        if isinstance(call, ast.Call):
            for key, value in zip(call.args[1].keys, call.args[1].values, strict=True):  # type: ignore[attr-defined]
                found[str(key.value)] = [
                    "NotRequired[" not in ast.unparse(value),
                    *_param(_hint(value), classes),
                ]
    for base in bases:
        if base in classes and not base.startswith("_"):
            found |= _param_fields(classes[base], classes)
    return found


def _param(hint: str, classes: dict[str, ast.ClassDef]) -> list[Any]:
    """[type] or [type, more]: enum (int, bool) with values, list with its item's spec, object with its fields."""
    parts = _split(hint)
    parts = [part for part in parts if part != "Literal['']"] or parts
    values = [value for part in parts if part.startswith("Literal[") for value in ast.literal_eval(part[7:])]
    plain = next((part for part in parts if part in ("int", "bool")), None)
    if values and plain:
        return [plain, values]
    if values:
        return ["enum", values] if all(isinstance(value, str) for value in values) else ["bool"]
    lists = [part for part in parts if part.startswith("List[")]
    if lists:
        return ["list", _param(lists[0][5:-1], classes)]
    for part in parts:
        bare = part.strip("'\"")
        if bare in classes:
            return ["object", _param_fields(classes[bare], classes)]
        if bare.startswith(("Dict[", "Mapping[", "UntypedStripeObject[")):
            return ["map"]
    return [{"int": "int", "str": "str", "bool": "bool", "Decimal": "decimal"}.get(parts[0], "any")]


def _split(hint: str) -> list[str]:
    """Parts of a union written with | or Union[]."""
    hint = hint.strip("'\"") if hint[0] in "'\"" else hint
    if hint.startswith(("Union[", "Optional[")) and hint.endswith("]"):
        hint = hint.partition("[")[2][:-1]
        return [piece for part in _cut(hint, ",") for piece in _split(part)]
    return [part for part in _cut(hint, "|") if part]


def _cut(text: str, mark: str) -> list[str]:
    parts, depth, quote, start = [], 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == mark and not depth:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _reached(tree: Tree, value: Any) -> Tree:
    """`tree` with only those nested classes for which the fixture has a value."""
    nested = {}
    for name, hint in tree["fields"].items():
        inner = value.get(name) if isinstance(value, dict) else None
        inner = inner[0] if isinstance(inner, list) and inner else inner
        for cls, sub in tree["nested"].items():
            if isinstance(inner, dict) and cls in _names(hint):
                nested[cls] = _reached(sub, inner)
    return {"fields": tree["fields"], "nested": nested} if nested else {"fields": tree["fields"]}


def _names(hint: str) -> set[str]:
    return {
        node.id
        for node in ast.walk(ast.parse(hint.replace("'", "").replace('"', "")))
        if isinstance(node, ast.Name)
    }


def surface(fixtures: dict[str, Any]) -> Tree:
    """What sim/stripe carries, made from the package and Stripe's fixtures."""
    kept = {name: fixtures[name] for name in RESOURCES if name in fixtures}
    return {
        "fixtures": kept,
        "resources": {name: _reached(resource(name), kept.get(name)) for name in RESOURCES},
        "params": {name: params(name) for name in PARAMS},
    }


def carried() -> Tree:
    """The file as it is in the repository."""
    with gzip.open(CARRIED) as file:
        found: Tree = json.load(file)
    return found


def main() -> int:
    """Write the carried file from a fixture file, or compare it with the installed package."""
    if len(sys.argv) > 1:
        with gzip.open(sys.argv[1]) as file:
            made = surface(json.load(file)["resources"])
        raw = json.dumps(made, sort_keys=True, separators=(",", ":")).encode()
        CARRIED.write_bytes(gzip.compress(raw, 9, mtime=0))
        print(f"{CARRIED}: {len(raw)} bytes, {CARRIED.stat().st_size} compressed")
        return 0
    same = carried() == surface(carried()["fixtures"])
    print(
        "the carried file says what the package says" if same else "the carried file differs from the package"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
