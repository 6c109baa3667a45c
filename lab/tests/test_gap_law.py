"""Schedules of three phases, and the law by which gaps grow: what was planted is found, with its error."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gap_law
import gap_page
import gap_parts
import numpy as np
import pytest
import reports
from fp8parity.judging.stats import Floats
from fp8parity.records.schema import Trajectory
from fp8parity.workload.presets import presets
from fp8parity.workload.schedule import OPTIMIZED, SCHEDULES, Schedule, spec_hash
from fp8parity_lab.long_runs import PhasedSchedule, phased

PHASES = PhasedSchedule(2_000, rows=8, length=128, lr=1e-3, warmup=100, stable=1_100, after=300, least=0.1, tail=100)
FLOOR, LOSS = 3.3, 3.4
STORED = Path(gap_page.__file__).parents[1] / "docs" / "evidence" / "gap-law.csv"


def cosine(s: Schedule, step: int) -> float:
    """The rate of the schedules that all goldens were trained by."""
    if step < s.warmup:
        return s.lr * (step + 1) / s.warmup
    return s.lr * 0.5 * (1 + math.cos(math.pi * (step - s.warmup) / (s.steps - s.warmup)))


def test_schedules_without_phases_keep_their_rates_and_hashes():
    """To the bit: all goldens and records depend on them."""
    for name, core in SCHEDULES.items():
        s = phased(replace(presets()["tiny"], schedule=core)).schedule
        assert [s.lr_at(i) for i in range(s.steps)] == [cosine(core, i) for i in range(s.steps)], name
        assert [core.lr_at(i) for i in range(s.steps)] == [cosine(core, i) for i in range(s.steps)], name
        assert s.terms == core.terms and ("optimizer" in core.terms) == (name in OPTIMIZED)
    model = presets()["tiny"].model
    hashes = {
        spec_hash(model, replace(PHASES, **change), "topics") for change in ({}, {"stable": 1_000}, {"least": 0.0})
    }
    assert len(hashes) == 3


def test_the_rate_of_three_phases():
    rates = [PHASES.lr_at(step) for step in range(PHASES.steps)]
    assert set(rates[99:1_201]) == {1e-3}
    assert all(a > b for a, b in pairwise(rates[1_200:1_700]))
    assert rates[1_450] == pytest.approx(0.55e-3)
    assert set(rates[1_700:]) == {1e-4}
    with pytest.raises(ValueError, match=r"2000 steps with 100 of warm-up, 1600 stable and 300 after .* leave none"):
        replace(PHASES, stable=1_600)


def run(recipe: str, seed: int, gap: Floats, variant: str = "", model: str = "tiny") -> Trajectory:
    """A run whose loss is LOSS, plus ``gap`` times its excess over FLOOR."""
    made = reports.run(model, recipe, seed, 10, variant=variant, floor=FLOOR)
    loss = (LOSS + (LOSS - FLOOR) * gap).tolist()
    return made.model_copy(update={"loss": loss, "schedule": PHASES.numbers})


STEPS = np.arange(1, PHASES.steps + 1)
TOKENS = STEPS * PHASES.tokens / 1e6


def law(a: float, b: float, seed: int, noise: float = 1e-5) -> Floats:
    """A gap that grows with the tokens, and halves at the end of the constant phase."""
    drawn = np.random.default_rng(seed).normal(0, noise)
    return np.asarray((a * TOKENS**b + drawn) * np.where(STEPS > 1_200, 0.5, 1))


def kept(runs: list[Trajectory]) -> list[gap_parts.Part]:
    return [part for run in runs for part in gap_parts.parts(run)]


def rows(runs: list[Trajectory]) -> dict[str, list[str]]:
    lines = [line for line in gap_law.tables(kept(runs)) if line.startswith("|")]
    found = [[entry.strip() for entry in line.split("|")[1:-1]] for line in lines]
    cut = next(i for i, row in enumerate(found) if row[0] == "fit")
    return {f"fit {r[0].partition(',')[0]}" if i > cut else r[0]: r[1:] for i, r in enumerate(found)}


def test_a_planted_law_is_found_and_predicts_the_range_that_it_did_not_see():
    runs = []
    for seed in range(4):
        runs += [run("bf16", seed, 0 * TOKENS), run("bf16", seed, law(0, 1, seed + 50), "replica1")]
        runs += [run("te-block", seed, law(0.002, 0.5, seed)), run("te-delayed", seed, law(0.004, 0.8, seed + 9))]
    found = rows(runs)
    assert found["% of the excess at"][-1] == f"end of after the decay, {2.0:.0f} million"
    for recipe, (a, b) in {"te-block native": (0.002, 0.5), "te-delayed native": (0.004, 0.8)}.items():
        share, power, _, predicted, measured = found[f"fit {recipe}"]
        for text, planted in ((share, 100 * a), (power, b)):
            mean, half = map(float, text.split(" ± "))
            assert mean == pytest.approx(planted, rel=0.05)
            assert abs(mean - planted) <= half + 0.01
        mean, half = map(float, measured.split(" ± "))
        assert abs(float(predicted) - mean) < half + 0.01
        assert float(found[recipe][-1].split(" ± ")[0]) == pytest.approx(100 * 0.5 * a * TOKENS[-100] ** b, rel=0.1)
    assert not any(name.startswith("fit bf16") for name in found)


def test_a_law_that_breaks_is_seen_where_it_was_held_out():
    """The gap stops to grow in the last range."""
    broken = [np.minimum(law(0.004, 1.0, seed), 0.004 * TOKENS[700]) for seed in range(4)]
    runs = [run("bf16", seed, 0 * TOKENS) for seed in range(4)]
    runs += [run("te-delayed", seed, gap) for seed, gap in enumerate(broken)]
    *_, predicted, measured = rows(runs)["fit te-delayed native"]
    mean, half = map(float, measured.split(" ± "))
    assert float(predicted) > mean + half


def test_a_gap_inside_the_noise_has_no_fit_and_no_law_over_sizes():
    runs = [run("bf16", seed, 0 * TOKENS) for seed in range(4)]
    runs += [run("te-block", seed, law(0, 1, seed, noise=1e-3)) for seed in range(4)]
    assert rows(runs)["fit te-block native"][0] == "no gap seen"


def test_a_planted_law_over_tokens_and_sizes_is_found():
    """share = 0.1% tokens^0.5 parameters^0.3."""
    runs = []
    for model, size in {"tiny": 1.0, "mini": 14.0}.items():
        for seed in range(3):
            gap = law(0.001 * size**0.3, 0.5, seed)
            both = run("bf16", seed, 0 * TOKENS, model=model), run("te-block", seed, gap, model=model)
            runs += [r.model_copy(update={"parameters": int(size * 1e6)}) for r in both]
    found = [float(text.partition(" ± ")[0]) for text in rows(runs)["fit te-block native"][:3]]
    assert found == pytest.approx([0.1, 0.5, 0.3], rel=0.06)


def test_kept_losses_are_read_as_they_were(tmp_path: Path):
    runs = [run("bf16", 0, 0 * TOKENS), run("te-block", 0, law(0.002, 0.5, 0))]
    gap_parts.keep(kept(runs), tmp_path / "kept.csv")
    found = gap_parts.read([tmp_path / "kept.csv"])
    assert [p._replace(loss=0) for p in found] == [p._replace(loss=0) for p in kept(runs)]
    assert [p.loss for p in found] == pytest.approx([p.loss for p in kept(runs)], abs=1e-9)


def test_a_corpus_of_unknown_entropy_is_refused():
    with pytest.raises(ValueError, match="entropy of topics is not known"):
        kept([run("bf16", 0, 0 * TOKENS).model_copy(update={"floor": None})])


def test_the_page_and_its_plot_are_what_the_kept_losses_give(tmp_path: Path):
    copy = tmp_path / "gap-law.csv"
    copy.write_text(STORED.read_text())
    gap_page.main(copy)
    assert copy.with_suffix(".md").read_text() == STORED.with_suffix(".md").read_text()
    assert copy.with_suffix(".svg").read_text().startswith("<?xml")


def test_a_small_gap_in_all_ranges_is_seen():
    """No range alone excludes zero after Bonferroni's correction."""
    runs = [run("bf16", seed, 0 * TOKENS) for seed in range(3)]
    noises = np.random.default_rng(1).normal(0, 2e-3, (3, PHASES.steps // 100)).repeat(100, axis=1)
    runs += [run("te-block", seed, 1.5e-3 + noise) for seed, noise in enumerate(noises)]
    assert rows(runs)["fit te-block native"][0] != "no gap seen"


def test_a_phase_that_ends_before_the_first_step_of_a_fit_is_left_out():
    short = {**PHASES.numbers, "stable": 150}
    made = kept([run("bf16", 0, 0 * TOKENS).model_copy(update={"schedule": short})])
    assert {p.phase for p in made} == {"decay", "after the decay"}
    assert all(gap_parts.FIRST <= p.low < p.high for p in made)


def test_runs_of_other_phases_or_given_twice_are_refused():
    other = {**PHASES.numbers, "stable": 900}
    runs = [run("bf16", 0, 0 * TOKENS), run("te-block", 0, 0 * TOKENS)]
    mixed = [runs[0], runs[1].model_copy(update={"schedule": other})]
    for given in (mixed, runs + runs):
        with pytest.raises(ValueError, match="its runs have several schedules, or one is given twice"):
            gap_law.lines(kept(given))


def test_a_run_with_a_planted_fault_is_no_replica():
    sound = [run("bf16", seed, 0 * TOKENS) for seed in range(3)]
    sound += [run("te-block", seed, law(0.002, 0.5, seed)) for seed in range(3)]
    planted = [run("bf16", seed, law(0.01, 0.5, seed), "one in a thousand") for seed in range(3)]
    assert rows(sound + planted) == rows(sound)
