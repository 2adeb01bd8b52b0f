"""Which tests prove which promise (docs/promises.md): reads `@pytest.mark.promise(n)` from the tests' source.

`python -m tests.architecture.promises` lists every test by promise; with --write it renews the table on the page.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "promises.md"
BEGIN, END = "<!-- tests: begin -->", "<!-- tests: end -->"
PROMISES = {
    1: "Every admitted request has exactly one usage row.",
    2: "The ledger balances, is append-only, and its seals verify.",
    3: "A prepaid balance never falls below zero, whatever requests run at once.",
    4: "A hold is resolved exactly once.",
    5: "No crash leaks a hold for longer than its TTL plus 60 s; no live stream loses its hold.",
    6: "When a client disconnects, the engine stops within 2 s; delivered <= billed <= generated tokens.",
    7: "When any process is killed, at most 1 s of usage is lost (of an answer asked for in one piece, its output), "
    "nothing is billed beyond what was generated, and engine failures and empty answers cost nothing.",
    8: "The same holds without streaming; an answer asked for in one piece whose client left costs at most its "
    "prompt.",
    9: "When Redis is lost or emptied, no money changes and a small local limit applies.",
    10: "When PostgreSQL is away for 5 minutes, no unpaid work is admitted; running streams finish and settle once.",
    11: "Every job may run twice.",
    12: "Every Stripe event is applied once; missed events are found.",
    13: "Clock skew or a full disk never corrupts money.",
    14: "Stripe equals the ledger.",
    15: "Money is exact and rounded once.",
    16: "One request has one price version.",
    17: "Closed periods never change.",
    18: "Only allow-listed fields reach engines.",
    19: "All sizes are capped.",
    20: "No user-directed fetches: nothing in a request makes the platform fetch an address, and webhooks reach public "
    "addresses only.",
    21: "The prefix cache is isolated by tenant.",
    22: "Engines are unreachable from outside.",
    23: "No route gives access across tenants.",
    24: "Cancellation never crosses responses and leaks no connection.",
    25: "API keys are never stored or logged in clear text.",
    26: "A revocation takes effect within 5 s, on open streams too.",
    27: "No person raises their own role or moves to another tenant.",
    28: "Hostile input gets a 4xx answer with bounded memory.",
    29: "Slow readers and overload affect only those who cause them.",
    30: "Only locked and audited packages are installed.",
}


def found() -> dict[int, list[str]]:
    """Tests by promise, as `path::function`, in the order of paths and lines."""
    tests: dict[int, list[str]] = {number: [] for number in PROMISES}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in _numbers(node):
                    tests[number].append(f"{path.relative_to(ROOT)}::{node.name}")
    return tests


def _numbers(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    """Of `@pytest.mark.promise(1, 2)`. Raises KeyError for a number that is no promise."""
    numbers = []
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise":
            for argument in decorator.args:
                number = ast.literal_eval(argument)
                if number not in PROMISES:
                    raise KeyError(f"{function.name}: there is no promise {number!r}")
                numbers.append(number)
    return numbers


def table() -> str:
    """The generated part of the page."""
    lines = ["| | promise | tests |", "|---:|---|---|"]
    missing = []
    for number, tests in found().items():
        files = Counter(test.partition("::")[0] for test in tests)
        shown = "<br>".join(f"`{path}` ({count})" for path, count in files.items())
        lines.append(f"| {number} | {PROMISES[number]} | {shown or '**none**'} |")
        if not tests:
            missing.append(str(number))
    return "\n".join([*lines, "", f"Promises without a test: {', '.join(missing) or 'none'}."])


def page(text: str) -> str:
    """`text` of the page with the generated part renewed."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    if "--write" in sys.argv:
        PAGE.write_text(page(PAGE.read_text()))
    for number, tests in found().items():
        print(f"{number}. {PROMISES[number]}", *(tests or ["no test"]), sep="\n     ")


if __name__ == "__main__":
    main()
