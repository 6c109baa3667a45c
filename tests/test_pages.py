"""The documents: links resolve, named files exist, pages are short, and reference tables are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from documents import FENCE, LANGUAGES, PAGES, ROOT, blocks, rows
from fp8parity import checks
from fp8parity.judging.verdict import BLOCK_THROUGHPUT, GEMMS, LOSS, THROUGHPUT, Status

USER = [page for page in PAGES if page.parent == ROOT / "docs"]
MAX_LINE, MAX_PARAGRAPH, MAX_PAGE = 120, 6, 200


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_files_of_a_page_exist(page):
    assert faults(page) == []


def faults(page: Path) -> list[str]:
    """Return prompts, strange fences, dead links, and named files that do not exist."""
    text = page.read_text()
    found = [f"{b.id}: fence {b.language!r}" for b in blocks(page) if b.language not in LANGUAGES | {"indented"}]
    found += [f"prompt: {line}" for line in text.splitlines() if re.match(r"\s*\$ ", line)]
    prose = FENCE.sub("", text)
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose):
        target = page.parent / path if path else page
        if not path.startswith("http") and not (target.exists() and (not anchor or anchor in anchors(target))):
            found.append(f"link: {path}#{anchor}")
    named = re.findall(r"`((?:docs|golden|tests|suites|benchmarks|fixtures)/[\w./-]+\.(?:md|py|zip|toml|csv))`", prose)
    return found + [f"no such file: {name}" for name in named if not (ROOT / name).exists()]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", USER, ids=lambda p: p.name)
def test_user_page_fits_on_a_few_screens(page):
    prose = FENCE.sub("", page.read_text())
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "<!--"))]
    assert len(page.read_text().splitlines()) <= MAX_PAGE
    assert [line for line in lines if len(line) > MAX_LINE and " " in line.strip()] == []
    items = re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", "\n".join(lines))
    assert [item for item in items if item.strip().count("\n") >= MAX_PARAGRAPH] == []


def test_paths_in_contributing_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|toml|md))?|runner\.py)`", text)
    places = (ROOT, ROOT / "fixtures/fp8parity")
    assert len(named) > 40
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_status_and_check_has_its_row():
    named = [cells[0].strip("`") for cells in rows("report.md")]
    wanted = (*get_args(Status), *checks.CHECKS, LOSS, THROUGHPUT, BLOCK_THROUGHPUT, GEMMS)
    assert [name for name in wanted if named.count(name) != 1] == []


def test_every_section_of_a_report_has_its_row():
    sources = (ROOT / "fixtures/fp8parity/report/sections").glob("*.py")
    titles = {title for path in sources for title in re.findall(r'Section\("[\w-]+", "([^"]+)"', path.read_text())}
    named = [cells[0].strip("*") for cells in rows("report.md")]
    assert len(titles) >= 10 and titles - set(named) == set()


def test_wrong_page_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n[a](no.md) [b](#a-page) [c](#other) `docs/no.md`\n\n```console\n$ pytest\n```\n")
    assert [f.partition(":")[0] for f in faults(page)] == ["page.md", "prompt", "link", "link", "no such file"]
