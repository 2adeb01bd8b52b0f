"""Functions, views and triggers: the files `*/sql/*.sql` beside the packages that own them are their present text.

Revisions make tables. After the last revision, and in the same transaction, `apply` brings the functions, views and
triggers of the database to the text of the files: it applies the files whose checksum differs from the recorded one
and those of which an object is missing, and drops what no file defines any more.

What a file may hold:

* CREATE OR REPLACE FUNCTION, VIEW or TRIGGER. A name belongs to one file, and functions are not overloaded.
* GRANT and REVOKE on the functions and views of the same file. Before them, the privileges of PUBLIC and of our two
  roles go back to PostgreSQL's default.

Functions are created first, in any order and unchecked, then views, then triggers. At the end PostgreSQL's validators
check the bodies of all functions. Hence no function may take or return the row type of a view.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from sqlalchemy import Column, Connection, DateTime, Table, Text, delete, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.exc import DBAPIError

from core.db import APP_ROLE, SYSTEM_ROLE, metadata
from migrations.support import split_statements

ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("core", "tenants", "workers", "scheduler", "billing")

_COMMENTS = re.compile(r"\A(?:\s*--[^\n]*(?:\n|\Z))*\s*")
_OBJECT = re.compile(
    r"CREATE OR REPLACE (?:(FUNCTION|VIEW) (\w+)(?=[\s(])|(TRIGGER) (\w+)\s.*?\sON (\w+)\s)", re.DOTALL
)
_PRIVILEGE = re.compile(r"(?:GRANT|REVOKE)\s[\w\s,]+\sON (?:FUNCTION )?(\w+) (?:TO|FROM)\s")
_KINDS = ("FUNCTION", "VIEW", "TRIGGER")
_OTHER_SIGNATURE = {"42P13", "42P16"}
"""SQLSTATEs of CREATE OR REPLACE where the new function or view cannot take the place of the old one: another result
type or other parameter names (invalid_function_definition), other columns (invalid_table_definition)."""

schema_sql_files = Table(
    "schema_sql_files",
    metadata,
    Column("path", Text, primary_key=True),
    Column("sha256", Text, nullable=False),
    Column("objects", ARRAY(Text), nullable=False),
    Column("applied_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)
"""The files as they were last applied, with the objects that they defined."""


@dataclass(frozen=True, order=True)
class SqlObject:
    """A function or view by its name; a trigger by `name ON table`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @classmethod
    def parse(cls, written: str) -> "SqlObject":
        """The inverse of `str`."""
        kind, _, name = written.partition(" ")
        return cls(kind, name)


@dataclass(frozen=True)
class SqlFile:
    """One file: its path below the root, its checksum, the statement of each object, and its grants in order."""

    path: str
    sha256: str
    objects: dict[SqlObject, str]
    grants: tuple[str, ...]


class SqlFileError(ValueError):
    """A file holds a statement that it may not hold, or defines what another file defines."""


def parse_file(path: str, content: str) -> SqlFile:
    """The file `path` with the text `content`. Raises SqlFileError."""
    objects: dict[SqlObject, str] = {}
    grants: list[str] = []
    for written in split_statements(content):
        statement = _COMMENTS.sub("", written)
        if found := _OBJECT.match(statement):
            kind, name, trigger, trigger_name, table = found.groups()
            made = SqlObject(trigger, f"{trigger_name} ON {table}") if trigger else SqlObject(kind, name)
            if made in objects:
                raise SqlFileError(f"{path} defines {made} twice")
            objects[made] = statement
        elif (privilege := _PRIVILEGE.match(statement)) and {
            SqlObject("FUNCTION", privilege[1]),
            SqlObject("VIEW", privilege[1]),
        } & objects.keys():
            grants.append(statement)
        elif statement:
            raise SqlFileError(f"{path} may not hold this statement: {statement[:60]!r}")
    return SqlFile(path, sha256(content.encode()).hexdigest(), objects, tuple(grants))


def read_files(root: Path = ROOT) -> list[SqlFile]:
    """All files below `root`, in the order of the packages and then of their paths. Raises SqlFileError."""
    files = [
        parse_file(path.relative_to(root).as_posix(), path.read_text())
        for package in _PACKAGES
        for path in sorted((root / package).rglob("sql/*.sql"))
    ]
    homes: dict[SqlObject, str] = {}
    for file in files:
        for made in file.objects:
            if made in homes:
                raise SqlFileError(f"{homes[made]} and {file.path} both define {made}")
            homes[made] = file.path
    return files


def apply(connection: Connection, files: Iterable[SqlFile]) -> list[str]:
    """Make the database's functions, views and triggers those of `files`; returns the paths of the applied files.

    The caller owns the transaction. Raises DBAPIError when PostgreSQL refuses a statement or a function's body.
    """
    files = list(files)
    recorded = {row.path: row for row in connection.execute(select(schema_sql_files))}
    present = set(_present(connection))
    due = [
        file
        for file in files
        if file.path not in recorded
        or recorded[file.path].sha256 != file.sha256
        or not present.issuperset(file.objects)
    ]
    before = {SqlObject.parse(written) for row in recorded.values() for written in row.objects}
    removed = before.difference(*(file.objects for file in files))
    if due or removed or recorded.keys() != {file.path for file in files}:
        stale = _create(connection, due)
        _drop(connection, removed, stale)
        _grant(connection, due)
        _check_bodies(connection, files)
        _record(connection, files, due)
    return [file.path for file in due]


def _present(connection: Connection) -> Iterator[SqlObject]:
    rows = connection.execute(
        text(
            "SELECT 'FUNCTION', proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace "
            "UNION ALL SELECT 'VIEW', relname FROM pg_class "
            "WHERE relkind = 'v' AND relnamespace = 'public'::regnamespace "
            "UNION ALL SELECT 'TRIGGER', t.tgname || ' ON ' || c.relname FROM pg_trigger t "
            "JOIN pg_class c ON c.oid = t.tgrelid "
            "WHERE NOT t.tgisinternal AND c.relnamespace = 'public'::regnamespace"
        )
    )
    return (SqlObject(*row) for row in rows)


def _functions(files: Iterable[SqlFile]) -> list[str]:
    return [made.name for file in files for made in file.objects if made.kind == "FUNCTION"]


def _signatures(connection: Connection, names: list[str]) -> dict[int, tuple[str, str]]:
    """Name and signature of each function that has one of these names, by its number in the catalog."""
    rows = connection.execute(
        text(
            "SELECT oid, proname, oid::regprocedure::text FROM pg_proc "
            "WHERE pronamespace = 'public'::regnamespace AND proname = ANY (:names)"
        ),
        {"names": names},
    )
    return {oid: (name, signature) for oid, name, signature in rows}


def _create(connection: Connection, due: list[SqlFile]) -> list[str]:
    """Create or replace what the files define. Returns the signatures of functions that now take other parameters."""
    names = _functions(due)
    old = _signatures(connection, names)
    connection.exec_driver_sql("SET LOCAL check_function_bodies = off")
    for kind in _KINDS:
        for file in due:
            for made, statement in file.objects.items():
                if made.kind == kind:
                    _replace(connection, made, statement)
    new = _signatures(connection, names)
    created = {name for oid, (name, _) in new.items() if oid not in old}
    return [signature for oid, (name, signature) in old.items() if oid in new and name in created]


def _replace(connection: Connection, made: SqlObject, statement: str) -> None:
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) not in _OTHER_SIGNATURE:
            raise
        connection.exec_driver_sql(f"DROP {made}")
        connection.exec_driver_sql(statement)


def _drop(connection: Connection, removed: Iterable[SqlObject], stale: list[str]) -> None:
    for kind in reversed(_KINDS):
        for gone in sorted(removed):
            if gone.kind == kind:
                connection.exec_driver_sql(f"DROP {kind} IF EXISTS {gone.name}")
    for signature in stale:
        connection.exec_driver_sql(f"DROP FUNCTION {signature}")


def _grant(connection: Connection, due: list[SqlFile]) -> None:
    """Renew the privileges: by default every role may execute a function, and only the owner may read a view."""
    for file in due:
        for made in file.objects:
            if made.kind == "FUNCTION":
                connection.exec_driver_sql(f"REVOKE ALL ON {made} FROM {APP_ROLE}, {SYSTEM_ROLE}")
                connection.exec_driver_sql(f"GRANT EXECUTE ON {made} TO PUBLIC")
            elif made.kind == "VIEW":
                connection.exec_driver_sql(
                    f"REVOKE ALL ON {made.name} FROM PUBLIC, {APP_ROLE}, {SYSTEM_ROLE}"
                )
        for statement in file.grants:
            connection.exec_driver_sql(statement)


def _check_bodies(connection: Connection, files: list[SqlFile]) -> None:
    connection.exec_driver_sql("SET LOCAL check_function_bodies = on")
    for language, validator in (("sql", "fmgr_sql_validator"), ("plpgsql", "plpgsql_validator")):
        connection.execute(
            text(
                f"SELECT {validator}(p.oid) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang "
                "WHERE l.lanname = :language AND p.pronamespace = 'public'::regnamespace "
                "AND p.proname = ANY (:names)"
            ),
            {"language": language, "names": _functions(files)},
        )


def _record(connection: Connection, files: list[SqlFile], due: list[SqlFile]) -> None:
    connection.execute(
        delete(schema_sql_files).where(schema_sql_files.c.path.not_in([file.path for file in files]))
    )
    for file in due:
        values = {"sha256": file.sha256, "objects": [str(made) for made in file.objects]}
        connection.execute(
            insert(schema_sql_files)
            .values(path=file.path, **values)
            .on_conflict_do_update(
                index_elements=["path"], set_={**values, "applied_at": func.clock_timestamp()}
            )
        )
