"""Largest-remainder shares in SQL: core/apportion.py over rows with a weight `work` and their sum `whole`."""


def floors(name: str) -> str:
    """Columns: the whole part and the remainder of the row's share of the amount `served_{name}`."""
    exact = f"served_{name} * work"
    return f"div({exact}, whole) AS {name}_floor, {exact} % whole AS {name}_rest"


def share(name: str, group: str, ties: str) -> str:
    """Column `{name}_share` over rows with `floors`: what is left goes to the largest remainders of each `group`.

    Equal remainders are served in the order of `ties`.
    """
    return f"""{name}_floor + CASE WHEN served_{name} - sum({name}_floor) OVER (PARTITION BY {group})
            >= row_number() OVER (PARTITION BY {group} ORDER BY {name}_rest DESC, {ties})
            THEN 1 ELSE 0 END AS {name}_share"""
