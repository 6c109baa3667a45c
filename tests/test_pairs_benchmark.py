"""The benchmark behind docs/your-runs.md: pairs, planted gaps, tables, and the page that they are written into."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pairs
import pytest
from fp8parity.judging.pair.aligned import PUBLISHED, PairOptions
from fp8parity.judging.pair.pairing import APART, PAIRED
from fp8parity.records.storage import load_records

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/your-runs.md").read_text()


@cache
def recorded() -> list[pairs.Recorded]:
    return pairs.recorded(load_records(ROOT / "golden/records/micro-xeon.zip"))


def test_pairs_share_a_seed_and_mis_pairs_do_not():
    assert len(recorded()) >= 20
    for p in recorded():
        assert (p.candidate.seed, p.candidate.cell.model, p.control.cell.recipe) == (
            p.control.seed,
            p.control.cell.model,
            "bf16",
        )
        assert p.others and all(o.seed != p.candidate.seed for o in p.others)


def test_planted_gaps_are_what_they_say():
    p = recorded()[0]
    made = pairs.planted(p)
    assert list(made) == [*pairs.GAPS, pairs.GROWS, *pairs.SPREAD, pairs.OTHER]
    sound = made["no gap"][1].loss
    assert [made["gap 2%"][1].loss[i] / sound[i] for i in (0, -1)] == pytest.approx([1.02, 1.02])
    assert [made[pairs.GROWS][1].loss[i] / sound[i] for i in (0, -1)] == pytest.approx([1.0, 1.005])
    away = made["no gap, with spread"][1].loss[0] / sound[0] - 1
    assert 0 < abs(away) < 4 * PUBLISHED.sd
    assert made["gap at the margin, with spread"][1].loss[0] / sound[0] - 1 == pytest.approx(away + PairOptions.margin)


def test_tables_count_verdicts():
    few = recorded()[:2]
    assert pairs.rates(few, ["CSV"], ["no gap", "gap 1%"])[-1] == "| CSV | 2 of 2 | 2 of 2 |"
    assert "| gap 1% | 2 | fail: 2 | pass: 0 [0.0%, 84.2%] |" in pairs.whole(few)
    assert pairs.spikes(few)[2:4] == ["| none | 2 | 0 | 0 |", "| 1% | 2 | 2 | 0 |"]
    assert pairs._cell("no gap", ["pass", "fail", "inconclusive"]) == "1 of 3, harmful 1"


def test_the_page_of_evidence_states_the_error_rates():
    [found] = pairs.MARK.finditer((ROOT / "docs/evidence.md").read_text())
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[0].splitlines()[3:-1]]
    assert found[2] == "whole" and [r[0] for r in rows] == [*pairs.PLANTED, *pairs.SPREAD]
    for name, n, right, harmful in rows:
        assert int(n) > 400 and harmful.startswith(pairs.WRONG.get(name, "pass"))
        assert name in pairs.SPREAD or right.endswith(f": {n}")


def test_writing_a_page_measures_its_tables_alone(tmp_path, monkeypatch, capsys):
    page, few = tmp_path / "page.md", recorded()[:2]
    page.write_text("# Page\n\n<!-- pairs: whole -->\nold\n<!-- end -->\n\nthe rest\n")
    monkeypatch.setattr(pairs, "recorded", lambda records: few)
    monkeypatch.setattr("sys.argv", ["pairs.py", str(ROOT / "golden/records/micro-xeon.zip"), "--write", str(page)])
    pairs.main()
    text = page.read_text()
    assert "| gap 1% | 2 | fail: 2 | pass: 0 [0.0%, 84.2%] |" in text and text.endswith("<!-- end -->\n\nthe rest\n")
    assert "old" not in text and "formats" not in capsys.readouterr().out


def test_the_page_holds_every_table_and_the_thresholds_lie_between_pairs_and_mis_pairs():
    tables = {m[2]: m[0].splitlines() for m in pairs.MARK.finditer(PAGE)}
    assert set(tables) == {"correlations", "whole", "spikes", "formats", "spreads"}
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables["correlations"][3:-1]]
    assert {r[0] for r in rows} == {"micro", "tiny", "mini", "small", "base", "1b", "tiny-moe", "small-moe"}
    assert min(float(r[2]) for r in rows) > PAIRED > APART > max(float(r[4]) for r in rows)
    assert len(tables["formats"]) == len(pairs.WRITERS) + 4
    assert f"needs a correlation of {PAIRED}. Below {APART} " in PAGE
