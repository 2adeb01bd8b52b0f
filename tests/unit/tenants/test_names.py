import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from tenants.names import check_password, clean_email, clean_models, clean_name, clean_reason, slug_of


@given(st.text())
@example("a\x00b")
@example("\ud800")
@example("a\u202eb")
@example("x" * 101)
@example(" " * 10_000)
@example("a\nb")
def test_a_name_is_clean_or_refused(text: str) -> None:
    try:
        name = clean_name(text)
    except InvalidRequest:
        return
    assert 1 <= len(name) <= 100
    assert name == name.strip()
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in name)
    name.encode("utf-8")
    assert clean_name(name) == name


@pytest.mark.parametrize("bad", ["", " ", "a\x00b", "a\tb", "x" * 101, "\u2066x", "a\u2028b", "\ud800"])
def test_bad_names_are_refused(bad: str) -> None:
    with pytest.raises(InvalidRequest):
        clean_name(bad)
    assert clean_reason("x" * 500) == "x" * 500


@pytest.mark.parametrize(
    ("name", "slug"),
    [("Acme Robotics", "acme-robotics"), ("  Zürich & Söhne ", "zurich-sohne"), ("A.B", "a-b")],
)
def test_short_names(name: str, slug: str) -> None:
    assert slug_of(name) == slug


def test_a_name_without_latin_letters_has_no_short_name() -> None:
    with pytest.raises(InvalidRequest, match="Latin"):
        slug_of("株式会社")


@pytest.mark.parametrize(
    "bad", ["", "ada", "ada@", "@example.com", "a b@example.com", "a@b\x00", "a@" + "b" * 300]
)
def test_bad_addresses_are_refused(bad: str) -> None:
    with pytest.raises(InvalidRequest):
        clean_email(bad)


def test_addresses_are_lower_case() -> None:
    assert clean_email(" Ada@Example.COM ") == "ada@example.com"


@pytest.mark.parametrize("bad", ["", "short", "x" * 257, "long enough\x00 but"])
def test_bad_passwords_are_refused_without_being_repeated(bad: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_password(bad)
    assert not bad or bad not in caught.value.message


def test_model_lists() -> None:
    assert clean_models(None) is None
    assert clean_models(["b/x", "a", "a"]) == ["a", "b/x"]
    served = ["/models/Qwen3-8B-Q4_K_M.gguf", "llama3.2:latest", "meta-llama/Llama-3.1-8B", "sql_lora@v2"]
    assert clean_models(served) == served
    for bad in ([], ["a"] * 101, [""], ["a b"], ["a\x00"], ["a,b"], ["-a"], ["x" * 201]):
        with pytest.raises(InvalidRequest):
            clean_models(bad)
