"""Largest-remainder shares in SQL: core/apportion.py for rows with a weight `work` and the group's sum `whole`."""


def floors(name: str) -> str:
    """Columns `{name}_floor` and `{name}_rest`: quotient and remainder of the row's share of `served_{name}`."""
    exact = f"served_{name} * work"
    return f"div({exact}, whole) AS {name}_floor, {exact} % whole AS {name}_rest"


def share(name: str, group: str, ties: str) -> str:
    """Column `{name}_share` of rows with `floors`: the rest of a group goes to its largest remainders.

    `group` are the columns of the partition; `ties` order rows with equal remainders.
    """
    return f"""{name}_floor + CASE WHEN served_{name} - sum({name}_floor) OVER (PARTITION BY {group})
            >= row_number() OVER (PARTITION BY {group} ORDER BY {name}_rest DESC, {ties})
            THEN 1 ELSE 0 END AS {name}_share"""
