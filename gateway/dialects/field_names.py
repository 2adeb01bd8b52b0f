"""Names of fields in errors: the checks behind a dialect's parser name chat's fields, its callers know their own."""

import re

from core.errors import InvalidRequest, PenstockError

MESSAGES = r"\bmessages\[\d+\](?:\.[\w.\[\]]+)?|(?<=')messages(?=')|^messages$"
"""Chat's messages where they are named as a field, and not in a sentence about messages."""
TOOL = r"\btools\[(\d+)\]\.(?:function|custom)\."
"""What stands before a member of a tool."""


def named(field: str) -> str:
    """The pattern of a field whose name is also a word: quoted, or alone."""
    return rf"(?<=')(?:{field})(?=')|^(?:{field})$"


class FieldNames:
    """The names that a dialect has for fields of chat."""

    def __init__(self, *rules: tuple[str, str]) -> None:
        """`rules`: patterns of chat's fields and what stands for them here, applied in this order."""
        self._rules = tuple((re.compile(pattern), name) for pattern, name in rules)

    def of(self, text: str) -> str:
        """Return the field that stands for a field of chat; a sentence with such fields is changed in them."""
        for pattern, name in self._rules:
            text = pattern.sub(name, text)
        return text

    def in_error(self, error: PenstockError) -> PenstockError:
        """Return the error with this dialect's names, if the request is wrong in itself; others name no field."""
        return self.in_invalid(error) if isinstance(error, InvalidRequest) else error

    def in_invalid(self, error: InvalidRequest) -> InvalidRequest:
        """Return the error of the same class with this dialect's names."""
        return type(error)(
            self.of(error.message),
            code=error.code,
            param=self.of(error.param) if error.param else None,
            details=error.details,
            retry_after_s=error.retry_after_s,
        )
