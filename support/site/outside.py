"""A hook of mkdocs: the files outside of docs/ that its pages link to are in the site too, and links lead there."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "readme-page.md",  # mkdocs takes README.md for an index
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "python/spark_cec/log/FORMAT.md": "format.md",
}
"""Pages outside of docs/, by their path in the repository, and their name in the site."""
LINK = re.compile(r"(\]\()([^)\s#]+)")


def place_in_site(path: str) -> str:
    """The name that a file of the repository has in the site, from its path there."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PAGES.get(path, f"files/{path}")


def linked_files(page: str, text: str) -> dict[str, str]:
    """The relative links of a page, each with the path in the repository of the file that it leads to."""
    targets = {target for _, target in LINK.findall(text) if "://" not in target}
    found = {target: posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in targets}
    return {target: path for target, path in found.items() if (ROOT / path).is_file()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `PAGES`, and every file outside of docs/ that a page links to."""
    from mkdocs.structure.files import File

    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()] + list(PAGES)
    linked = {path for page in pages for path in linked_files(page, (ROOT / page).read_text(encoding="utf-8")).values()}
    for path in sorted(linked | set(PAGES)):
        if not path.startswith("docs/"):
            files.append(File.generated(config, place_in_site(path), content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links by the repository's folders into links by the site's."""
    names = {name: path for path, name in PAGES.items()}
    here = page.file.src_uri
    found = linked_files(names.get(here, f"docs/{here}"), markdown)

    def in_site(match: re.Match[str]) -> str:
        path = found.get(match[2])
        return match[0] if path is None else match[1] + posixpath.relpath(place_in_site(path), posixpath.dirname(here))

    return LINK.sub(in_site, markdown)
