"""What the OpenAPI documents say of every route."""

from typing import Any

import pytest

from api import openapi_refusals
from api.reference import document

OPEN = (
    "/v1/sessions", "/v1/second-factor", "/v1/invitations/accept", "/.well-known/", "/llms.txt", "/health", "/readyz",
)  # fmt: skip
"""Routes without a credential, by their beginnings."""


@pytest.fixture(scope="module")
def operations() -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    }


def test_no_route_answers_with_fastapis_status_of_an_invalid_request(
    operations: dict[str, dict[str, Any]],
) -> None:
    assert operations
    assert not [name for name, operation in operations.items() if "422" in operation["responses"]]


def test_every_route_that_needs_a_credential_says_so(operations: dict[str, dict[str, Any]]) -> None:
    without = [name for name, operation in operations.items() if not operation.get("security")]
    assert without
    assert all(name.partition(" ")[2].startswith(OPEN) for name in without)
    for name, operation in operations.items():
        assert ("401" in operation["responses"]) >= (name not in without), name


def test_what_any_route_may_refuse_is_documented(operations: dict[str, dict[str, Any]]) -> None:
    for name, operation in operations.items():
        statuses = operation["responses"].keys()
        assert {"400", "415", "503"} <= statuses, name
        assert "429" in statuses or "health" in operation["tags"], name
        assert "{" not in name or "404" in statuses, name
        assert "requestBody" not in operation or {"408", "413"} <= statuses, name


def test_a_route_keeps_what_it_states_itself() -> None:
    stated = {"description": "Own.", "content": {}}
    made = {"responses": {"200": {}, "429": stated, "422": {}}, "security": [{"x": []}]}
    openapi_refusals.add({"paths": {"/v1/things/{id}": {"get": made}}})
    assert made["responses"]["429"] is stated  # type: ignore[index]
    assert set(made["responses"]) == {"200", "400", "401", "403", "404", "415", "429", "503"}


def test_a_statement_is_json_or_pdf(operations: dict[str, dict[str, Any]]) -> None:
    answer = operations["GET /v1/organization/statements/{month}"]["responses"]["200"]
    assert answer["content"].keys() == {"application/json", "application/pdf"}
