"""The page on promises lists the tests that carry their markers."""

import pytest

from tests.architecture import promises


def test_the_page_lists_the_tests_of_each_promise() -> None:
    """A failure here means that `python -m tests.architecture.promises --write` has not been run."""
    text = promises.PAGE.read_text()
    assert promises.page(text) == text


def test_promises_without_a_test_are_named() -> None:
    missing = [str(number) for number, tests in promises.found().items() if not tests]
    assert f"Promises without a test: {', '.join(missing) or 'none'}." in promises.PAGE.read_text()


def test_a_number_that_is_no_promise_is_refused() -> None:
    function = promises.ast.parse("@pytest.mark.promise(31)\ndef test_x(): ...").body[0]
    assert isinstance(function, promises.ast.FunctionDef)
    with pytest.raises(KeyError, match="no promise 31"):
        promises._numbers(function)
