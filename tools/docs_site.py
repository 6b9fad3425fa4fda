"""The documentation as a site of plain files: `make docs` writes it to dist/site.

Renders docs/*.md, the README and the changelog, and pages of reference that are made from the code. Uses markdown-it-py
and Pygments, which `rich` brings to every installation, so that there is no package to add and nothing is fetched. The
pages need no script and no other host: they can be read from a disk in an air-gapped room. A link or a picture that
leads nowhere, or a page without a place in the navigation, ends the build with the list of all of them.
"""

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name  # pyright: ignore[reportUnknownVariableType]  untyped options
from pygments.util import ClassNotFound
from reference_pages import reference_pages

REPOSITORY = Path(__file__).resolve().parent.parent
SITE = REPOSITORY / "dist" / "site"
STYLE = Path(__file__).with_name("docs_site.css")

Nav = Mapping[str, Sequence[tuple[str, str]]]

#: Every page by its place: its file below the repository, or its name among the pages of reference.
NAV: Nav = {
    "Start": (
        ("README.md", "What it is"),
        ("docs/tutorial.md", "Tutorial"),
        ("docs/moving.md", "Coming from llama-swap or Ollama"),
        ("docs/comparison.md", "Compared with others"),
    ),
    "How to": (
        ("docs/howto-small-server.md", "A small server for a household or a team"),
        ("docs/howto-one-gpu.md", "A bot that shares one GPU"),
        ("docs/howto-agents.md", "A platform for agents"),
        ("docs/howto-air-gapped.md", "An air-gapped rig"),
        ("docs/gpu.md", "Cards"),
        ("docs/page.md", "The page"),
        ("docs/plans.md", "Write a plan"),
        ("docs/observing.md", "Metrics, dashboards and traces"),
    ),
    "Concepts": (
        ("docs/concepts.md", "The ideas in pictures"),
        ("docs/residency.md", "Residency"),
        ("docs/scheduling.md", "Scheduling"),
        ("docs/memory.md", "Memory"),
        ("docs/spool.md", "The spool"),
        ("docs/fleet.md", "The fleet"),
        ("docs/peers.md", "Peers"),
        ("docs/tiers.md", "Tiers"),
        ("docs/reliability.md", "Reliability"),
        ("docs/scale.md", "Scale"),
    ),
    "Reference": (
        ("docs/config.md", "Config"),
        ("docs/cli.md", "Command line"),
        ("reference-cli", "Every command"),
        ("docs/api.md", "HTTP"),
        ("reference-http", "Every address"),
        ("reference-errors", "Errors"),
        ("reference-metrics", "Metrics"),
        ("reference-limits", "Limits"),
        ("docs/engines.md", "Engines"),
        ("docs/ollama.md", "Ollama's API"),
        ("docs/responses.md", "Responses API"),
        ("docs/messages.md", "Messages API"),
        ("docs/batches.md", "Batches"),
        ("docs/nats.md", "Spools on NATS"),
    ),
    "Project": (
        ("docs/structure.md", "Structure of the code"),
        ("CONTRIBUTING.md", "Contributing"),
        ("CHANGELOG.md", "Changelog"),
    ),
}  # fmt: skip
#: Files of docs/ that are no page: the list of pages is the navigation itself.
NOT_PAGES = frozenset({"docs/README.md"})

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_OUTSIDE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_NOT_IN_SLUG = re.compile(r"[^\w\- ]")
_SHOWN_BY_BROWSERS = frozenset({".svg", ".webp", ".png", ".json", ".txt", ".html"})


class Broken(Exception):
    """The site has links that lead nowhere, or pages without a place."""


@dataclass(slots=True)
class Page:
    """One page: where it is, what it says, and the headings that links may name."""

    source: str
    title: str
    tokens: list[Token]
    anchors: set[str] = field(default_factory=set[str])

    @property
    def name(self) -> str:
        """Its file in the site."""
        return "index.html" if self.source == "README.md" else f"{Path(self.source).stem.lower()}.html"


class Site:
    """Reads all pages first, so that links between them can be checked."""

    def __init__(self, repository: Path, out: Path, nav: Nav, reference: Mapping[str, str]) -> None:
        self._repository, self._out, self._nav = repository, out, nav
        self._markdown = MarkdownIt("commonmark", {"html": True, "highlight": _coloured}).enable("table")
        self._pages = {
            source: self._read(source, title, reference) for pages in nav.values() for source, title in pages
        }
        self._wrong: list[str] = []
        self._copied: set[Path] = set()

    def build(self) -> int:
        """Writes the site; returns how many pages it has. Raises Broken with everything that is wrong."""
        self._find_strays()
        shutil.rmtree(self._out, ignore_errors=True)
        self._out.mkdir(parents=True)
        for page in self._pages.values():
            body = self._render(page)
            (self._out / page.name).write_text(self._framed(page, body), encoding="utf-8")
        (self._out / "style.css").write_text(STYLE.read_text() + _colours(), encoding="utf-8")
        if self._wrong:
            raise Broken("\n".join(self._wrong))
        return len(self._pages)

    def _read(self, source: str, title: str, reference: Mapping[str, str]) -> Page:
        text = reference[source] if source in reference else (self._repository / source).read_text()
        page = Page(source, title, self._markdown.parse(_COMMENT.sub("", text)))
        _name_headings(page)
        return page

    def _find_strays(self) -> None:
        found = {f"docs/{path.name}" for path in (self._repository / "docs").glob("*.md")}
        for stray in sorted(found - set(self._pages) - NOT_PAGES):
            self._wrong.append(f"{stray}: not in the navigation; add it to NAV in tools/docs_site.py")

    # ------------------------------------------------------------------ links

    def _render(self, page: Page) -> str:
        for token in _all(page.tokens):
            if token.type == "link_open":
                token.attrSet("href", self._target(page, str(token.attrGet("href"))))
            elif token.type == "image":
                token.attrSet("src", self._target(page, str(token.attrGet("src"))))
        return self._markdown.renderer.render(page.tokens, self._markdown.options, {})

    def _target(self, page: Page, href: str) -> str:
        """Where a link leads in the site. A wrong one is noted."""
        if _OUTSIDE.match(href):
            return href
        path, _, anchor = href.partition("#")
        if not path:
            self._check(page, page, href, anchor)
            return href
        file = (self._repository / Path(page.source).parent / path).resolve()
        if not file.is_relative_to(self._repository) or not file.exists():
            self._wrong.append(f"{page.source}: link to {href}: there is no such file")
            return href
        source = file.relative_to(self._repository).as_posix()
        if (aim := self._pages.get(source)) is not None:
            self._check(page, aim, href, anchor)
            return aim.name + (f"#{anchor}" if anchor else "")
        if source in NOT_PAGES:
            return "index.html"
        return self._listing(file, source) if file.is_dir() else self._copy(file, source)

    def _check(self, page: Page, aim: Page, href: str, anchor: str) -> None:
        if anchor and anchor not in aim.anchors:
            self._wrong.append(f"{page.source}: link to {href}: {aim.source} has no such heading")

    def _copy(self, file: Path, source: str) -> str:
        """A file of the repository, beside the pages; program text so that a browser shows it."""
        name = f"files/{source}" + ("" if file.suffix in _SHOWN_BY_BROWSERS else ".txt")
        if file not in self._copied:
            self._copied.add(file)
            (self._out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, self._out / name)
        return name

    def _listing(self, folder: Path, source: str) -> str:
        """A folder of the repository: a plain list of its files."""
        name = f"files/{source}.txt"
        (self._out / name).parent.mkdir(parents=True, exist_ok=True)
        files = sorted(path.name for path in folder.iterdir() if not path.name.startswith((".", "__")))
        (self._out / name).write_text(f"{source}/\n\n" + "\n".join(files) + "\n", encoding="utf-8")
        return name

    # ------------------------------------------------------------------ the frame

    def _framed(self, page: Page, body: str) -> str:
        policy = "default-src 'none'; style-src 'self'; img-src 'self'"
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{escape(page.title)} · Watchbill</title>\n"
            '<link rel="stylesheet" href="style.css">\n</head>\n<body>\n'
            f'<a class="skip" href="#content">Skip to the content</a>\n{self._navigation(page)}'
            f'<main id="content">\n{body}</main>\n</body>\n</html>\n'
        )

    def _navigation(self, page: Page) -> str:
        parts = ['<nav aria-label="Pages">\n<p class="brand"><a href="index.html">Watchbill</a></p>\n']
        for section, pages in self._nav.items():
            is_open = any(source == page.source for source, _ in pages)
            rows = "".join(self._entry(source, title, page) for source, title in pages)
            parts.append(
                f"<details{' open' if is_open else ''}><summary>{escape(section)}</summary><ul>{rows}</ul></details>\n"
            )
        return "".join([*parts, "</nav>\n"])

    def _entry(self, source: str, title: str, page: Page) -> str:
        here = ' aria-current="page"' if source == page.source else ""
        return f'<li><a href="{self._pages[source].name}"{here}>{escape(title)}</a></li>'


def _all(tokens: Iterable[Token]) -> Iterable[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or ())


def _name_headings(page: Page) -> None:
    """Gives every heading the id that code hosts give it, so that links work there and here."""
    for number, token in enumerate(page.tokens):
        if token.type != "heading_open":
            continue
        children = page.tokens[number + 1].children or []
        text = "".join(child.content for child in children if child.type in ("text", "code_inline"))
        slug = wanted = _NOT_IN_SLUG.sub("", text.strip().lower()).replace(" ", "-")
        count = 0
        while slug in page.anchors:
            count += 1
            slug = f"{wanted}-{count}"
        page.anchors.add(slug)
        token.attrSet("id", slug)


def _coloured(code: str, language: str, _options: str) -> str:
    try:
        lexer = get_lexer_by_name(language) if language else None
    except ClassNotFound:
        lexer = None
    if lexer is None:
        return ""
    return highlight(code, lexer, HtmlFormatter(nowrap=True))


def _colours() -> str:
    """The colours of program text, for both themes."""
    rules = {"light": _rules("friendly"), "dark": _rules("github-dark")}
    parts = [f"@media (prefers-color-scheme: {theme}) {{\n{text}\n}}" for theme, text in rules.items()]
    return "\n".join(["", *parts, "pre code { background: none; color: inherit; }", ""])


def _rules(style: str) -> str:
    found = HtmlFormatter(style=style).get_style_defs("pre code")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  untyped
    return str(found)  # pyright: ignore[reportUnknownArgumentType]  the same


def main() -> int:
    """Builds the site of this repository."""
    try:
        count = Site(REPOSITORY, SITE, NAV, reference_pages()).build()
    except Broken as error:
        print(f"the site is not whole:\n{error}", file=sys.stderr)
        return 1
    print(f"{count} pages: {SITE / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
