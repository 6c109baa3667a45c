"""The page docs/your-runs.md has the table of the readers. ``python tests/test_your_runs.py`` writes it."""

from __future__ import annotations

from pathlib import Path

from fp8parity.runs.writers import table

PAGE = Path(__file__).parents[1] / "docs" / "your-runs.md"
BEGIN, END = "<!-- formats -->\n", "\n<!-- end formats -->"


def test_page_has_the_table_of_the_readers():
    assert PAGE.read_text().partition(BEGIN)[2].partition(END)[0] == table()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{rest.partition(END.strip())[2]}")
