"""Text that is safe to open in a spreadsheet."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def escape_formula(content: str) -> str:
    """`content` with a leading apostrophe when a spreadsheet would take it for a formula."""
    return f"'{content}" if content.startswith(_FORMULA_STARTS) else content
