"""The pages of docs/ show pictures that exist, and no picture is there that no page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
TARGET = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def targets(page: Path) -> list[Path]:
    """The files that `page` links to or shows; no addresses."""
    found = TARGET.findall(page.read_text(encoding="utf-8"))
    return [(page.parent / target).resolve() for target in found if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_what_a_page_links_to_exists(page: Path) -> None:
    assert [target for target in targets(page) if not target.exists()] == []


def test_every_picture_is_shown() -> None:
    shown = {target for page in PAGES for target in targets(page)}
    assert [picture.name for picture in (DOCS / "images").iterdir() if picture.resolve() not in shown] == []
