"""Money is integers: the lint finds floats in billing/, and would find new ones."""

import pytest

from tests.architecture import floats


@pytest.mark.promise(15)
def test_billing_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert floats.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "source",
    [
        "price = 0.5",
        "cost = float(x)",
        "def f(rate=1.5): ...",
        "call(amount=2.0)",
        "x = 3 * 1e-6",
        "a_s, b = 1.0, 2.0",
    ],
)
def test_a_float_is_found(source: str) -> None:
    assert len(list(floats.offences(source, "f.py"))) >= 1


@pytest.mark.parametrize(
    "source",
    [
        "TICK_S = 0.25",
        "self._timeout_s: float = 0.5",
        "def f(*, ttl_s: float = 60.0, n=3): ...",
        "call(timeout_s=0.5 * ttl)",
        "asyncio.sleep(0.05)",
        "def f(x: float) -> None: ...",
    ],
)
def test_a_duration_is_allowed(source: str) -> None:
    assert list(floats.offences(source, "f.py")) == []
