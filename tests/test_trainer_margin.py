"""The margin of a trainer: from the repeats of its BF16, what its log did not hold, and which faults its gate sees."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fp8parity.judging import policy, references
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens
from fp8parity.judging.trainer_calibration import calibrate_trainer
from fp8parity.judging.verdict import LossDetail, Verdict
from fp8parity.records.schema import AnyRecord, Trajectory
from fp8parity.records.storage import load_records
from fp8parity.report.sentence import sentence
from narrowed import some
from processes import ROOT, run
from projects import complete
from test_trainers import COMMAND, write

EXAMPLE = ROOT / "examples" / "trainers" / "accelerate"
KEY = ("accelerate-llama", "trainer-data")


@pytest.fixture(scope="module")
def records() -> list[Trajectory]:
    return [r for r in load_records(EXAMPLE / "records-cpu.zip") if isinstance(r, Trajectory)]


@pytest.fixture(scope="module")
def goldens() -> Goldens:
    return references.load(EXAMPLE / "golden")


@pytest.fixture(scope="module")
def rules() -> Policy:
    return policy.load(EXAMPLE / "golden", datetime.date(2026, 1, 1))


def verdict(records: list[Trajectory], goldens: Goldens, rules: Policy, recipe: str = "ao-rowwise") -> Verdict:
    kept: list[AnyRecord] = [r for r in records if r.cell.recipe in ("bf16", recipe)]
    return next(v for e in evaluate(kept, goldens, rules) for v in e.verdicts if v.cell.recipe == recipe)


def detail(found: Verdict) -> LossDetail:
    return some(found.loss)


def scaled(records: list[Trajectory], gap: Callable[[int], float]) -> list[Trajectory]:
    """The same runs; the last half of each run of a recipe is off by the gap of its seed."""

    def changed(r: Trajectory) -> Trajectory:
        ramp = 1 + gap(r.seed) * np.clip(np.arange(r.steps) / r.steps * 4 - 2, 0, 1)
        return r if r.cell.is_control else r.model_copy(update={"loss": (np.asarray(r.loss) * ramp).tolist()})

    return [changed(r) for r in records]


def repeated(goldens: Goldens, gaps: list[float]) -> Goldens:
    """The goldens, with repeats of BF16 that are off by these gaps."""
    golden = goldens.loss[KEY]
    seeds = [
        s.model_copy(update={"replicas": [r.model_copy(update={"loss": [x * (1 + gap) for x in s.loss]}) for r in s.replicas]})
        for s, gap in zip(golden.seeds, gaps, strict=True)
    ]  # fmt: skip
    return replace(goldens, loss={KEY: golden.model_copy(update={"seeds": seeds})})


@pytest.mark.parametrize(("gap", "words"), [(0.002, "outside the margin"), (-0.0025, "such a gain is a fault")])
def test_gap_of_a_fifth_of_a_percent_fails_on_both_sides(records, goldens, rules, gap, words):
    found = verdict(scaled(records, lambda seed: gap), goldens, rules)
    assert (found.status, detail(found).margin) == ("fail", 0.0015) and words in found.headline


def test_noisy_repeats_widen_the_margin_up_to_the_row(records, goldens, rules):
    margins = []
    for noise in (1e-5, 8e-4, 5e-3):
        found = verdict(records, repeated(goldens, [noise, -noise, noise]), rules)
        margins.append(detail(found).margin)
    assert margins == [0.0015, pytest.approx(0.0025, abs=2e-4), 0.005]


def test_golden_without_repeats_keeps_the_margin_of_the_row(records, goldens, rules):
    golden = goldens.loss[KEY]
    bare = [s.model_copy(update={"replicas": []}) for s in golden.seeds]
    found = verdict(records, replace(goldens, loss={KEY: golden.model_copy(update={"seeds": bare})}), rules)
    assert detail(found).margin == 0.005 and "holds no repeats of BF16" in dict(found.lines)["tail gap"]


def test_margin_of_the_user_is_not_changed(records, goldens, rules):
    own = rules.loss[-1].model_copy(update={"margin": 0.003, "min_margin": None})
    found = verdict(scaled(records, lambda seed: 0.002), goldens, rules.model_copy(update={"loss": (own,)}))
    assert (found.status, detail(found).margin) == ("pass", 0.003)


@pytest.mark.parametrize(
    ("spread", "middle", "words"), [(0.0012, 0.0, "6 would decide"), (0.001, 0.0011, "400 would not decide")]
)
def test_noisy_recipe_says_how_many_seeds_decide(records, goldens, rules, spread, middle, words):
    found = verdict(scaled(records, lambda seed: middle + spread * (seed - 1)), goldens, rules)
    assert found.status == "inconclusive" and words in dict(found.lines)["seeds"]


def test_min_margin_above_the_margin_is_refused(rules):
    row = rules.loss[-1].model_dump() | {"min_margin": 0.01}
    with pytest.raises(ValueError, match="min_margin 0.01 is above margin 0.005"):
        policy.LossRow.model_validate(row)


def rated(run: Trajectory, rates: list[float]) -> dict[str, object]:
    return {"trainer": some(run.trainer).model_copy(update={"learning_rate": rates})}


def joined(run: Trajectory, control: Trajectory, first: bool) -> dict[str, object]:
    at = 3 * run.steps // 4 if first else run.steps // 2
    return {"loss": [*control.loss[:at], *run.loss[at:]] if first else [*run.loss[:at], *control.loss[at:]]}


FOUND: dict[str, tuple[Callable[[Trajectory, Trajectory, Trajectory], dict[str, object]], str]] = {
    "losses of BF16 in the second half": (
        lambda run, own, other: joined(run, own, first=False),
        "equal BF16's: nothing",
    ),
    "BF16's losses in four digits": (lambda run, own, other: {"loss": [round(x, 4) for x in own.loss]}, "equal BF16's"),
    "other batches in three quarters": (lambda run, own, other: joined(run, other, first=True), "on other batches"),
    "one number at the end": (lambda run, own, other: {"loss": [*run.loss[:-20], *[run.loss[-20]] * 20]}, "one number"),
    "one learning rate": (
        lambda run, own, other: rated(run, [some(run.trainer).learning_rate[0], *[math.nan] * (run.steps - 1)]),
        "logged its learning rate 1 times",
    ),
}
"""What a trial found accepted: the change of a run by its own BF16 run and that of another seed."""


@pytest.mark.parametrize(("change", "words"), FOUND.values(), ids=FOUND)
def test_found_fault_of_a_log_is_red(records, goldens, rules, change, words):
    bf16 = {r.seed: r for r in records if r.cell.is_control}
    seeds = sorted(bf16)
    changed = [
        r if r.cell.is_control else
        r.model_copy(update=change(r, bf16[r.seed], bf16[seeds[seeds.index(r.seed) - 1]]))
        for r in records
    ]  # fmt: skip
    found = verdict(changed, goldens, rules)
    assert found.status == "fail" and words in found.headline


def test_norm_that_never_changes_is_not_checked(records, goldens, rules):
    found = verdict([r.model_copy(update={"grad_norm": [1.0] * r.steps}) for r in records], goldens, rules)
    assert detail(found).not_logged == ["gradient norm that changes"]


def test_golden_whose_seeds_are_as_near_as_its_repeats_is_refused(goldens):
    golden = goldens.loss[KEY]
    first = golden.seeds[0]
    near = [1e-6 * (-1) ** i for i in range(len(first.loss))]
    seeds = [
        s.model_copy(update={"loss": [x * (1 + i * d) for x, d in zip(first.loss, near, strict=True)]})
        for i, s in enumerate(golden.seeds)
    ]
    again = [
        s.model_copy(update={"replicas": [r.model_copy(update={"loss": [x * (1 - 2 * d) for x, d in zip(s.loss, near, strict=True)]}) for r in s.replicas]})
        for s in seeds
    ]  # fmt: skip
    made = golden.model_copy(update={"seeds": again, "digest": "", "noise": []})
    with pytest.raises(ValueError, match="the seed changes nothing"):
        type(golden).model_validate_json(made.model_dump_json())


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("learning_rate grad_norm", "Accept: the only check is green."),
        ("grad_norm", "Accept: the only check is green; not checked: learning rate (not logged by accelerate-llama)."),
        ("", "green; not checked: learning rate, gradient norm (not logged by accelerate-llama)."),
    ],
)
def test_accept_names_what_was_not_logged(records, goldens, rules, log, words):
    less: dict[str, object] = {} if "grad_norm" in log else {"grad_norm": []}
    bare = [r.model_copy(update=less) for r in records]
    if "learning_rate" not in log:
        bare = [
            r.model_copy(update={"trainer": some(r.trainer).model_copy(update={"learning_rate": []})}) for r in bare
        ]
    golden = goldens.loss[KEY]
    seeds = [
        s.model_copy(update=less | {"replicas": [r.model_copy(update=less) for r in s.replicas]}) for s in golden.seeds
    ]
    found = verdict(bare, replace(goldens, loss={KEY: golden.model_copy(update={"seeds": seeds})}), rules)
    assert sentence([found], []).endswith(words)


STORY = {
    "command": [*COMMAND, "--lr=0.01", "--keys=step,loss"],
    "recipes": {"bf16": [], "te-current": ["--bits=3"], "faster": ["--bits=3", "--lr=0.0101"]},
    "steps": 60,
}
"""A script that logs the loss alone. BF16 repeats to the bit, FP8 moves it by 0.01%, another rate by 0.3%."""


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("story")
    write(folder, **STORY)
    complete(folder, '[[extends]]\ngoldens = "shipped"\n', ignored=".parity*/\ngolden/\n__pycache__/\n.pytest_cache/\n")
    done = run("pytest", "suites/convergence", "--trainers", "trainers.toml", "--golden-update", cwd=folder)
    assert done.returncode == 0, done.stdout
    return folder


@pytest.mark.slow
def test_faster_learning_rate_that_is_not_logged_is_red(story):
    done = run("pytest", "suites/convergence", "--trainers", "trainers.toml", cwd=story)
    rows = [line.split() for line in done.stdout.splitlines() if "  bigram  native " in line]
    assert {row[-5]: row[0] for row in rows} == {"bf16": "pass", "te-current": "pass", "faster": "fail"}, done.stdout
    assert done.returncode == 1 and "Refuse: faster on bigram fails" in done.stdout


def planted(records: list[Trajectory], gap: float) -> list[AnyRecord]:
    """A calibration: BF16 with a repeat, ao-rowwise, and ao-rowwise with a fault of this tail gap."""
    kept = [r for r in records if r.cell.recipe in ("bf16", "ao-rowwise")]
    repeats = [r.model_copy(update={"variant": "replica1"}) for r in kept if r.cell.is_control]
    faulty = [r.model_copy(update={"variant": "rate"}) for r in scaled(kept, lambda seed: gap) if not r.cell.is_control]
    return [*kept, *repeats, *faulty]


def test_fault_is_seen_if_the_gate_is_red(records, goldens, rules):
    for gap, problems in ((0.003, 0), (-0.003, 0), (0.0013, 0), (0.0005, 1), (0.0, 1)):
        found = calibrate_trainer(planted(records, gap), goldens, rules)
        assert (len(found.problems), [f.seen for f in found.faults]) == (problems, [not problems]), gap


def test_margin_that_would_see_a_fault_does_so(records, goldens, rules):
    (problem,) = calibrate_trainer(planted(records, 0.0008), goldens, rules).problems
    margin, seeds = some(
        re.search(r"the gate passes rate .* a margin of (.*)% would see it with (.*) seeds", problem)
    ).groups()
    own = rules.loss[-1].model_copy(update={"margin": float(margin) / 100, "min_margin": None})
    found = calibrate_trainer(planted(records, 0.0008), goldens, rules.model_copy(update={"loss": (own,)}))
    assert seeds == "3" and not found.problems and found.faults[0].verdict.status == "fail"


def test_calibration_needs_a_fault_a_repeat_and_a_sound_recipe(records, goldens, rules):
    every = planted(records, 0.003)
    (problem,) = calibrate_trainer([r for r in every if r.content.count("rate") == 0], goldens, rules).problems
    assert problem == "no fault was planted: add one to the table faults"
    with pytest.raises(ValueError, match="needs BF16 of a trainer, its replicas and a recipe"):
        calibrate_trainer([r for r in every if "replica" not in r.content], goldens, rules)
    off = scaled([r for r in every if isinstance(r, Trajectory)], lambda seed: 0.003)
    assert calibrate_trainer(off, goldens, rules).problems[0].startswith("ao-rowwise without a fault is fail: ")


def test_golden_that_does_not_fit_is_replaced_by_the_repeats(records, goldens, rules):
    other = goldens.loss[KEY].model_copy(update={"spec_hash": "other"})
    found = calibrate_trainer(planted(records, 0.003), replace(goldens, loss={KEY: other}), rules)
    assert not found.problems and found.golden.spec_hash != "other"


@pytest.mark.slow
def test_calibrate_answers_with_the_verdict_of_the_gate(tmp_path):
    faults = {"rate +1%": ["--lr=0.0101"], "rate +0.1%": ["--lr=0.01001"]}
    write(tmp_path, **STORY | {"recipes": {"bf16": [], "te-current": ["--bits=3"]}, "faults": faults})
    done = run("fp8parity", "calibrate", "--trainers", "trainers.toml", "--replicas", "1", cwd=tmp_path)
    assert done.returncode == 1 and "refused: the gate passes rate +0.1% in te-current; " in done.stdout
    assert re.search(r"te-current, rate \+1% +fail ", done.stdout) and re.search(r"te-current +pass ", done.stdout)
    again = run("fp8parity", "calibrate", "--from", ".parity/calibration/bigram", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (1, done.stdout)
