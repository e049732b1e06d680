"""What stands in the Markdown files: snippets, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^ *```(.*)$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$")


@dataclass(frozen=True)
class Snippet:
    """A fenced block, and where it begins."""

    document: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line} ({self.language or 'no language'})"


def read_snippets(document: Path) -> list[Snippet]:
    """Return the fenced blocks of a document, in their order."""
    snippets = []
    begun: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(document.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and begun is None:
            begun, lines = (number, fence[1].strip()), []
        elif fence and begun is not None:
            snippets.append(Snippet(document, *begun, "\n".join(lines)))
            begun = None
        else:
            lines.append(line)
    assert begun is None, f"{document}:{begun}: a fence is not closed"
    return snippets


def links(document: Path) -> list[str]:
    """Return where the links and pictures of a document point to, outside its snippets."""
    return [target for line in _prose(document) for target in _LINK.findall(line)]


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a document."""
    headings = [match[1] for line in _prose(document) if (match := _HEADING.match(line))]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _prose(document: Path) -> Iterator[str]:
    in_snippet = False
    for line in document.read_text().splitlines():
        if _FENCE.match(line):
            in_snippet = not in_snippet
        elif not in_snippet:
            yield line
