"""What happens along a run: spikes, late gaps, trends, gradient norms and validations, against bands from paired runs.

These runs are sound. tests/faults/loss_curves.py has the faults.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from fp8parity.judging import loss_curves, spreads, stats
from fp8parity.judging.loss_goldens import Golden
from fp8parity.judging.policy import LossRow
from narrowed import some
from paired import SEEDS, Make, judged


def test_a_golden_holds_replicas_and_runs_are_compared_with_their_mean(golden: Golden):
    seed = golden.seeds[1]
    assert [r.variant for r in seed.replicas] == ["replica1", "replica2"]
    assert seed.mean_loss == pytest.approx(np.mean([seed.loss, *(r.loss for r in seed.replicas)], axis=0))
    [spread] = golden.spreads
    assert (spread.recipes, spread.runs, spread.seeds, len(spread.loss), len(spread.grad_norm)) == (
        ["te-current"],
        24,
        24,
        20,
        20,
    )
    assert np.mean(spread.loss) == pytest.approx(1e-4, rel=0.3)
    assert np.mean(spread.grad_norm) == pytest.approx(1e-3, rel=0.3)


def test_sound_runs_pass(golden: Golden, run: Make, tmp_path):
    """Twenty draws of noise, none red. The control equals its golden but for noise of 0.001%."""
    controls = [run(seed=s) for s in SEEDS]
    assert judged(golden, controls, controls, tmp_path).status == "pass"
    for noise in range(10, 30):
        found = judged(golden, [run("te-current", s, noise) for s in SEEDS], controls, tmp_path)
        assert (found.status, found.lines[1][0]) == ("pass", "to control"), found.message()


def test_a_spread_of_24_seeds_is_pooled_with_23_degrees_of_freedom(golden: Golden, run: Make, tmp_path):
    runs, controls = [run("te-current", s, 10) for s in SEEDS], [run(seed=s) for s in SEEDS]
    gaps = stats.relative_gaps([r.loss for r in runs], [golden.seeds[s].mean_loss for s in SEEDS], golden.tail)
    variance = (2 * np.var(gaps, ddof=1) + 23 * golden.spreads[0].tail_sd ** 2) / (2 + 23)
    half = scipy.stats.t.ppf(0.95, 2 + 23) * (variance / 3) ** 0.5
    gap = some(some(judged(golden, runs, controls, tmp_path).loss).gap)
    assert (gap.low, gap.high) == pytest.approx((np.mean(gaps) - half, np.mean(gaps) + half), rel=1e-6)


def test_a_recipe_without_a_spread_is_said_to_be(golden: Golden, run: Make, tmp_path):
    found = judged(golden, [run("te-nvfp4", s, 10) for s in SEEDS], [run(seed=s) for s in SEEDS], tmp_path)
    assert [text for text in found.unmeasured if "spread" in text] == [
        "no spread of te-nvfp4 on nano; its step band has one width, and its norms are not judged"
    ]


def test_spreads_are_refused(golden: Golden, run: Make):
    control = run(seed=0)
    dirty = control.provenance.model_copy(update={"dirty": True})
    with pytest.raises(ValueError, match="uncommitted changes; commit first, so that the golden names its code$"):
        spreads.with_spread(golden, [(run("te-current", 0, 1, provenance=dirty), control)], 8)
    both = spreads.with_spread(
        golden, [(run(r, s, 1), run(seed=s)) for r in ("te-current", "te-block") for s in (0, 1)], 8
    )
    with pytest.raises(ValueError, match="the spread of te-block rests on the same row"):
        spreads.with_spread(both, [(run("te-current", 0, 1), control)], 8)
    with pytest.raises(ValueError, match="schedule differ"):
        spreads.with_spread(golden, [(run("te-current", 0, 1), run(spec_hash="other"))], 8)


def test_pairs_are_runs_with_a_control_of_their_machine(run: Make):
    other = run().provenance.model_copy(update={"device": "another"})
    first, second, lost = run("te-current", 0, 1), run("te-block", 5, 1), run("te-current", 1, 1, provenance=other)
    records = [first, second, lost, run(seed=0), run(seed=5), run(seed=1), run(seed=0, variant="replica1")]
    assert spreads.pairs(records) == [(first, records[3]), (second, records[4])]


def test_bf16_with_replicas_has_bands_from_their_pairs(golden: Golden):
    """Without replicas, or if the row does not ask for drift, the band has one width."""
    row = LossRow(margin=0.005, bf16_margin=1e-6, window=8, min_norm_band=0.01, why="a made-up row")
    paired = loss_curves.control_limits(golden, row)
    assert paired.norm is not None and len(set(paired.loss.half)) > 1
    bare = golden.model_copy(update={"seeds": [s.model_copy(update={"replicas": []}) for s in golden.seeds]})
    for flat in (
        loss_curves.control_limits(bare, row),
        loss_curves.control_limits(golden, row.model_copy(update={"bf16_margin": None})),
    ):
        assert flat.norm is None and len(set(flat.loss.half)) == 1
