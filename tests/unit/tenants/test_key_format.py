import string
from uuid import UUID

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tenants.key_format import (
    ALPHABET,
    cache_salt,
    checksum,
    has_tag,
    hash_key,
    new_key,
    parse_key,
    secret_kind,
)

PEPPER = b"pepper"
KINDS = st.sampled_from(["live", "test"])
BODIES = st.text(ALPHABET, min_size=32, max_size=32)


@given(KINDS)
def test_a_new_key_parses_and_says_its_kind(kind: str) -> None:
    key = new_key(kind, PEPPER)
    assert parse_key(key)
    assert secret_kind(key) == kind
    assert key.startswith(f"pen_{kind}_")
    assert len(key) == len("pen_live_") + 38
    assert set(key) <= set(string.ascii_letters + string.digits + "_")


def test_keys_do_not_repeat() -> None:
    assert len({new_key("live", PEPPER) for _ in range(1000)}) == 1000


@given(KINDS, BODIES)
def test_only_a_key_made_with_the_pepper_has_a_tag(kind: str, body: str) -> None:
    key = new_key(kind, PEPPER)
    assert has_tag(key, PEPPER)
    assert not has_tag(key, b"another pepper")
    whole = f"pen_{kind}_{body}"
    assert not has_tag(whole + checksum(whole), PEPPER)


def test_a_tag_is_stable() -> None:
    # A changed tag would have all keys refused.
    key = "pen_live_0123456789ABCDEFGHIJKLMN"
    assert has_tag(key + "3FndDyKU" + "......", b"pepper")


def test_an_admin_token_is_no_api_key() -> None:
    token = new_key("admin", PEPPER)
    assert secret_kind(token) == "admin"
    assert not parse_key(token)


@given(KINDS, BODIES)
def test_any_body_with_its_checksum_parses(kind: str, body: str) -> None:
    whole = f"pen_{kind}_{body}"
    assert len(checksum(whole)) == 6
    assert parse_key(whole + checksum(whole))


@given(KINDS, BODIES, st.integers(0, 46), st.sampled_from(ALPHABET + "_- \n\0é"))
def test_one_changed_character_is_noticed(kind: str, body: str, place: int, character: str) -> None:
    key = f"pen_{kind}_{body}" + checksum(f"pen_{kind}_{body}")
    changed = key[:place] + character + key[place + 1 :]
    assume(changed != key)
    # CRC-32 detects every burst of up to 32 bits, so every changed character.
    assert not parse_key(changed)


@given(KINDS, BODIES, st.integers(0, 46))
def test_a_truncated_key_is_noticed(kind: str, body: str, length: int) -> None:
    key = f"pen_{kind}_{body}" + checksum(f"pen_{kind}_{body}")
    assert not parse_key(key[:length])
    assert not parse_key(key + "A")
    assert not parse_key(" " + key)
    assert not parse_key(key + "\n")


@given(st.text())
@example("")
@example("pen_live_")
@example("pen_live_" + "\ud800" * 38)
@example("pen_live_" + "٣" * 38)
@example("pen_root_" + "0" * 38)
def test_any_text_is_parsed_and_hashed_without_an_error(text: str) -> None:
    assert secret_kind(text) is None
    assert len(hash_key(text, PEPPER)) == 32


@given(st.text(), st.text())
def test_hashes_differ_by_key_and_by_pepper(one: str, other: str) -> None:
    assume(one != other)
    assert hash_key(one, PEPPER) != hash_key(other, PEPPER)
    assert hash_key(one, PEPPER) != hash_key(one, b"another pepper")
    assert hash_key(one, PEPPER) == hash_key(one, PEPPER)


def test_the_hash_of_a_key_is_stable() -> None:
    # A changed hash would invalidate all stored keys.
    key = "pen_live_0123456789ABCDEFGHIJKLMNOPQRSTUV"
    assert checksum(key) == "2yNa03"
    assert hash_key(key + checksum(key), b"pepper").hex() == (
        "b37567bab19c20b85dbe7f072cfe757b1e81acca0c994c5a2bd553329b37d49a"
    )


@pytest.mark.promise(21)
@given(st.uuids(), st.uuids())
def test_salts_differ_by_tenant(one: UUID, other: UUID) -> None:
    assume(one != other)
    assert cache_salt(one, PEPPER) != cache_salt(other, PEPPER)
    assert cache_salt(one, PEPPER) == cache_salt(one, PEPPER)
    assert len(cache_salt(one, PEPPER)) == 44


def test_no_cache_salt_has_a_character_that_vllm_refuses() -> None:
    salts = "".join(cache_salt(UUID(int=number), PEPPER) for number in range(200))
    assert not set(salts) & set("/@+")
