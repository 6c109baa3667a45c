"""Each [[threshold]] row decides: with another number a verdict, or what it rests on, is another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gemm_records
import numpy as np
import paired
import pytest
import timings
import trajectories
import two_sides
from faults.references import _moved_by as moved_by
from faults.references import micro
from faults.runs import calibration
from fp8parity.cli import main
from fp8parity.judging import gemms, identity, policy, speed
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.policy import Policy
from fp8parity.judging.policy.thresholds import RANGES, Threshold
from fp8parity.judging.references import Goldens, pooling
from fp8parity.judging.references.loss import Golden
from fp8parity.records.cell import TRAINER_CORPUS
from fp8parity.records.schema import AnyRecord, Probed, TrainerRun, Trajectory
from sessions import DAY, stored
from test_mean_bands import NAME as NOISY
from timings import CELL, calm_but
from two_sides import save

GOLDENS, SHIPPED = stored()
MICRO = GOLDENS.loss["micro", "topics"]
RUN = paired.runner(trajectories.made)
SEEDS = paired.SEEDS
BARE = paired.golden_of(RUN).model_copy(update={"noise": []})
WHY = "another number"


def with_number(name: str, value: float, rules: Policy = SHIPPED) -> Policy:
    return rules.model_copy(update={"threshold": (*rules.threshold, Threshold(name=name, value=value, why=WHY))})


def verdict(rules: Policy, records: Sequence[AnyRecord], golden: Golden = MICRO, recipe: str = "te-current") -> str:
    """Status, headline and failing numbers of a recipe of micro."""
    [found] = evaluate(records, Goldens({("micro", "topics"): golden}, numbers=GOLDENS.numbers), rules)
    [v] = [v for v in found.verdicts if v.cell.recipe == recipe]
    return f"{v.status}: {v.headline}; {[f.metric for f in v.failing]}"


def changed(
    change: Callable[[np.ndarray], np.ndarray], key: str = "loss", recipe: str = "te-current"
) -> list[AnyRecord]:
    """Sound runs of micro, and changed ones of the recipe."""
    runs = [r for r in calibration("micro") if r.cell.recipe in ("bf16", recipe) and not r.variant]
    return [
        r if r.cell.is_control else r.model_copy(update={key: change(np.asarray(getattr(r, key))).tolist()})
        for r in runs
    ]


def window(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda loss: np.where((np.arange(len(loss)) >= 100) & (np.arange(len(loss)) < 110), factor, 1) * loss


def recipes(change: Callable[[Trajectory], dict[str, Any]]) -> list[AnyRecord]:
    """Sound runs of micro; those of the recipe with these changes."""
    runs = [r for r in micro() if isinstance(r, Trajectory)]
    return [r if r.cell.is_control else r.model_copy(update=change(r)) for r in runs]


def validated(*factors: float) -> list[AnyRecord]:
    """The last validations of the recipe are off by these factors."""

    def change(r: Trajectory) -> dict[str, Any]:
        kept, last = r.validation[: -len(factors)], r.validation[-len(factors) :]
        return {"validation": [*kept, *((at, v * f) for (at, v), f in zip(last, factors, strict=True))]}

    return recipes(change)


def probed(early: float, late: float, worst: float = 20.0, *middle: float) -> list[AnyRecord]:
    """The gradients of the recipe have these SQNRs."""
    between = [Probed(step=77, sqnr=value, worst=20, where="c") for value in middle]

    def change(r: Trajectory) -> dict[str, Any]:
        last = Probed(step=r.steps - 1, sqnr=late, worst=worst, where="b")
        return {"probes": [Probed(step=10, sqnr=early, worst=20, where="a"), *between, last]}

    return recipes(change)


def near(share: float) -> list[AnyRecord]:
    """The losses of the recipe go a share of the way from BF16's to their own."""
    bf16 = {r.seed: np.asarray(r.loss) for r in micro() if isinstance(r, Trajectory) and r.cell.is_control}
    return recipes(lambda r: {"loss": (bf16[r.seed] + share * (np.asarray(r.loss) - bf16[r.seed])).tolist()})


def repeated(rules: Policy) -> str:
    """A trainer that does not repeat itself: its FP8 is nine times as far from BF16 as BF16's repeat."""
    run = TrainerRun.model_construct(learning_rate=[], batch=[])
    of = {"trainer": run, "cell": RUN("te-current").cell.model_copy(update={"corpus": TRAINER_CORPUS})}
    controls = [RUN(seed=s) for s in SEEDS]
    runs = [RUN("te-current", s, change=9e-4).model_copy(update=of) for s in SEEDS]
    again = [s.replicas[0].model_copy(update={"loss": (np.asarray(s.loss) * 1.0001).tolist()}) for s in BARE.seeds]
    seeds = [s.model_copy(update={"replicas": [r]}) for s, r in zip(BARE.seeds, again, strict=True)]
    golden = BARE.model_copy(update={"seeds": seeds})
    return str(identity.mistaken(runs, controls, golden, rules.thresholds(runs[0].cell)))


def step(rules: Policy, **changes: Any) -> str:
    golden = pooling.updated(None, [timings.made(watch=calm_but(sm_clocks=[1980] * 22, power_capped=0.5))])
    given = timings.made(**changes)
    return str(speed.judge(given, golden, timings.ROW, rules.thresholds(CELL)).status)


def layer(rules: Policy) -> str:
    record = gemm_records.made(watch=gemm_records.watched(power_capped=0.4))
    golden = pooling.updated(None, [gemm_records.made()])
    return str(gemms.judge(record, golden, gemm_records.ROW, rules.thresholds(CELL)).status)


def sets(rules: Policy) -> str:
    """A mean gradient norm that is 1% higher in NEW."""
    old, new = two_sides.runs(trajectories.made), two_sides.runs(trajectories.made, "2.13.0")
    new = [r.model_copy(update={"grad_norm": [1.01 * v for v in r.grad_norm]}) for r in new]
    mine = two_sides.POLICY.model_copy(update={"threshold": rules.threshold})
    found = two_sides.compared(old, new, mine)
    return str([(c.what, c.moved) for c in found.changes])


HOT: dict[str, Any] = {"watch": calm_but(sm_clocks=[1900] * 22, power_capped=0.5)}
SLOWER: dict[str, Any] = {"bf16_seconds": [0.4 * 1.04] * 11, "recipe_seconds": [0.4 * 1.04 / 1.2] * 11}
CASES: dict[str, tuple[float, Callable[[Policy], str]]] = {
    "alpha": (1e-9, lambda p: verdict(p, micro(1.0007))),
    "band_alpha": (1e-15, lambda p: verdict(p, changed(window(1.003)))),
    "mean_alpha": (1e-15, lambda p: verdict(p, changed(window(1.004), recipe=NOISY), recipe=NOISY)),
    "min_mean_seeds": (1000, lambda p: verdict(p, changed(window(1.004), recipe=NOISY), recipe=NOISY)),
    "blame_alpha": (1e-15, lambda p: verdict(p, micro(1.0012), moved_by(1.0005, 240)(MICRO))),
    "flat_margins": (1, lambda p: verdict(p, validated(1.002))),
    "early_validations": (1, lambda p: verdict(p, validated(1.005, 1))),
    "min_norm_shift": (0.001, sets),
    "max_sqnr_rise": (1, lambda p: verdict(p, probed(25, 27))),
    "max_middle_rise": (1, lambda p: verdict(p, probed(25, 24, 20, 27))),
    "max_sqnr_fall": (5, lambda p: verdict(p, probed(25, 18))),
    "min_weight_sqnr": (10, lambda p: verdict(p, probed(25, 24, 6))),
    "max_quantized_sqnr": (60, lambda p: verdict(p, probed(50, 50))),
    "min_noise_share": (1e-4, lambda p: verdict(p, near(0.05))),
    "min_step_gap": (1e-12, lambda p: verdict(p, near(1e-4), MICRO.model_copy(update={"noise": []}))),
    "min_over_repeats": (100, repeated),
    "least_pairs": (12, step),
    "max_busy": (1, partial(step, watch=calm_but(busy_before=3))),
    "clock_band": (0.01, partial(step, **HOT, **SLOWER)),
    "max_capped_rise": (0.1, layer),
}
"""Another number for each threshold, and what it decides."""


def test_every_threshold_is_one_of_the_cases():
    assert set(CASES) == set(RANGES) == {row.name for row in SHIPPED.threshold}


@pytest.mark.parametrize("name", CASES)
def test_threshold_decides(name):
    value, decided = CASES[name]
    assert decided(SHIPPED) != decided(with_number(name, value))


def test_own_threshold_replaces_the_shipped_one_for_its_cells(tmp_path, capsys):
    """The seven pairs of a record are too few for the shipped number."""
    own = '[[extends]]\ngoldens = "shipped"\n[[threshold]]\nname = "least_pairs"\nvalue = 7\nmodel = "base"\nwhy = "a fast card"\n'
    (tmp_path / policy.FILE).write_text(own)
    records = save(tmp_path / "set", [timings.made(pairs=7)])
    assert main(["judge", str(records)]) == 1 and "7 pairs; 8 are needed" in capsys.readouterr().out
    assert main(["judge", str(records), "--golden-dir", str(tmp_path)]) == 1
    assert "are needed" not in capsys.readouterr().out
    rules = policy.load(tmp_path, DAY)
    assert [rules.thresholds(CELL.model_copy(update={"model": m})).least_pairs for m in ("base", "tiny")] == [7, 8]


def test_folder_that_stands_alone_has_the_shipped_thresholds(tmp_path):
    (tmp_path / policy.FILE).write_text('[[loss]]\nmargin = 0.1\nwhy = "a made-up row"\n')
    assert policy.load(tmp_path, DAY).thresholds(CELL) == SHIPPED.thresholds(CELL)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('name = "max_sqnr_ris"\nvalue = 3', "unknown threshold 'max_sqnr_ris': did you mean max_sqnr_rise"),
        ('name = "max_sqnr_rise"\nvalue = nan', "max_sqnr_rise is not a number"),
        ('name = "max_sqnr_rise"\nvalue = 0', "Input should be greater than 0"),
        ('name = "least_pairs"\nvalue = 5', "Input should be greater than or equal to 6"),
        ('name = "least_pairs"\nvalue = 8.5', "Input should be a valid integer"),
        ('name = "alpha"\nvalue = 0.5', "Input should be less than 0.5"),
    ],
)
def test_wrong_threshold_is_refused_with_its_line(tmp_path, row, says):
    (tmp_path / policy.FILE).write_text(f'[[threshold]]\n{row}\nwhy = "a made-up row"\n')
    with pytest.raises(ValueError, match=rf"policy.toml:1: \[\[threshold\]\] .*{says}"):
        policy.load(tmp_path, DAY)


def test_name_without_a_row_is_an_error():
    rows = tuple(row for row in SHIPPED.threshold if row.name != "alpha")
    with pytest.raises(ValueError, match=r"no \[\[threshold\]\] row gives alpha for te-current-base-native"):
        SHIPPED.model_copy(update={"threshold": rows}).thresholds(CELL)
