"""Documents name what exists: links, headings, paths, functions, commands. Pages stay short."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
from click import Command

from cli.main import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MAX_WORDS = 2000
"""Of prose on a page, tables and code aside; pages of measured results have their own folder."""
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "site"))]
ANYWHERE = "py|sql|lua|toml"
"""Endings of files that are named without their folder, too."""
ENDINGS = f"{ANYWHERE}|md|sh|yml|json\\.gz|json|txt|png|svg|css|js|html"
NAMED = re.compile(
    rf"(?<![\w/.:-])(?:[\w.-]+/)+[\w.-]*\.(?:{ENDINGS})\b"  # folder/file
    rf"|(?<![\w/.:-])[\w-]+\.(?:{ANYWHERE})\b"  # file
    rf"|(?<![\w/.:-])(?:{'|'.join(path.name for path in FOLDERS)})/[\w./-]*"  # folder of ours
)
MADE = ("bench/out", "site/")
"""What commands make and git ignores."""


def documents() -> list[Path]:
    """Every Markdown file of the repository but those that explain data of others."""
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))]
    return sorted(path for path in found if not path.is_relative_to(ROOT / "tests" / "data"))


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=[str(path.relative_to(ROOT)) for path in paths])


def without_code(text: str) -> str:
    """The text without fenced blocks and comments."""
    return re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)


def code(text: str) -> list[str]:
    """What stands in backticks, on one line each."""
    return re.findall(r"`([^`\n]+)`", without_code(text))


@cache
def files() -> list[str]:
    """Every file of ours, and every folder with a slash behind it, from the root."""
    paths = [*ROOT.glob("*.*"), *(path for folder in FOLDERS for path in folder.rglob("*"))]
    names = [f"{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}" for path in paths]
    return [
        f"/{name}" for name in [*names, *(f"{path.name}/" for path in FOLDERS)] if "__pycache__" not in name
    ]


def places(word: str) -> list[str]:
    """Files and folders whose path ends with `word`."""
    return [name for name in files() if name.endswith((f"/{word}", f"/{word}/"))]


@each(documents())
def test_every_link_leads_somewhere(path: Path) -> None:
    text = path.read_text()
    for link in re.findall(r"\]\(([^()\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{link} leads nowhere"
        if path.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), f"{link} leads out of the site: name the path instead"
        assert not anchor or anchor in headings(target.read_text()), f"{link}: no such heading"


def headings(text: str) -> set[str]:
    """Titles as links spell them."""
    titles = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[ -]+", "-", re.sub(r"[^\w\- ]", "", title.lower())).strip("-") for title in titles}


@each(documents())
def test_every_path_in_backticks_exists(path: Path) -> None:
    for phrase in code(path.read_text()):
        for word in NAMED.findall(phrase):
            assert word.startswith(MADE) or _exists(word, path), f"`{phrase}`: there is no {word}"


def _exists(word: str, page: Path) -> bool:
    """Whether a page may say `word`. Only a package's README may leave out the folder, for files of the package."""
    if "/" in word:
        return bool(places(word))
    if page.is_relative_to(DOCS) or page.parent == ROOT:
        return f"/{word}" in files()
    return any(place.startswith(f"/{page.parent.relative_to(ROOT)}/") for place in places(word))


@each(documents())
def test_functions_named_beside_a_file_are_there(path: Path) -> None:
    """`file.py` `function`, and `function` in `file.py`."""
    text = without_code(path.read_text())
    pairs = re.findall(r"`([\w/]+\.py)`\s`([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`", text)
    pairs += [(file, name) for name, file in re.findall(r"`([A-Za-z_][\w.]*)`\sin\s`([\w/]+\.py)`", text)]
    for file, name in pairs:
        sources = [(ROOT / place[1:]).read_text() for place in places(file)]
        last = name.rpartition(".")[2]
        pattern = rf"^\s*(?:async def|def|class) {last}\b|^\s*{last}\b\s*[:=]"
        assert any(re.search(pattern, source, re.MULTILINE) for source in sources), f"{file} has no {name}"


@each(documents())
def test_methods_exist(path: Path) -> None:
    """`Class.method`, wherever it is."""
    for phrase in code(path.read_text()):
        named = re.fullmatch(r"([A-Z][a-z]\w+)\.([a-z_]\w*)(?:\(.*\))?", phrase)
        if named:
            assert named[2] in members().get(named[1], ()), f"there is no {phrase}"


@cache
def members() -> dict[str, set[str]]:
    """Names inside of each class of the product, those of its bases aside."""
    found: dict[str, set[str]] = {}
    for name in files():
        if name.endswith(".py") and not name.startswith("/tests/"):
            for node in ast.walk(ast.parse((ROOT / name[1:]).read_text())):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, set()).update(_names(node))
    return found


def _names(node: ast.ClassDef) -> Iterator[str]:
    """Methods and fields, those that methods set on self included."""
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield part.name
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield part.attr


@each(documents())
def test_commands_exist(path: Path) -> None:
    """`make target` and `penstock command`."""
    text = path.read_text()
    makefile = (ROOT / "Makefile").read_text()
    shown = [*code(text), *re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    for phrase in shown:
        for target in re.findall(r"(?:^|[\n(;&] *)make ([a-z][a-z-]*)", phrase):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"there is no `make {target}`"
        for words in re.findall(r"(?:^|[\n/ (])penstock ((?:[a-z][a-z-]*[ |]?)+)", phrase):
            for line in alternatives(words.strip(" |")):
                assert is_command(line), f"`penstock {words.strip()}`: there is no {' '.join(line)}"


def alternatives(words: str) -> Iterator[list[str]]:
    """`pools list|drain` names two commands."""
    first, *others = words.split()
    for name in first.split("|"):
        for sub in (others[0] if others else "").split("|"):
            yield [name, sub] if sub else [name]


def is_command(words: list[str]) -> bool:
    """Whether the command line knows the words, as far as they are commands and not arguments."""
    command: Command | None = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "commands") and not hasattr(command, "get_command"):
            return True
        command = command.get_command(typer.Context(command), word)  # type: ignore[union-attr, arg-type]
        if command is None:
            return False
    return True


@each(
    [path for path in documents() if path.is_relative_to(DOCS) and not path.is_relative_to(DOCS / "results")]
)
def test_pages_are_short(path: Path) -> None:
    prose = [line for line in without_code(path.read_text()).splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= MAX_WORDS


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(path.relative_to(DOCS)) for path in documents() if path.is_relative_to(DOCS)}
    assert listed == pages
    index = (DOCS / "README.md").read_text()
    assert not {page for page in pages if page.startswith("adr/") and f"({page})" not in index}
