"""The pages of docs/ and the README: links, pictures, the README's size, errors.md, and the tests that a page names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([*DOCS.rglob("*.md"), README, ROOT / "examples" / "README.md"])
TARGET = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
README_LINES, README_CHARACTERS = 120, 160


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that `page` links to or shows, each with the anchor there or ''; no addresses."""
    found = TARGET.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    parts = [target.partition("#") for target in found if "://" not in target]
    return [((page.parent / path).resolve() if path else page.resolve(), anchor) for path, _, anchor in parts]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that a page's headings make, as GitHub makes them."""
    made: dict[str, int] = {}
    for heading in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = made.get(anchor, 0)
        made[anchor] = count + 1
        if count:
            made[f"{anchor}-{count}"] = 1
    return frozenset(made)


def broken_links(page: Path) -> list[str]:
    """What a page links to that is not there: files, and anchors in pages."""
    gone = [str(target) for target, _ in links(page) if not target.exists()]
    pages = [(target, anchor) for target, anchor in links(page) if anchor and target.suffix == ".md"]
    return gone + [f"{to}#{anchor}" for to, anchor in pages if to.exists() and anchor not in anchors(to)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_exists(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "# A page: of `code`\n[a](page.md#a-page-of-code) [b](page.md#none) [c](none.md)\n```\n[d](none.md)\n```\n"
    page.write_text(text)
    assert broken_links(page) == [str(tmp_path / "none.md"), f"{page}#none"]


def test_every_picture_is_shown() -> None:
    shown = {target for page in PAGES for target, _ in links(page)}
    assert [picture.name for picture in (DOCS / "images").iterdir() if picture.resolve() not in shown] == []


def test_the_index_lists_every_page() -> None:
    listed = {target for target, _ in links(DOCS / "index.md")}
    assert [page.name for page in DOCS.rglob("*.md") if page.name != "index.md" and page.resolve() not in listed] == []


def test_the_site_has_every_page_in_its_menu() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    menu = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", site, flags=re.MULTILINE)
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert len(menu) == len(set(menu))
    assert pages <= set(menu)


def test_the_readme_is_short() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES
    text = [line for line in lines if not line.startswith("|")]  # tables cannot be broken
    assert [line for line in text if len(line) > README_CHARACTERS] == []


def literals_of_python(code: str) -> Iterator[str]:
    """The strings in `code`; what an f-string puts in is `…`."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def literals_of_scala(code: str) -> str:
    """`code` with strings that are added up joined, and what they interpolate as `…`."""
    joined = re.sub(r'"\s*\+\s*s?"', "", code)
    return re.sub(r"\$\{[^}]*\}|\$\w+", "…", joined).replace('\\"', '"')


@cache
def words_of_the_code() -> str:
    """All text that the product can say."""
    package, shim = ROOT / "python" / "spark_cec", ROOT / "jvm-shim" / "src" / "main"
    python = [each for path in package.rglob("*.py") for each in literals_of_python(path.read_text(encoding="utf-8"))]
    scala = [literals_of_scala(path.read_text(encoding="utf-8")) for path in shim.rglob("*.scala")]
    return re.sub(r"\s+", " ", "\n".join(python + scala))


def pieces(message: str) -> list[str]:
    """What a message of errors.md says between its placeholders."""
    return [piece for piece in (each.strip(" ,;:.") for each in message.split("…")) if piece]


def messages() -> list[str]:
    table = (DOCS / "errors.md").read_text(encoding="utf-8").split("## The messages")[1].split("## Messages of")[0]
    return re.findall(r"^\| `(.+?)` \|", table, flags=re.MULTILINE)


def test_the_code_says_what_the_page_of_errors_explains() -> None:
    assert len(messages()) > 80
    code = words_of_the_code()
    assert [each for each in messages() if not all(piece in code for piece in pieces(each))] == []


def test_the_page_of_errors_is_in_the_order_of_the_alphabet() -> None:
    keys = [re.sub(r"[^a-z0-9]+", " ", each.lower()).strip() for each in messages()]
    assert keys == sorted(keys)


NAMED = re.compile(r"`([A-Z][A-Za-z]+)\.([a-z]\w*)`")
SOURCES = [ROOT / "jvm-shim" / "src" / "main", ROOT / "python" / "spark_cec"]
OF_SPARK = {"Sink"}


@cache
def declarations() -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    """For each source file the types, and the functions and values, that it declares."""
    files = [path for root in SOURCES for path in root.rglob("*") if path.suffix in (".scala", ".java", ".py")]
    texts = [path.read_text(encoding="utf-8") for path in files]
    types = [frozenset(re.findall(r"\b(?:class|object|trait) (\w+)", text)) for text in texts]
    members = [frozenset(re.findall(r"\b(?:def|val|var) (\w+)", text)) for text in texts]
    return tuple(zip(types, members, strict=True))


def undeclared(text: str) -> list[str]:
    """The names `Type.member` in `text` that no source file declares."""
    named = [(owner, member) for owner, member in NAMED.findall(text) if owner not in OF_SPARK]
    return [
        f"{owner}.{member}"
        for owner, member in named
        if not any(owner in types and member in members for types, members in declarations())
    ]


def test_the_design_names_what_the_code_declares() -> None:
    page = (DOCS / "design.md").read_text(encoding="utf-8")
    assert len(NAMED.findall(page)) > 20
    assert undeclared(page) == []


def test_a_name_that_no_code_declares_is_found() -> None:
    assert undeclared("`StoreState.commit` and `StoreState.comit`, `StoreStat.commit`") == [
        "StoreState.comit", "StoreStat.commit",
    ]  # fmt: skip


TEST_ROOTS = [ROOT / "python" / "tests", ROOT / "integration-tests"]


@cache
def known_tests() -> frozenset[str]:
    """The names of all test functions, and of all test files."""
    files = [path for root in TEST_ROOTS for path in root.rglob("test_*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files]
    return frozenset(name for text in texts for name in re.findall(r"\bdef (test_\w+)", text)) | {f.name for f in files}


def missing_tests(text: str) -> list[str]:
    """The tests that `text` names in backticks and that are not there: functions, files, paths from the top."""
    names = re.findall(r"`(test_\w+(?:\.py)?)`", text)
    paths = re.findall(r"`((?:python/tests|integration-tests)/\S+\.py)`", text)
    gone = [path for path in paths if not (ROOT / path).is_file()]
    return [name for name in names if name not in known_tests()] + gone


def test_the_page_on_recovery_names_tests_that_exist() -> None:
    page = (DOCS / "recovery.md").read_text(encoding="utf-8")
    assert len(re.findall(r"`test_\w+`", page)) > 10
    assert missing_tests(page) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    text = "`test_every_picture_is_shown`, `test_nothing_at_all`, `test_docs.py`, `python/tests/test_no.py`"
    assert missing_tests(text) == ["test_nothing_at_all", "python/tests/test_no.py"]
