"""Pairs that alternate between fast and slow: two neighbors count together. Independent pairs count one by one."""

from __future__ import annotations

import alternation
import numpy as np
import pytest
from fp8parity.judging import speed, stats
from fp8parity.judging.references import pooling
from fp8parity.records import sets
from fp8parity.records.schema import Throughput
from sessions import ROOT
from timings import ROW, made

SWING = [0.05 if i % 2 else -0.05 for i in range(17)]


def swinging(ratio: float = 1.2, swing: float = 1.0, slope: float = 0.0, pairs: int = 17) -> Throughput:
    """BF16's turns swing with the clock, and the recipe's do not. ``slope`` is a drift of the recipe over all pairs."""
    bf16 = [0.4 * (1 + swing * s) for s in SWING[:pairs]]
    return made(bf16_seconds=bf16, recipe_seconds=[0.4 / ratio * (1 + slope * i / pairs) for i in range(pairs)])


def judged(record: Throughput) -> str:
    return speed.judge(record, pooling.updated(None, [made(1.2, pairs=17)]), ROW).status


def test_two_neighbors_of_alternating_pairs_count_together():
    assert speed.ratios(swinging()) == pytest.approx([1.2] * 8)
    detail = speed.measured(swinging())
    assert detail.ratio == pytest.approx(1.2)
    assert detail.pairs == 17


def test_a_sound_recipe_is_green_and_a_delay_is_red_at_any_swing():
    """Taken one by one, the first is called undecided: 9 of 17 pairs are slow."""
    single = np.divide(swinging().bf16_seconds, swinging().recipe_seconds).tolist()
    assert stats.median_interval(single) == pytest.approx((1.14, 1.14, 1.26))
    assert [judged(swinging(1.2, swing)) for swing in (0, 0.5, 1, 1.5)] == ["pass"] * 4
    assert [judged(swinging(1.2 / 1.06, swing)) for swing in (0, 0.5, 1, 1.5)] == ["fail"] * 4
    assert [judged(swinging(1.2 * 1.06, swing)) for swing in (0, 0.5, 1, 1.5)] == ["improved"] * 4


def test_independent_pairs_count_one_by_one():
    record = made(1.2, pairs=17)
    assert speed.ratios(record) == np.divide(record.bf16_seconds, record.recipe_seconds).tolist()
    assert len(speed.ratios(swinging(pairs=11))) == 11, "5 pairs of neighbors have no interval"
    assert len(speed.ratios(swinging(pairs=12))) == 6


def test_the_narrower_interval_counts():
    """The interval of eight neighbors reaches from the least to the largest: one outlier among them makes it wider than that of 17."""
    record = swinging(swing=0.1, slope=0.004)
    assert stats.next_correlation(np.log(np.divide(record.bf16_seconds, record.recipe_seconds))) < speed.ALTERNATING
    assert len(speed.ratios(record)) == 8
    outlier = record.model_copy(update={"bf16_seconds": [*record.bf16_seconds[:-1], 0.41]})
    assert len(speed.ratios(outlier)) == 17


def test_a_correlation_at_the_limit_is_none(monkeypatch):
    record = swinging()
    found = stats.next_correlation(np.log(np.divide(record.bf16_seconds, record.recipe_seconds)))
    monkeypatch.setattr(speed, "ALTERNATING", found)
    assert len(speed.ratios(record)) == 17
    monkeypatch.setattr(speed, "ALTERNATING", np.nextafter(found, 0))
    assert len(speed.ratios(record)) == 8


def test_the_table_of_the_benchmark(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(speed, "ALTERNATING", speed.ALTERNATING)  # --single changes it
    path = tmp_path / "set.zip"
    sets.save([swinging()], path)
    alternation.main([str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["te-current-base-native", "-0.94", "10.5%", "0.0%", "10.5%"]
    assert lines[-1] == "0% slower: 1 no-golden"
    assert lines[-2].startswith(
        "1 record; correlation with the next pair: median -0.94, -0.94 to -0.94, 1 below -0.5; "
    )
    alternation.main([str(ROOT / "golden/records/h100-blocks-again.zip"), "--slower", "0.2", "--single"])
    assert capsys.readouterr().out.splitlines()[-1] == "20% slower: 21 fail"
    path = tmp_path / "short.zip"
    sets.save([made()], path)
    with pytest.raises(SystemExit, match="no step or block of 12 pairs"):
        alternation.main([str(path)])
