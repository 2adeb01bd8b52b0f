"""docs/reference/api.md is made from the API's own OpenAPI document."""

import ast
import re
import shutil
import subprocess

import pytest

from api import reference


@pytest.fixture(scope="module")
def text() -> str:
    return reference.page(reference.document())


def test_the_page_is_fresh(text: str) -> None:
    assert reference.PAGE.read_text() == text, "run: .venv/bin/python -m api.reference --write"


def test_every_route_has_an_example_in_each_language(text: str) -> None:
    routes = text.count("\n## ")
    assert routes >= 5
    for language in ("sh", "python", "js"):
        assert text.count(f"\n```{language}\n") == routes
    assert "\n## POST /v1/chat/completions\n" in text
    assert "/admin/v1" not in text


def test_only_routes_with_security_are_given_a_secret(text: str) -> None:
    openapi = reference.document()
    for section in text.split("\n## ")[1:]:
        method, path = section.partition("\n")[0].split()
        operation = openapi["paths"][path][method.lower()]
        assert bool(operation.get("security")) == ("$PENSTOCK_" in section), f"{method} {path}"
    for route in ("POST /v1/sessions", "POST /v1/invitations/accept", "GET /healthz"):
        assert f"\n## {route}\n" in text


def examples(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_examples_are_valid(text: str) -> None:
    for example in examples(text, "python"):
        ast.parse(example)
    bash = shutil.which("bash")
    for example in examples(text, "sh") if bash else ():
        subprocess.run([bash, "-n", "-c", example], check=True)
