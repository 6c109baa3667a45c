"""Runs that cannot be judged, are no seeds of one cell, or have failed: the verdict says which run and why."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import trajectories
from fp8parity.judging import loss
from fp8parity.judging.evidence import NOTHING
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.preconditions import fault
from fp8parity.judging.references.inventories import Inventories
from fp8parity.judging.references.loss import Golden, from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Module, NonFinite, Trajectory
from narrowed import some

RULES = Policy(path=Path("policy.toml"), loss=(LossRow(margin=0.005, seeds=(3,), why="a made-up row"),))
SEEDS = range(3)


def made(recipe: str, **changes: object) -> list[Trajectory]:
    """Three runs. Seed 1 has the changes."""
    gaps = (0.0002, 0.0001, 0.0003) if recipe != "bf16" else (0.0, 0.0, 0.0)
    return [trajectories.made(recipe, s, gaps[s], **(changes if s == 1 else {})) for s in SEEDS]


def judged(side: str, changes: dict[str, object], golden: Golden | None) -> Verdict:
    recipe, control = (made(name, **(changes if name == side else {})) for name in ("te-current", "bf16"))
    return loss.judge(recipe, control, golden, RULES, MeasuredNumbers())


def ones(**values: float) -> list[float]:
    """Twelve norms of 1, with other values at some steps, such as s3=nan."""
    return [values.get(f"s{i}", 1.0) for i in range(12)]


NAN, INF = math.nan, math.inf
LOSSES = trajectories.made("te-current", 1).loss
LATE = [*LOSSES[:5], NAN, *LOSSES[6:]]
STOPPED = {"non_finite": NonFinite(step=7, where="gradient of a"), "loss": [*LOSSES[:7], NAN], "grad_norm": [1.0] * 8}

BETAS = {"hyperparameters": {"beta1": (0.9, 0.9), "beta2": (0.95, 0.949)}}


@pytest.mark.parametrize("side", ["te-current", "bf16"])
@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        (STOPPED, "fail", "{name} is non-finite at step 7: gradient of a"),
        ({"loss": LATE}, "fail", "{name} has a non-finite loss or gradient norm at step 5"),
        ({"loss": LATE, "grad_norm": []}, "fail", "{name} has a non-finite loss or gradient norm at step 5"),
        ({"loss": LATE, "grad_norm": ones(s3=NAN, s8=NAN)}, "fail", "{name} has a non-finite loss or gradient norm at step 3"),
        ({"validation": [(5, INF), (11, 4.0)]}, "fail", "{name} has a non-finite validation loss"),
        (BETAS, "fail", "{name}: the optimizer has beta2 0.949, and the schedule asks for 0.95"),
        ({"spec_hash": "other"}, "stale", "its model, what it keeps in BF16, or schedule differ from the golden's (spec hash)"),
    ],
)  # fmt: skip
def test_a_run_with_a_fault_is_named(side, changes, status, words):
    found = judged(side, changes, golden_of_eight())
    says = words.format(name="BF16, seed 1" if side == "bf16" else "seed 1")
    if side == "bf16" and "non-finite" in words:
        status, says = "drift", f"{says}; BF16 changed and {NOTHING}"
    assert (found.status, found.headline, found.lines) == (status, says, [])
    assert (some(found.loss).seeds, some(found.loss).gap) == ([0, 1, 2], None)


def golden_of_eight() -> Golden:
    return from_runs([trajectories.made(seed=s) for s in range(8)], [])


@pytest.mark.parametrize(
    ("found", "status"), [(0.95 * (1 + 0.9e-6), "pass"), (0.95 * (1 - 0.9e-6), "pass"), (0.95 * (1 + 1.1e-6), "fail")]
)
def test_a_hyper_parameter_may_have_gone_through_fp32(found, status):
    assert judged("te-current", {"hyperparameters": {"beta2": (0.95, found)}}, golden_of_eight()).status == status


@pytest.mark.parametrize(
    ("count", "headline"),
    [
        (1, "the interval of the gap still crosses the margin after the last seed; a gate counts it as red"),
        (2, "2 seeds; the first stage needs 3 (pass --seeds 3)"),
        (3, "the gap to BF16 is inside the margin"),
    ],
)
@pytest.mark.parametrize("recipe", ["te-current", "bf16"])
def test_fewer_seeds_than_the_first_look_never_pass(count, headline, recipe):
    row = RULES.loss[0].model_copy(update={"seeds": (3, 5)})
    controls = [
        r.model_copy(update={"loss": [x * (1 + 1e-5 * s) for x in r.loss]}) for s, r in enumerate(made("bf16"))
    ][:count]
    runs = controls if recipe == "bf16" else made(recipe)[:count]
    found = loss.judge(runs, controls, golden_of_eight(), RULES.model_copy(update={"loss": (row,)}), MeasuredNumbers())
    assert (found.status, found.headline) == ("pass" if count == 3 else "inconclusive", headline)


@pytest.mark.parametrize(
    ("recipe", "bf16", "status", "name"),
    [(5, 5, "drift", "BF16, seed 1"), (6, 5, "drift", "BF16, seed 1"), (5, 6, "fail", "seed 1")],
)
def test_who_is_not_finite_first_is_to_blame(recipe, bf16, status, name):
    candidates, controls = (
        made(side, grad_norm=ones(**{f"s{step}": NAN})) for side, step in (("te-current", recipe), ("bf16", bf16))
    )
    found = loss.judge(candidates, controls, golden_of_eight(), RULES, MeasuredNumbers())
    assert found.status == status and found.headline.startswith(f"{name} has a non-finite loss")


def test_a_recipe_that_stops_in_a_seed_of_its_own_is_to_blame():
    """BF16 stops in seed 1, and the recipe in seed 2 alone."""
    recipe, control = made("te-current"), made("bf16", grad_norm=ones(s5=NAN))
    recipe[2] = recipe[2].model_copy(update={"grad_norm": ones(s9=NAN)})
    found = loss.judge(recipe, control, golden_of_eight(), RULES, MeasuredNumbers())
    assert (found.status, found.headline) == ("fail", "seed 2 has a non-finite loss or gradient norm at step 9")


Run = Callable[..., Trajectory]


@pytest.fixture
def run(trajectory: Run) -> Run:
    def make(seed: int, recipe: str = "te-block", **configs: str) -> Trajectory:
        return trajectory(
            recipe, seed, inventory=[Module(fqn=f, kind="te.Linear", config=c) for f, c in configs.items()]
        )

    return make


NAMES = ("a.weight", "b.weight", "c.weight")


@pytest.mark.parametrize(
    ("first", "second", "control", "found"),
    [
        (NAMES, NAMES, NAMES, None),
        (NAMES, NAMES[::2], NAMES, "seed 1: the record lacks the first gradient of b.weight, which seed 0 holds"),
        (NAMES[1:], NAMES, NAMES, "seed 0: the record lacks the first gradient of a.weight, which seed 1 holds"),
        (NAMES, NAMES, NAMES[:2], "BF16, seed 0: the record lacks the first gradient of c.weight, which seed 0 holds"),
    ],
)
def test_a_lost_first_gradient_is_named(run, first, second, control, found):
    def holding(made: Trajectory, names: tuple[str, ...]) -> Trajectory:
        return made.model_copy(update={"first_gradients": dict.fromkeys(names, 1.0), "partial": True})

    candidates = [holding(run(seed, a="x"), names) for seed, names in enumerate((first, second))]
    assert fault(candidates, [holding(run(seed, "bf16"), control) for seed in (0, 1)], Inventories()) == found


@pytest.mark.parametrize(("seeds", "words"), [((0, 1, 0), "seed 0 is there 2 times")])
def test_a_seed_counts_once(run, seeds, words):
    assert fault([run(s, a="x") for s in seeds], [], Inventories()) == f"{words}; a seed counts once"


def test_the_first_module_that_only_one_seed_converted_is_named(run):
    """Each run is compared with the first one."""
    second = [run(4, a="x"), run(5, a="x", c="x", b="x")]
    assert fault(second, [], Inventories()) == "seed 5: b is not converted in both this seed and seed 4"
    third = [run(4, a="x", b="x"), run(5, a="x", b="x"), run(6, a="x")]
    assert fault(third, [], Inventories()) == "seed 6: b is not converted in both this seed and seed 4"


def test_the_first_module_of_another_configuration_is_named(run):
    found = fault([run(4, a="x", b="x"), run(5, a="x", b="y")], [], Inventories())
    assert found == "seed 5: b is not configured as in seed 4"
