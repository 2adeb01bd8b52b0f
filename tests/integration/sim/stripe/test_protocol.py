"""Keys, errors, failures on demand, pages of lists, expansion, authentication, restarts."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import stripe

from tests.support.stripe_sim import API_KEY, FakeStripe, running

PAYMENT: Any = {"amount": 2000, "currency": "usd", "payment_method": "pm_card_visa", "confirm": True}


def post(fake: FakeStripe, path: str, data: Any = None, **headers: str) -> httpx.Response:
    return httpx.post(fake.url + path, data=data, headers={"Authorization": f"Bearer {API_KEY}", **headers})


def test_the_same_key_gives_the_same_answer_once(
    fake_stripe: FakeStripe, client: stripe.StripeClient
) -> None:
    first = post(fake_stripe, "/v1/customers", {"name": "a"}, **{"Idempotency-Key": "k1"})
    again = post(fake_stripe, "/v1/customers", {"name": "a"}, **{"Idempotency-Key": "k1"})
    assert again.json() == first.json()
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["request-id"] != first.headers["request-id"]
    assert len(client.v1.customers.list().data) == 1
    with pytest.raises(stripe.IdempotencyError) as error:
        client.v1.customers.create({"name": "b"}, {"idempotency_key": "k1"})
    assert error.value.http_status == 400
    fake_stripe.advance(86_401)
    assert client.v1.customers.create({"name": "b"}, {"idempotency_key": "k1"}).id != first.json()["id"]


def test_a_decline_and_a_500_are_replayed_and_a_wrong_parameter_is_not(
    fake_stripe: FakeStripe, client: stripe.StripeClient
) -> None:
    declined = PAYMENT | {"payment_method": "pm_card_chargeDeclined"}
    for _ in range(2):
        with pytest.raises(stripe.CardError) as error:
            client.v1.payment_intents.create(declined, {"idempotency_key": "k1"})
        assert error.value.code == "card_declined"
    assert len(client.v1.charges.list().data) == 1

    fake_stripe.fail("500_after", path="/v1/payment_intents")
    for _ in range(2):
        with pytest.raises(stripe.APIError):
            client.v1.payment_intents.create(PAYMENT, {"idempotency_key": "k2"})
    assert len(client.v1.charges.list().data) == 2

    with pytest.raises(stripe.InvalidRequestError):
        client.v1.customers.create({"nome": "a"}, {"idempotency_key": "k3"})  # type: ignore[typeddict-unknown-key]
    assert client.v1.customers.create({"name": "a"}, {"idempotency_key": "k3"}).name == "a"


async def test_the_same_key_at_the_same_time_is_a_conflict(fake_stripe: FakeStripe) -> None:
    fake_stripe.fail("hold", path="/v1/customers")
    headers = {"Authorization": f"Bearer {API_KEY}", "Idempotency-Key": "k1"}
    async with httpx.AsyncClient(base_url=fake_stripe.url, headers=headers) as http:
        first = asyncio.create_task(http.post("/v1/customers", data={"name": "a"}))
        counters: dict[str, int] = {}
        while "faults hold" not in counters:
            counters = (await http.get("/_sim/counts")).json()["counters"]
        second = await http.post("/v1/customers", data={"name": "a"})
        assert second.status_code == 409
        assert second.json()["error"]["type"] == "idempotency_error"
        await http.post("/_sim/faults/release")
        assert (await first).status_code == 200
        assert (await http.post("/v1/customers", data={"name": "a"})).json() == (await first).json()


def test_rate_limit_says_when_to_come_back(fake_stripe: FakeStripe, client: stripe.StripeClient) -> None:
    fake_stripe.fail("429", retry_after=7, times=2, skip=1)
    client.v1.customers.list()
    for _ in range(2):
        with pytest.raises(stripe.RateLimitError) as error:
            client.v1.customers.create({}, {"idempotency_key": "k1"})
        assert error.value.headers["retry-after"] == "7"
    client.v1.customers.create({}, {"idempotency_key": "k1"})


@pytest.mark.parametrize(
    ("kind", "effects"), [("reset", 0), ("reset_after", 1), ("500", 0), ("500_after", 1)]
)
def test_failures_before_and_after_the_effect(
    fake_stripe: FakeStripe, client: stripe.StripeClient, kind: str, effects: int
) -> None:
    fake_stripe.fail(kind, method="POST")
    with pytest.raises((stripe.APIConnectionError, stripe.APIError)):
        client.v1.payment_intents.create(PAYMENT)
    assert len(client.v1.charges.list().data) == effects
    assert fake_stripe.control("DELETE", "/faults") == {"removed": 0}


def test_a_timeout_after_success_is_healed_by_the_key(fake_stripe: FakeStripe) -> None:
    fake_stripe.fail("timeout", path="/v1/payment_intents")
    impatient = stripe.RequestsClient(timeout=0.5)
    lost = fake_stripe.client(max_network_retries=0, http_client=impatient)
    with pytest.raises(stripe.APIConnectionError):
        lost.v1.payment_intents.create(PAYMENT, {"idempotency_key": "k1"})
    patient = fake_stripe.client()
    assert patient.v1.payment_intents.create(PAYMENT, {"idempotency_key": "k1"}).status == "succeeded"
    assert len(patient.v1.charges.list().data) == 1


def test_the_client_retries_a_cut_connection_without_paying_twice(fake_stripe: FakeStripe) -> None:
    fake_stripe.fail("reset_after", path="/v1/payment_intents")
    client = fake_stripe.client(max_network_retries=2)
    assert client.v1.payment_intents.create(PAYMENT).status == "succeeded"
    assert len(client.v1.charges.list().data) == 1


def refused(fake: FakeStripe, path: str, data: Any) -> tuple[int, Any, Any]:
    answer = post(fake, path, data)
    error = answer.json()["error"]
    assert error["message"]
    assert error["type"]
    return answer.status_code, error.get("code"), error.get("param")


@pytest.mark.parametrize(
    ("path", "data", "expected"),
    [
        ("/v1/customers", {"colour": "red"}, (400, "parameter_unknown", "colour")),
        ("/v1/customers", {"address[planet]": "x"}, (400, "parameter_unknown", "address[planet]")),
        ("/v1/customers", {"cash_balance[settings][reconciliation_mode]": "manual"},
         (400, "not_simulated", "cash_balance")),
        ("/v1/payment_intents", {"currency": "usd"}, (400, "parameter_missing", "amount")),
        ("/v1/payment_intents", {"amount": "1.5", "currency": "usd"}, (400, "parameter_invalid_integer", "amount")),
        ("/v1/payment_intents", {"amount": "49", "currency": "usd"}, (400, "amount_too_small", "amount")),
        ("/v1/payment_intents", {"amount": "500", "currency": "eur"}, (400, None, "currency")),
        ("/v1/payment_intents", {"amount": "500", "currency": "usd", "customer": "cus_x"},
         (404, "resource_missing", "customer")),
        ("/v1/invoices", {}, (400, "parameter_missing", "customer")),
        ("/v1/customers", {"metadata[k]": "v" * 501}, (400, None, "metadata[k]")),
        ("/v1/customers", {"a[": "x"}, (400, None, None)),
        ("/v1/customers", {"metadata": "x", "metadata[a]": "b"}, (400, None, None)),
        ("/v1/unicorns", {}, (404, None, None)),
    ],
)  # fmt: skip
def test_bad_requests(fake_stripe: FakeStripe, path: str, data: Any, expected: Any) -> None:
    assert refused(fake_stripe, path, data) == expected


def test_who_may_ask(fake_stripe: FakeStripe) -> None:
    url = f"{fake_stripe.url}/v1/customers"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer sk_test_other"}).status_code == 401
    assert httpx.get(url, auth=(API_KEY, "")).status_code == 200
    assert httpx.get(f"{fake_stripe.url}/healthz").json()["simulated"] is True


def test_a_body_without_end_is_refused(fake_stripe: FakeStripe) -> None:
    body = b"name=" + b"x" * (4 * 2**20)
    headers = {"Authorization": f"Bearer {API_KEY}"}
    assert httpx.post(f"{fake_stripe.url}/v1/customers", content=body, headers=headers).status_code == 413


def test_pages(client: stripe.StripeClient) -> None:
    made = [client.v1.customers.create({"name": str(number)}).id for number in range(7)]
    newest_first = made[::-1]
    assert [each.id for each in client.v1.customers.list({"limit": 3}).auto_paging_iter()] == newest_first
    page = client.v1.customers.list({"limit": 2, "starting_after": newest_first[2]})
    assert [each.id for each in page.data] == newest_first[3:5]
    assert page.has_more
    before = client.v1.customers.list({"limit": 2, "ending_before": newest_first[3]})
    assert [each.id for each in before.data] == newest_first[1:3]
    for bad in ({"limit": 0}, {"limit": 101}, {"starting_after": "cus_none"}):
        with pytest.raises(stripe.InvalidRequestError):
            client.v1.customers.list(bad)  # type: ignore[arg-type]


def test_expansion(client: stripe.StripeClient) -> None:
    intent = client.v1.payment_intents.create(PAYMENT | {"expand": ["latest_charge"]})
    charge = client.v1.charges.list({"expand": ["data.balance_transaction", "data.payment_intent"]}).data[0]
    assert intent.latest_charge == client.v1.charges.retrieve(charge.id)
    assert charge.balance_transaction.net == 2000 - 88  # type: ignore[union-attr]
    assert charge.payment_intent.id == intent.id  # type: ignore[union-attr]
    for bad in (["amount"], ["nothing"], ["latest_charge.nothing"]):
        with pytest.raises(stripe.InvalidRequestError, match="cannot be expanded"):
            client.v1.payment_intents.retrieve(intent.id, {"expand": bad})


def test_a_restart_loses_nothing_and_repeats_no_id(tmp_path: Path) -> None:
    path = tmp_path / "stripe.jsonl"
    with running(path=path) as fake:
        client = fake.client()
        customer = client.v1.customers.create({"name": "a"}, {"idempotency_key": "k1"})
        session = client.v1.checkout.sessions.create(
            {"mode": "setup", "customer": customer.id, "success_url": "https://x.test/{CHECKOUT_SESSION_ID}"}
        )
        client.v1.payment_intents.create(PAYMENT | {"customer": customer.id})
        fake.advance(1000)
        before = fake.sim.store.dump()
    with path.open("ab") as file:
        file.write(b'["customer", "cus_torn')  # killed while it wrote
    with running(path=path) as fake:
        found = fake.sim.store.dump()
        assert {kind: list(rows) for kind, rows in found.items()} == {
            kind: list(rows) for kind, rows in before.items()
        }
        assert fake.sim.offset == 1000
        client = fake.client()
        assert client.v1.customers.create({"name": "a"}, {"idempotency_key": "k1"}).id == customer.id
        assert client.v1.customers.create({"name": "b"}).id not in str(before)
        again = client.v1.checkout.sessions.retrieve(session.id)
        assert again.url == f"{fake.url}/pay/{session.id}"
        assert fake.pay(session.id).headers["location"] == f"https://x.test/{session.id}"
        fake.advance(3 * 86_400)
        assert {each.status for each in client.v1.balance_transactions.list().data} == {"available"}


def test_reset_forgets_all_but_the_endpoints(fake_stripe: FakeStripe, client: stripe.StripeClient) -> None:
    fake_stripe.send_webhooks("http://127.0.0.1:9/none")
    client.v1.payment_intents.create(PAYMENT)
    fake_stripe.control("POST", "/reset")
    assert set(fake_stripe.control("GET", "/counts")["objects"]) <= {"webhook_endpoint", "counter", "account"}
    client.v1.payment_intents.create(PAYMENT)
