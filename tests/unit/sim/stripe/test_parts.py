"""The stand-in's parts without a socket: forms, parameters, pages, keys, the journal, timers, delivery."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import stripe
from hypothesis import given
from hypothesis import strategies as st

from sim.stripe import faults, forms, surface, webhooks
from sim.stripe.account import ROUTES, open_account
from sim.stripe.customers import create
from sim.stripe.errors import StripeError
from sim.stripe.events import add_endpoint
from sim.stripe.idempotency import Keys
from sim.stripe.params import cents, check, merge_metadata
from sim.stripe.sim import Options, Sim
from sim.stripe.store import Store
from sim.stripe.views import page
from tests.support.clock import ManualClock
from tests.support.stripe_surface import carried
from tests.support.stripe_surface import surface as official


def refusal(act: Callable[[], Any]) -> StripeError:
    with pytest.raises(StripeError) as error:
        act()
    return error.value


# Forms and parameters


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a=1&b=%26+x", {"a": "1", "b": "& x"}),
        ("a[b]=1&a[c][d]=2", {"a": {"b": "1", "c": {"d": "2"}}}),
        ("a[0][x]=1&a[1][x]=2", {"a": {"0": {"x": "1"}, "1": {"x": "2"}}}),
        ("expand[]=a&expand[]=b", {"expand": {"0": "a", "1": "b"}}),
        ("a%5Bb%5D=1", {"a": {"b": "1"}}),
    ],
)
def test_forms(text: str, found: Any) -> None:
    assert forms.decode(text) == found


@pytest.mark.parametrize(
    "text",
    ["a]=1", "a[=1", "=1", "a[b]c=1", "a=1&a[b]=2", "a[b]=2&a=1", "a=%ff", "a" + "[b]" * 9 + "=1",
     "&".join(f"a{n}=1" for n in range(10_001))],
)  # fmt: skip
def test_malformed_forms_are_refused(text: str) -> None:
    error = refusal(lambda: forms.decode(text))
    assert (error.status, error.kept) == (400, False)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}(\[[a-z0-9]{1,5}\]){0,3}", fullmatch=True), st.text(), max_size=6
    )
)
def test_any_form_is_decoded_or_refused(fields: dict[str, str]) -> None:
    with suppress(StripeError):
        found = forms.decode(urlencode(fields, errors="replace"))
        assert set(found) == {name.partition("[")[0] for name in fields}


@given(st.binary(max_size=80))
def test_any_bytes_are_json_or_refused(body: bytes) -> None:
    with suppress(StripeError):
        assert isinstance(forms.decode_json(body), dict)


def test_parameters_get_their_types() -> None:
    given = forms.decode("customer=cus_1&lines[1][amount]=-5&lines[0][amount]=7&invoice_metadata[0]=x")
    assert refusal(lambda: check("invoice_add_lines", given, None)).error["param"] == "customer"
    del given["customer"]
    assert check("invoice_add_lines", given, None) == {
        "lines": [{"amount": 7}, {"amount": -5}], "invoice_metadata": {"0": "x"}
    }  # fmt: skip
    assert check("invoice_list", {"created": {"gte": "5"}}, None) == {"created": {"gte": 5}}
    assert check("invoice_list", {"created": "5"}, None) == {"created": 5}
    assert check("customer_update", {"metadata": "", "name": ""}, None) == {"metadata": "", "name": ""}


@pytest.mark.parametrize(
    ("operation", "given", "code"),
    [
        ("payment_intent_create", {"amount": "x", "currency": "usd"}, "parameter_invalid_integer"),
        ("payment_intent_create", {"amount": "1" * 30, "currency": "usd"}, "parameter_invalid_integer"),
        ("payment_intent_create", {"amount": {"a": "1"}, "currency": "usd"}, None),
        ("payment_intent_create", {"amount": "1", "currency": "usd", "confirm": "perhaps"}, None),
        ("payment_intent_create", {"currency": "usd"}, "parameter_missing"),
        ("invoice_add_lines", {"lines": "x"}, None),
        ("invoice_add_lines", {"lines": {"a": {"amount": "1"}}}, None),
        ("invoice_add_lines", {"lines": {"0": {"quantity_decimal": "1e5"}}}, "parameter_invalid_decimal"),
        ("refund_create", {"reason": "boredom"}, None),
        ("customer_create", {"name": "a\0b"}, None),
        ("customer_create", {"metadata": {"a": {"b": "c"}}}, None),
    ],
)
def test_wrong_parameters(operation: str, given: Any, code: str | None) -> None:
    error = refusal(lambda: check(operation, given, None))
    assert (error.status, error.error.get("code"), error.kept) == (400, code, False)


@pytest.mark.parametrize(
    ("unit", "quantity", "amount"),
    [("0.5", 1, 1), ("-0.5", 1, -1), ("0.4", 1, 0), ("10.5", 3, 32), ("7", 0, 0)],
)
def test_cents_are_rounded_half_away_from_zero(unit: str, quantity: int, amount: int) -> None:
    assert cents(unit, quantity) == amount


def test_what_nobody_can_owe_is_refused() -> None:
    assert refusal(lambda: cents("9" * 18 + "." + "9" * 12, 10**17)).error["code"] == "amount_too_large"


def test_metadata_rules() -> None:
    assert merge_metadata({"a": "1", "b": "2"}, {"a": "", "c": "3"}) == {"b": "2", "c": "3"}
    assert merge_metadata({"a": "1"}, "") == {}
    assert merge_metadata({"a": "1"}, None) == {"a": "1"}
    for bad in ({"k" * 41: "v"}, {"k": "v" * 501}, {"a[b]": "v"}, {str(n): "v" for n in range(51)}):
        assert refusal(lambda bad=bad: merge_metadata(None, bad)).status == 400


def test_every_operation_has_its_official_parameters() -> None:
    for route in ROUTES:
        known = set(surface.parameters(route.operation))
        assert (route.supported or set()) <= known, route.operation


def test_the_carried_lists_are_those_of_the_installed_package() -> None:
    assert carried() == official(carried()["fixtures"])


# Pages


@given(st.integers(0, 30), st.integers(1, 9))
def test_pages_give_everything_once_in_order(count: int, limit: int) -> None:
    newest = [{"id": f"x_{number}", "created": number} for number in reversed(range(count))]
    seen: list[Any] = []
    given: dict[str, Any] = {"limit": limit}
    while True:
        found = page(newest, given, "/x")
        seen += found.items
        if not found.has_more:
            break
        given["starting_after"] = found.items[-1]["id"]
    assert seen == newest
    back: list[Any] = []
    while len(back) < max(0, count - 1):
        found = page(newest, {"limit": limit, "ending_before": (back or newest[-1:])[0]["id"]}, "/x")
        back = found.items + back
        assert found.has_more is (len(back) < count - 1)
    assert back == newest[:-1]


# Keys


def test_keys() -> None:
    keys = Keys(Store())
    assert keys.begin("k", "mark", 0) is None
    assert refusal(lambda: keys.begin("k", "mark", 0)).status == 409
    assert refusal(lambda: keys.begin("k", "other", 0)).status == 400
    keys.finish("k", "mark", 0, 402, {"error": 1})
    row = keys.begin("k", "mark", 1) or {}
    assert (row["status"], row["body"]) == (402, {"error": 1})
    assert refusal(lambda: keys.begin("k", "other", 1)).error["type"] == "idempotency_error"
    assert keys.begin("k", "other", 86_401) is None
    keys.give_up("k")
    assert keys.begin("k", "third", 86_401) is None
    assert refusal(lambda: keys.begin("k" * 256, "mark", 0)).status == 400


# Store and time


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.one_of(st.none(), st.integers())), max_size=30
    ),
    st.integers(0, 40),
)  # fmt: skip
def test_a_journal_cut_anywhere_gives_an_earlier_state(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str, int | None]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("store") / "state.jsonl"
    store = Store(path)
    states = [store.dump()]
    for kind, id, value in acts:
        if value is None:
            store.drop(kind, id)
        else:
            store.put(kind, id, {"value": value})
        store.flush()
        states.append(
            {kind: {id: dict(row) for id, row in rows.items()} for kind, rows in store.dump().items()}
        )
    store.close()
    whole = path.read_bytes()
    assert kept(path) == states[-1]
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    assert kept(path) in states


def test_a_journal_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.stripe.store.COMPACT_BYTES", 1000)
    path = tmp_path / "state.jsonl"
    store = Store(path)
    for number in range(500):
        store.put("a", "same", {"value": number})
        store.flush()
    assert path.stat().st_size < 2000
    store.put("a", "other", {"value": 1})
    store.close()
    assert kept(path) == {"a": {"same": {"value": 499}, "other": {"value": 1}}}
    assert path.stat().st_mode & 0o077 == 0


def kept(path: Path) -> Any:
    """What a store finds in a file."""
    store = Store(path)
    store.close()
    return store.dump()


def account(**options: Any) -> tuple[Sim, ManualClock]:
    clock = ManualClock()
    return open_account(clock, Options(**options)), clock


def test_the_same_seed_gives_the_same_ids() -> None:
    ids = [[create(account(seed=seed)[0], {"name": "a"})["id"] for _ in range(1)] for seed in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]
    sim, _ = account()
    assert len({sim.id("x") for _ in range(5000)}) == 5000


def test_timers_fire_in_order_at_their_instant_and_may_set_others() -> None:
    sim, clock = account()
    fired: list[tuple[str, int]] = []
    start = sim.now()

    def act(sim: Sim, id: str) -> None:
        fired.append((id, sim.now() - start))
        if id == "b":
            sim.schedule(sim.now() + 5, "test", "d")

    sim.actions["test"] = act
    for id, at in (("c", 30), ("a", 10), ("b", 20), ("late", 1000)):
        sim.schedule(start + at, "test", id)
    sim.advance(40)
    assert fired == [("a", 10), ("b", 20), ("d", 25), ("c", 30)]
    assert sim.now() == start + 40
    clock.advance(960)
    sim.run_due()
    assert fired[-1] == ("late", 1000)


# Failures on demand


def test_faults_are_used_up() -> None:
    store = Store()
    faults.add(store, {"kind": "429", "path": "/v1/customers.*", "method": "POST", "times": 2, "skip": 1})
    met = [bool(faults.take(store, "POST", "/v1/customers/cus_1")) for _ in range(5)]
    assert met == [False, True, True, False, False]
    assert faults.take(store, "GET", "/v1/customers") is None
    for bad in (
        {"kind": "fire"},
        {"kind": "429", "path": "("},
        {"kind": "429", "times": "x"},
        {"kind": "429", "path": 3},
    ):
        assert refusal(lambda bad=bad: faults.add(store, bad)).status == 400


# Delivery


class Endpoint:
    """Takes webhooks; answers what `statuses` says, then 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.seen: list[bytes] = []

    async def __call__(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        assert headers["Stripe-Signature"].startswith("t=")
        self.seen.append(body)
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 0:
            raise OSError("refused")
        return status


def test_the_signature_is_stripes() -> None:
    header = webhooks.signature("whsec_a", b'{"x": 1}', 1_700_000_000)
    assert stripe.WebhookSignature.verify_header('{"x": 1}', header, "whsec_a", None)


@pytest.mark.parametrize("failure", [0, 500, 404, 302])
async def test_delivery_is_tried_again_later(failure: int) -> None:
    sim, _ = account()
    endpoint = Endpoint(failure, failure)
    sender = webhooks.WebhookSender(sim, endpoint)
    add_endpoint(sim, "http://x.test", ["*"], "whsec_a")
    create(sim, {"name": "a"})
    waits = []
    while sim.store.all("delivery"):
        await sender.deliver_due()
        for row in sim.store.all("delivery"):
            waits.append(row["due"] - sim.now())
            sim.advance(row["due"] - sim.now())
    assert waits == list(webhooks.RETRIES_S[:2])
    assert len(endpoint.seen) == 3


async def test_an_endpoint_that_is_taken_away_gets_nothing_more() -> None:
    sim, _ = account()
    endpoint = Endpoint()
    sender = webhooks.WebhookSender(sim, endpoint)
    made = add_endpoint(sim, "http://x.test", ["customer.*"], "whsec_a")
    create(sim, {"name": "a"})
    sim.store.drop("webhook_endpoint", made["id"])
    await sender.deliver_due()
    assert endpoint.seen == []
    assert sim.store.all("delivery") == []
    for bad in ({"mode": "drunk"}, {"mode": "reordered", "window": 1}, {"mode": "duplicated", "copies": 1}):
        options: Any = {"types": [], "window": 2, "copies": 2, "delay": 1} | bad
        assert (
            refusal(lambda options=options: webhooks.set_mode(sim, options.pop("mode"), **options)).status
            == 400
        )
