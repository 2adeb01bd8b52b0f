"""The page of the customer API names every error code that customers' routes answer with."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"
ELSEWHERE = {
    "conflict", "error", "missing_admin_token", "payment_required", "server_error", "waits_for_approval",
    "webhook_body", "called_off",
}  # fmt: skip
"""Codes of administration, of Stripe's webhooks, of failed responses' objects, and of classes that are not raised."""


def codes(source: str) -> set[str]:
    """The texts that a module gives as `code`: as an argument, or as a member of a class."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword(arg="code", value=ast.Constant(value=str(code))):
                found.add(code)
            case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str(code))):
                found.add(code)
            case ast.AnnAssign(target=ast.Name(id="code"), value=ast.Constant(value=str(code))):
                found.add(code)
            case ast.Dict(keys=keys, values=values):
                found |= {
                    value.value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and key.value == "code"
                    if isinstance(value, ast.Constant) and isinstance(value.value, str)
                }
    return found


def test_every_code_is_on_the_page() -> None:
    files = [
        *(ROOT / "gateway").rglob("*.py"), *(ROOT / "api").glob("*.py"), *(ROOT / "api" / "customer").glob("*.py"),
        *(ROOT / "tenants").glob("*.py"), ROOT / "core" / "errors.py",
    ]  # fmt: skip
    raised = set[str]().union(*(codes(file.read_text()) for file in files)) - ELSEWHERE - {""}
    assert {"engine_failed", "tokenizer_unavailable", "key_scope_denied"} <= raised
    page = PAGE.read_text()
    assert {code for code in raised if f"`{code}`" not in page} == set()


@pytest.mark.parametrize(
    "source", ['E("x", code="a")', 'code = "a"', 'code: str = "a"', 'facts = {"code": "a"}']
)
def test_a_code_is_found(source: str) -> None:
    assert codes(source) == {"a"}
