"""What a SQL file may hold, and where the files are."""

from pathlib import Path

import pytest

from migrations.repeatable import SqlFileError, SqlObject, parse_file, read_files

ONE = """-- A comment; with a semicolon.
CREATE OR REPLACE FUNCTION one(p integer) RETURNS integer LANGUAGE sql AS $$ SELECT 1; -- ;
$$;
REVOKE ALL ON FUNCTION one FROM PUBLIC;

-- The trigger.
CREATE OR REPLACE TRIGGER watch AFTER INSERT OR UPDATE OF a, b ON things
    FOR EACH ROW EXECUTE FUNCTION one();
CREATE OR REPLACE VIEW seen AS SELECT 1 AS a;
GRANT SELECT ON seen TO penstock_app, penstock_system;
-- The end.
"""


def test_a_file_is_its_objects_and_its_grants() -> None:
    file = parse_file("a/sql/one.sql", ONE)
    assert [str(made) for made in file.objects] == [
        "FUNCTION one",
        "TRIGGER watch ON things",
        "VIEW seen",
    ]
    assert file.objects[SqlObject("VIEW", "seen")] == "CREATE OR REPLACE VIEW seen AS SELECT 1 AS a"
    assert file.grants == (
        "REVOKE ALL ON FUNCTION one FROM PUBLIC",
        "GRANT SELECT ON seen TO penstock_app, penstock_system",
    )
    assert [SqlObject.parse(str(made)) for made in file.objects] == list(file.objects)
    assert parse_file("a/sql/one.sql", ONE + "-- More.\n").sha256 != file.sha256


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (a integer)",
        "CREATE FUNCTION two() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE OR REPLACE FUNCTION public.two() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "UPDATE tenants SET name = 'x'",
        "DROP FUNCTION one",
        "GRANT EXECUTE ON FUNCTION elsewhere TO penstock_system",
        "GRANT SELECT ON tenants TO penstock_app",
    ],
)
def test_other_statements_are_refused(statement: str) -> None:
    with pytest.raises(SqlFileError, match=r"a/sql/x\.sql may not hold"):
        parse_file("a/sql/x.sql", f"{ONE}{statement};")


def test_a_name_is_defined_once(tmp_path: Path) -> None:
    with pytest.raises(SqlFileError, match="defines VIEW seen twice"):
        parse_file("a/sql/x.sql", ONE + "CREATE OR REPLACE VIEW seen AS SELECT 2 AS a;")
    for place in ("tenants/sql/a.sql", "billing/ledger/sql/b.sql"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(ONE)
    with pytest.raises(SqlFileError, match=r"tenants/sql/a\.sql and billing/ledger/sql/b\.sql both define"):
        read_files(tmp_path)


def test_the_files_come_in_the_order_of_the_packages() -> None:
    paths = [file.path for file in read_files()]
    assert paths.index("tenants/sql/change_feed.sql") < paths.index("billing/metering/sql/hold.sql")
    assert all("/sql/" in path for path in paths)
