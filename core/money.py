"""Exact money in integers of picodollars (1e-12 USD), never in floats.

A price of $0.50 per million tokens is 500,000 picodollars per token, so every list price in use is a whole number per
token and the cost of a request is a sum of integer products.
"""

from decimal import Decimal, Inexact, InvalidOperation, Overflow, localcontext

PICO_PER_USD = 10**12
PICO_PER_CENT = 10**10
TOKENS_PER_MTOK = 10**6
MAX_PICO = 10**38 - 1
"""The largest value of NUMERIC(38,0)."""


def usd_to_pico(text: str | Decimal) -> int:
    """Picodollars of a decimal dollar amount such as "12.50".

    Raises ValueError when it is not a finite number, has more than 12 decimals, or exceeds MAX_PICO either way.
    """
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"not a decimal amount of dollars: {text!r}") from None
    if not amount.is_finite():
        raise ValueError(f"not a finite amount of dollars: {text!r}")
    with localcontext() as context:
        # An amount with more digits is refused, because rounding could turn a price into 0.
        context.prec = 80
        context.traps[Inexact] = True
        try:
            pico = amount * PICO_PER_USD
            whole = pico == pico.to_integral_value()
        except Overflow:
            raise ValueError(f"dollar amount out of range: {text!r}") from None
        except Inexact:
            whole = False
        if not whole:
            raise ValueError(f"more than 12 decimals in a dollar amount: {text!r}")
    if pico.adjusted() > len(str(MAX_PICO)) or abs(value := int(pico)) > MAX_PICO:
        raise ValueError(f"dollar amount out of range: {text!r}")
    return value


def pico_to_usd(pico: int) -> str:
    """The exact decimal dollars of `pico`, with no exponent and no trailing zeros beyond two decimals."""
    sign = "-" if pico < 0 else ""
    whole, rest = divmod(abs(pico), PICO_PER_USD)
    decimals = f"{rest:012d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"


def per_mtok_to_pico_per_token(text: str | Decimal) -> int:
    """Picodollars per token of a price in dollars per million tokens, such as "0.50".

    Raises ValueError when it is negative or not a whole number of picodollars per token.
    """
    per_mtok = usd_to_pico(text)
    if per_mtok < 0:
        raise ValueError(f"a price cannot be negative: {text!r}")
    price, rest = divmod(per_mtok, TOKENS_PER_MTOK)
    if rest:
        raise ValueError(f"more than 6 decimals in a price per million tokens: {text!r}")
    return price


def pico_per_token_to_per_mtok(price: int) -> str:
    """Decimal dollars per million tokens of a price in picodollars per token."""
    return pico_to_usd(price * TOKENS_PER_MTOK)


def round_to_cents(pico: int) -> int:
    """Whole cents of `pico`, half away from zero. Only invoice lines are rounded."""
    cents = (abs(pico) + PICO_PER_CENT // 2) // PICO_PER_CENT
    return cents if pico >= 0 else -cents


def ratio_per_mtok(pico: int, tokens: int) -> str | None:
    """Blended dollars per million tokens, rounded half up to picodollars; None without tokens."""
    if tokens <= 0:
        return None
    doubled = 2 * pico * TOKENS_PER_MTOK + tokens
    return pico_to_usd(doubled // (2 * tokens))
