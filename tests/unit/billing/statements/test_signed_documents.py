"""Canonical JSON, signatures, tampering, the PDF."""

import io
import json
import math
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from pypdf import PdfReader

from billing.statements.canonical import MAX_INTEGER, canonical, parse
from billing.statements.pdf import render
from billing.statements.signing import KEY_FILE, Signer, document, key_id_of, load_signer, write_key
from billing.statements.sla_credits import credit_amount, misses_availability, nearest_rank
from billing.statements.verify import append_signature, read_keys, verify, verify_pair
from core.errors import InvalidRequest, Unavailable
from core.settings import Settings

SIGNER = Signer(bytes(range(32)))
KEYS = {SIGNER.key_id: SIGNER.public_key}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_canonical_json_is_json_and_its_own_canonical_form(value: Any) -> None:
    text = canonical(value)
    assert json.loads(text) == value
    assert parse(text) == value
    assert canonical(json.loads(text)) == text


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(0, 9), min_size=2, max_size=8),
    st.randoms(),
)
def test_the_order_of_keys_is_that_of_utf_16(value: dict[str, int], rng: Any) -> None:
    shuffled = list(value.items())
    rng.shuffle(shuffled)
    text = canonical(dict(shuffled))
    assert text == canonical(value)
    keys = [key for key, _ in json.loads(text, object_pairs_hook=list)]
    assert keys == sorted(value, key=lambda key: key.encode("utf-16-be"))


def test_the_examples_of_rfc_8785() -> None:
    assert canonical(
        {"\u20ac": "Euro Sign", "\r": "Carriage Return", "1": "One", "\U0001f600": "Emoji", "\ufb33": "x"}
    ) == (
        '{"\\r":"Carriage Return","1":"One","\u20ac":"Euro Sign","\U0001f600":"Emoji","\ufb33":"x"}'.encode()
    )
    assert canonical('\u20ac$\u000f\nA\'B"\\\\"/') == '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()


@pytest.mark.parametrize("value", [1.0, math.nan, 2**53, -(2**53), {1: 2}, {"a": b"x"}, "\ud800", object()])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        canonical(value)


@pytest.mark.parametrize(
    "text",
    [
        b"[1, 2]",
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b"1.0",
        b"1e2",
        b"NaN",
        b'"\\u0041"',
        b"[" * 10_000,
        b"\xff",
    ],
)
def test_other_spellings_of_the_same_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(text)


def body(**changes: Any) -> dict[str, Any]:
    line = {
        "project_id": "p",
        "project": "default",
        "model": "river-7b",
        "tier": "standard",
        "price_version": 3,
        "list_price_version": 1,
        "requests": "2",
        "classes": [
            {"class": "input", "tokens": "1234567", "price_per_mtok_usd": "0.50", "cost_usd": "0.6172835"},
            {"class": "output", "tokens": "89", "price_per_mtok_usd": "1.60", "cost_usd": "0.0001424"},
        ],
        "list_cost_usd": "0.70",
        "discount_usd": "0.0825741",
        "cost_usd": "0.6174259",
    }
    empty = {"opening_usd": "0.00", "movements": [], "closing_usd": "0.00"}
    facts = {
        "type": "penstock.statement",
        "version": 1,
        "currency": "USD",
        "tenant": {"id": "0198c0de-0000-7000-8000-000000000001", "name": "Acme"},
        "mode": "prepaid",
        "month": "2026-10",
        "period": {"start": "2026-10-01T00:00:00.000000Z", "end": "2026-11-01T00:00:00.000000Z"},
        "final": True,
        "revision": 1,
        "issued_at": "2026-11-03T00:00:00.000000Z",
        "usage": [line],
        "totals": {
            "requests": "2",
            "input_tokens": "1234567",
            "cached_input_tokens": "0",
            "output_tokens": "89",
            "reasoning_tokens": "0",
            "list_cost_usd": "0.70",
            "discount_usd": "0.0825741",
            "cost_usd": "0.6174259",
            "uncollectible_usd": "0.00",
        },
        "accounts": {
            "credit": {
                "opening_usd": "1.00",
                "movements": [{"kind": "usage", "bookings": "2", "amount_usd": "-0.6174259"}],
                "closing_usd": "0.3825741",
            },
            "receivable": empty,
            "invoiced": empty,
            "disputed": empty,
        },
        "lots": {"as_of": "2026-11-03T00:00:00.000000Z", "open": []},
        "adjustments": [],
        "invoice": None,
        "payments": [],
        "sla_credits": [],
    }
    return {**facts, **changes}


def signed(**changes: Any) -> tuple[bytes, bytes]:
    told = body(**changes)
    shown = render(told)
    signature = SIGNER.sign("penstock.statement", told, shown)
    return document(told, signature), append_signature(shown, signature)


PAPER, PDF = signed()


def test_what_was_signed_verifies_alone_and_together() -> None:
    assert verify(PAPER, KEYS).body == body()
    assert verify(PDF, KEYS).file == "pdf"
    for pair in ((PAPER, PDF), (PDF, PAPER)):
        assert verify_pair(*pair, KEYS).body == body()


@settings(max_examples=400)
@given(st.integers(0, len(PAPER) - 1), st.integers(1, 255))
def test_any_changed_byte_of_the_json_is_found(at: int, flip: int) -> None:
    changed = bytearray(PAPER)
    changed[at] ^= flip
    with pytest.raises(InvalidRequest):
        verify(bytes(changed), KEYS)


@settings(max_examples=400)
@given(st.integers(0, len(PDF) - 1), st.integers(1, 255))
def test_any_changed_byte_of_the_pdf_is_found(at: int, flip: int) -> None:
    changed = bytearray(PDF)
    changed[at] ^= flip
    with pytest.raises(InvalidRequest):
        verify(bytes(changed), KEYS)


@given(st.integers(0, len(PDF) - 1))
def test_a_file_that_was_cut_or_grew_is_found(length: int) -> None:
    for data in (PDF[:length], PAPER[: length % len(PAPER)], PDF + PDF[:1], PAPER + b"\n"):
        with pytest.raises(InvalidRequest):
            verify(data, KEYS)


def test_forgeries_are_told_what_is_wrong() -> None:
    forger = Signer(bytes(32))
    told = body(totals={**body()["totals"], "cost_usd": "0.01"})
    forged = document(told, forger.sign("penstock.statement", told))
    with pytest.raises(InvalidRequest, match="not among the 1 known"):
        verify(forged, KEYS)
    posing = {**forger.sign("penstock.statement", told), "key_id": SIGNER.key_id}
    with pytest.raises(InvalidRequest, match="does not belong"):
        verify(document(told, posing), KEYS)
    signature = json.loads(PAPER)["signature"]
    with pytest.raises(InvalidRequest, match="content was changed"):
        verify(document(told, signature), KEYS)
    with pytest.raises(InvalidRequest, match="another kind"):
        verify(document(body(), SIGNER.sign("penstock.receipt", body())), KEYS)
    with pytest.raises(InvalidRequest, match="another statement"):
        verify_pair(PAPER, signed(month="2026-09")[1], KEYS)
    with pytest.raises(InvalidRequest, match="one JSON file and one PDF"):
        verify_pair(PAPER, PAPER, KEYS)
    with pytest.raises(InvalidRequest, match="no signature"):
        verify(render(body()), KEYS)


def test_published_keys_are_read_and_nonsense_is_refused() -> None:
    published = json.dumps(
        {"keys": [{"key_id": SIGNER.key_id, "public_key": SIGNER.public_key.hex(), "alg": "Ed25519"}]}
    )
    assert read_keys(published.encode()) == KEYS
    for nonsense in (
        b"",
        b"{}",
        b"[]",
        b'{"keys":[{"key_id":"x"}]}',
        b'{"keys":[{"key_id":"x","public_key":"aa"}]}',
    ):
        with pytest.raises(InvalidRequest, match="keys file"):
            read_keys(nonsense)


def numbers(text: str) -> list[str]:
    return [word.replace(",", "").lstrip("$") for word in text.split()]


def test_the_pdf_says_what_the_json_says() -> None:
    text = " ".join(page.extract_text() for page in PdfReader(io.BytesIO(PDF)).pages)
    shown = numbers(text)
    told = json.loads(PAPER)["body"]
    expected = [told["totals"][name] for name in ("list_cost_usd", "discount_usd", "cost_usd", "requests")]
    for line in told["usage"]:
        expected += [
            value
            for one in line["classes"]
            for value in (one["tokens"], one["price_per_mtok_usd"], one["cost_usd"])
        ]
    credit = told["accounts"]["credit"]
    expected += [credit["opening_usd"], credit["closing_usd"], credit["movements"][0]["amount_usd"]]
    assert [value for value in expected if value not in shown] == []
    assert "DRAFT" not in text
    draft = PdfReader(io.BytesIO(render(body(final=False)))).pages[0].extract_text()
    assert "DRAFT" in draft


@pytest.mark.parametrize("name", ["Acme", "Ünïcode & Söhne", "Łódź Αθήνα Київ", "株式会社"])
def test_the_same_statement_is_the_same_pdf(name: str) -> None:
    told = body(tenant={"id": "x", "name": name})
    assert render(told) == render(told)
    if name != "株式会社":  # no font of ours has these letters; the JSON has the name
        assert name in PdfReader(io.BytesIO(render(told))).pages[0].extract_text()


def test_a_long_statement_goes_over_pages() -> None:
    line = body()["usage"][0]
    pages = PdfReader(io.BytesIO(render(body(usage=[line] * 100)))).pages
    assert len(pages) > 3
    assert f"Page {len(pages)} of {len(pages)}" in pages[-1].extract_text()


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    given = Settings.model_construct(data_dir=tmp_path / "state")
    first = load_signer(given)
    path = tmp_path / "state" / KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_signer(given).key_id == first.key_id == key_id_of(first.public_key)
    write_key(path, bytes(32), replace=False)
    assert load_signer(given).key_id == first.key_id
    write_key(path, bytes(32), replace=True)
    assert load_signer(given).key_id != first.key_id
    assert [one.name for one in path.parent.iterdir()] == [KEY_FILE]


def test_a_key_of_the_settings_wins_and_is_checked(tmp_path: Path) -> None:
    given = Settings.model_construct(data_dir=tmp_path, signing_key=SecretStr(bytes(range(32)).hex()))
    assert load_signer(given).key_id == SIGNER.key_id
    assert list(tmp_path.iterdir()) == []
    for wrong in ("secret-but-short", "G" * 64, "A" * 64):
        with pytest.raises(InvalidRequest) as caught:
            load_signer(Settings.model_construct(data_dir=tmp_path, signing_key=SecretStr(wrong)))
        assert wrong not in caught.value.message
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be used"):
        load_signer(Settings.model_construct(data_dir=tmp_path / "file" / "below"))


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.integers(1, 100))
def test_the_percentile_is_the_nearest_rank(values: list[int], percentile: int) -> None:
    found = sorted(values)[nearest_rank(percentile, len(values)) - 1]
    at_or_below = sum(value <= found for value in values)
    below = sum(value < found for value in values)
    assert at_or_below * 100 >= percentile * len(values)
    assert below * 100 < percentile * len(values)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 100_000))
def test_availability_is_exact(answered: int, more: int, thousandths: int) -> None:
    percent = f"{thousandths // 1000}.{thousandths % 1000:03d}"
    counted = answered + more
    assert misses_availability(answered, counted, percent) == (answered * 100_000 < thousandths * counted)


@given(st.integers(0, 10**24), st.integers(1, 100))
def test_a_credit_is_rounded_up_once(charged: int, percent: int) -> None:
    credit = credit_amount(charged, percent)
    assert 0 <= credit * 100 - charged * percent < 100
    assert credit <= charged
