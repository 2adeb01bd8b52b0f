"""Errors of FastAPI's routes are in our own words and name the field."""

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from api.invalid_requests import invalid_request


class Inner(BaseModel):
    size: int = Field(default=1, ge=1, lt=10)


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(min_length=1, max_length=5)]
    mode: Literal["a", "b"] = "a"
    code: str = Field(default="A", pattern="^[A-Z]+$")
    ratio: float = Field(default=0.5, gt=0, le=1)
    flag: bool = False
    tags: list[str] = Field(default=[], max_length=1)
    inner: Inner | None = None
    owner: UUID | None = None
    at: datetime | None = None
    day: date | None = None
    amount: Decimal | None = None
    text: str = ""

    @field_validator("text")
    @classmethod
    def _clean(cls, value: str) -> str:
        if "x" in value:
            raise ValueError("the text contains an x")
        return value


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "name", "'name' is missing; add it."),
        ({"name": ""}, "name", "'name' must have at least 1 characters."),
        ({"name": "toolong"}, "name", "'name' may have at most 5 characters."),
        ({"name": 3}, "name", "'name' must be a text."),
        ({"mode": "c"}, "mode", "'mode' must be one of 'a' or 'b'."),
        ({"code": "a"}, "code", "'code' must match the regular expression '^[A-Z]+$'."),
        ({"ratio": 0}, "ratio", "'ratio' must be more than 0.0."),
        ({"ratio": 2}, "ratio", "'ratio' may be at most 1.0."),
        ({"flag": "perhaps"}, "flag", "'flag' must be true or false."),
        ({"tags": ["a", "b"]}, "tags", "'tags' may have at most 1 entries."),
        ({"tags": 3}, "tags", "'tags' must be a list."),
        ({"inner": {"size": 0}}, "inner.size", "'inner.size' must be at least 1."),
        ({"inner": {"size": 10}}, "inner.size", "'inner.size' must be less than 10."),
        ({"inner": {"size": "many"}}, "inner.size", "'inner.size' must be an integer."),
        ({"inner": 3}, "inner", "'inner' must be an object."),
        ({"owner": "me"}, "owner", "'owner' must be a UUID."),
        ({"at": "noon"}, "at", "'at' must be a time such as 2026-01-31T12:00:00Z."),
        ({"day": "x"}, "day", "'day' must be a date such as 2026-01-31."),
        ({"amount": "much"}, "amount", "'amount' must be a decimal number."),
        ({"text": "x"}, "text", "'text': the text contains an x."),
        ({"more": 1}, "more", "'more' is not a known field; leave it out."),
    ],
)
def test_the_field_and_what_it_must_be_are_named(body: dict[str, Any], param: str, message: str) -> None:
    given = body if not body or "name" in body else {"name": "me", **body}
    with pytest.raises(ValidationError) as wrong:
        Body.model_validate(given)
    errors = [{**each, "loc": ("body", *each["loc"])} for each in wrong.value.errors()]
    found = invalid_request(errors)
    assert (found.param, found.message) == (param, message)


@pytest.mark.parametrize(
    ("error", "param", "message"),
    [
        (
            {"type": "json_invalid", "loc": ("body", 7), "ctx": {"error": "x"}},
            None,
            "The body is not valid JSON.",
        ),
        ({"type": "missing", "loc": ("body",)}, None, "The body is missing; add it."),
        ({"type": "url_scheme", "loc": ("query", "to"), "msg": "pydantic's"}, "to", "'to' is not valid."),
    ],
)
def test_what_is_no_field(error: dict[str, Any], param: str | None, message: str) -> None:
    found = invalid_request([error])
    assert (found.param, found.message) == (param, message)
