"""Every repository function that touches a table with a tenant_id is scoped to a tenant, or says that it is not.

The first wall between organisations is the code's own (row-level security is the second). In the files that hold SQL
of tenancy and billing, a function that names such a table must also name `tenant_id` (as a parameter, a column or in
its SQL), or carry the mark `@platform_wide("why")`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from migrations.support import load_tables

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tenants", "billing")
SKIPPED = {"tables.py", "views.py"}


def tenant_tables() -> frozenset[str]:
    """Names of the tables with a tenant_id, and `tenants` itself."""
    scoped = {table.name for table in load_tables().tables.values() if "tenant_id" in table.c}
    return frozenset(scoped | {"tenants"})


TABLES = tenant_tables()
IN_SQL = re.compile(
    rf"\b(?:from|join|into|update|table|truncate)\s+(?:only\s+)?(?:{'|'.join(sorted(TABLES))})\b",
    re.IGNORECASE,
)


def constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Module-level names and what they are bound to: queries are often written there."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


def reach(node: ast.AST, known: dict[str, ast.expr], seen: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """Every node of a function and of the module constants it uses."""
    for child in ast.walk(node):
        yield child
        if isinstance(child, ast.Name) and child.id in known and child.id not in seen:
            yield from reach(known[child.id], known, seen | {child.id})


def imported(tree: ast.Module) -> frozenset[str]:
    """Names under which a file knows tables of tenants; a local variable called `limits` is none."""
    return frozenset(
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("tables")
        for alias in node.names
        if alias.name in TABLES
    )


def touches(nodes: list[ast.AST], names: frozenset[str]) -> bool:
    """Whether a tenant's table is used: `table.c.x`, `select(table...)`, `insert(table)` or its name in SQL."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "c" and _is_table(node.value, names):
            return True
        if isinstance(node, ast.Call) and any(_is_table(argument, names) for argument in node.args):
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and IN_SQL.search(node.value):
            return True
    return False


def _is_table(node: ast.AST, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tables":
        return node.attr in TABLES
    return isinstance(node, ast.Name) and node.id in names


def scoped(function: ast.AST, nodes: list[ast.AST]) -> bool:
    """Whether the function names tenant_id, or is `tenants` by its own id, or is marked as platform-wide."""
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if getattr(called, "id", getattr(called, "attr", "")) == "platform_wide":
            return True
    # Its own words only: a list of columns shared by the file scopes nothing.
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == "tenant_id":
            return True
        if isinstance(node, ast.Attribute | ast.keyword | ast.arg):
            name = node.attr if isinstance(node, ast.Attribute) else node.arg
            if name == "tenant_id":
                return True
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            sql = IN_SQL.search(node.value) is not None
            if sql and re.search(r"\btenant_id\b", node.value):
                return True
    return False


def offenders(source: str) -> list[str]:
    """Functions of a file that touch a tenant's table without a scope."""
    tree = ast.parse(source)
    known, names = constants(tree), imported(tree)
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(function, clean=False)
        nodes = [
            node
            for node in reach(function, known)
            if not (isinstance(node, ast.Constant) and node.value == docstring)
        ]
        if touches(nodes, names) and not scoped(function, nodes):
            found.append(function.name)
    return found


IMPORT = "from tenants.tables import api_keys, users\n"

FILES = [
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name not in SKIPPED
]


@pytest.mark.promise(23)
@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_query_on_a_tenants_table_is_scoped(path: Path) -> None:
    names = offenders((ROOT / path).read_text())
    assert not names, (
        f"{path}: {', '.join(names)} use a table with a tenant_id and do not name it; "
        'scope the query, or mark the function with @platform_wide("why") from tenants.scoping'
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (IMPORT + "def f(c): return select(api_keys.c.id)", ["f"]),
        ("async def f(c): await c.execute(text('SELECT * FROM projects WHERE id = 1'))", ["f"]),
        ("async def f(c): await c.execute(text('delete from\\n  limits'))", ["f"]),
        ("Q = text('SELECT * FROM api_keys')\ndef f(c): return c.execute(Q)", ["f"]),
        ("def f(c): return insert(tables.projects)", ["f"]),
        (
            IMPORT
            + "def f(c, tenant_id): return select(api_keys.c.id).where(api_keys.c.tenant_id == tenant_id)",
            [],
        ),
        ("Q = text('SELECT * FROM api_keys WHERE tenant_id = $1')\ndef f(c, t): return c.execute(Q)", []),
        (IMPORT + "@platform_wide('all of them')\ndef f(c): return select(api_keys.c.id)", []),
        (IMPORT + "def f(c): return select(users.c.id)", []),
        (IMPORT + "COLUMNS = (api_keys.c.tenant_id,)\ndef f(c): return select(*COLUMNS)", ["f"]),
        ("def f(limits): return shown(limits)", []),
        ("from tenants.tables import limits as l\ndef f(c): return select(l)", ["f"]),
        ("def f(c):\n  'Rows from projects.'\n  return 1", []),
    ],
)
def test_the_lint_finds_what_it_should(source: str, found: list[str]) -> None:
    assert offenders(source) == found
