"""The documentation's site: it is built whole or not at all, and needs nothing but its own files."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from docs_site import NAV, Broken, Site  # noqa: E402  the tools are no package
from reference_pages import reference_pages  # noqa: E402

SMALL = {"Start": (("README.md", "Start"), ("docs/other.md", "Other"))}


class Links(HTMLParser):
    """What a page asks a browser for, and where its links lead."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.scripts = 0
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.scripts += tag == "script" or any(name.startswith("on") for name in found)
        self.ids |= {found["id"]} if "id" in found else set()
        if tag == "a":
            self.links.append(found["href"])
        elif tag in ("img", "link"):
            self.loaded.append(found.get("src") or found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    Site(ROOT, out, NAV, reference_pages()).build()
    return out


def test_every_link_leads_somewhere_and_nothing_is_asked_of_others(site: Path) -> None:
    """It is read from a disk in an air-gapped room: no script, no other host, no link into the void."""
    pages = {path.name: Links(path) for path in site.glob("*.html")}
    assert len(pages) == sum(len(each) for each in NAV.values())
    for name, page in pages.items():
        assert not page.scripts, name
        assert all((site / each).is_file() for each in page.loaded), name
        for link in page.links:
            if re.match(r"(https?|mailto):", link):
                continue
            path, _, anchor = link.partition("#")
            assert not path or (site / path).is_file(), (name, link)
            assert not anchor or anchor in pages[path or name].ids or anchor == "content", (name, link)


def test_reference_is_made_of_what_the_code_has(site: Path) -> None:
    assert "watchbill simulate" in (site / "reference-cli.html").read_text()
    assert "/wb/v1/simulate" in (site / "reference-http.html").read_text()
    assert "wait_exceeded" in (site / "reference-errors.html").read_text()
    assert "watchbill_wait_seconds" in (site / "reference-metrics.html").read_text()
    assert "WHAT_IF_REQUESTS_MAX" in (site / "reference-limits.html").read_text()


def small(folder: Path, text: str) -> Site:
    (folder / "docs").mkdir()
    (folder / "README.md").write_text(
        f"# Start\n\n## A heading, `twice`\n\n## A heading, `twice`\n\n{text}\n"
    )
    (folder / "docs" / "other.md").write_text("# Other\n\n[back](../README.md#a-heading-twice-1)\n")
    (folder / "LICENSE").write_text("free")
    return Site(folder, folder / "out", SMALL, {})


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[x](docs/gone.md)", "there is no such file"),
        ("![x](gone.svg)", "there is no such file"),
        ("[x](docs/other.md#gone)", "docs/other.md has no such heading"),
        ("[x](#gone)", "README.md has no such heading"),
        ("[x](../../../../etc/passwd)", "there is no such file"),
    ],
)
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(Broken, match=wrong):
        small(tmp_path, text).build()


def test_a_page_without_a_place_ends_the_build_and_a_right_one_is_built(tmp_path: Path) -> None:
    site = small(
        tmp_path, "[licence](LICENSE) <!-- not shown --> [other](docs/other.md) [twice](#a-heading-twice)"
    )
    assert site.build() == 2
    page = (tmp_path / "out" / "index.html").read_text()
    assert 'href="files/LICENSE.txt"' in page and 'href="other.html"' in page and "not shown" not in page
    (tmp_path / "docs" / "stray.md").write_text("# Stray\n")
    with pytest.raises(Broken, match=r"docs/stray.md: not in the navigation"):
        Site(tmp_path, tmp_path / "out", SMALL, {}).build()
