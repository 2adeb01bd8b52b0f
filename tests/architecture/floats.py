"""Finds floats in billing/: money is integers. Seconds may be floats: names in _s (durations) and _at (instants).

Run as `python -m tests.architecture.floats` (part of `make check`).
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = ("_s", "_S", "_at")


def offences(source: str, file: str) -> Iterator[str]:
    """Every float literal, call of float() and conversion to it that is not a duration, as `file:line: what`."""
    tree = ast.parse(source)
    durations = set(_durations(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and node not in durations:
            yield f"{file}:{node.lineno}: float {node.value!r} where money is counted"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
            yield f"{file}:{node.lineno}: float() where money is counted"


def _durations(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes inside of a value that goes to a name ending in _s, or into a sleep."""
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        match node:
            case ast.Assign(targets=targets, value=value) if all(map(_is_seconds, targets)):
                values = [value]
            case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
                values = [value] if _is_seconds(target) else []
            case ast.keyword(arg=str(name), value=value) if name.endswith((*SECONDS, "timeout")):
                values = [value]
            case ast.Call(func=func, args=args) if ast.unparse(func) in ("asyncio.sleep", "asyncio.timeout"):
                values = list(args)
            case ast.Compare(left=left, comparators=others) if any(map(_is_seconds, (left, *others))):
                values = [left, *others]
            case ast.arguments():
                values = _second_defaults(node)
        for value in values:
            if value is not None:
                yield from ast.walk(value)


def _second_defaults(node: ast.arguments) -> list[ast.expr | None]:
    """Defaults of parameters whose name says seconds."""
    named = [*node.posonlyargs, *node.args]
    pairs = [*zip(named[len(named) - len(node.defaults) :], node.defaults, strict=True)]
    pairs += [(arg, value) for arg, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value]
    return [value for arg, value in pairs if arg.arg.endswith(SECONDS)]


def _is_seconds(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id.endswith(SECONDS)
    if isinstance(node, ast.Attribute):
        return node.attr.endswith(SECONDS)
    return isinstance(node, ast.Tuple) and all(map(_is_seconds, node.elts))


def main() -> int:
    """Print what is wrong in billing/ and core/money.py; 1 when there is anything."""
    files = [ROOT / "core" / "money.py", *sorted((ROOT / "billing").rglob("*.py"))]
    found = [line for file in files for line in offences(file.read_text(), str(file.relative_to(ROOT)))]
    print("\n".join(found) or "no floats where money is counted")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
