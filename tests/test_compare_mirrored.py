"""OLD and NEW swapped give mirrored answers: what is worse one way is better, or back in its band, on the way back."""

from __future__ import annotations

import itertools
import math

import pytest
import timings
import two_sides
from fp8parity.judging.compare import Comparison, compare
from fp8parity.judging.compare.change import Change, Shift
from fp8parity.judging.policy.rows import MetricRow, Rule
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import loss as loss_goldens
from fp8parity.records import sets
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements, NonFinite
from sessions import GOLDEN, stored
from two_sides import POLICY, WHY, change, compared

BACK = {"regression": "gain", "gain": "regression", "unknown": "unknown", "none": "none"}
WAYS = {
    "from inside to outside the band": "from outside to inside the band",
    "further outside the band": "nearer to the band, and outside",
    "from below to above the band": "from above to below the band",
    "": "",
}
WAYS |= {back: there for there, back in WAYS.items()}
CODES = {"regression": (1, 0), "gain": (0, 1), "unknown": (2, 2), "none": (0, 0)}


def check_shift(there: Shift | None, back: Shift | None) -> None:
    """A shift has the opposite sign on the way back, and its way is the other one."""
    assert (there is None) == (back is None)
    if there is None or back is None:
        return
    assert there.mean * back.mean <= 0 or math.isnan(there.mean + back.mean)
    assert (there.size, BACK[there.effect]) == (back.size, back.effect)
    (way, ends), (other, swapped) = (s.way.removesuffix(")").partition(" (")[::2] for s in (there, back))
    assert WAYS[way] == other
    if ends:
        numbers, band = ends.split(", band", 1)
        assert (numbers.split()[0], band) == (swapped.split()[2].rstrip(","), swapped.split(", band", 1)[1])


def check(there: Comparison, back: Comparison, *, alone: bool = True) -> None:
    """``alone``: each cell holds one number, or shifts of one sign, so that its effect is one of its shifts'."""
    old = {(c.cell, c.what): c for c in there.changes}
    new: dict[object, Change] = {(c.cell, c.what): c for c in back.changes}
    assert old.keys() == new.keys()
    for key, c in old.items():
        assert c.moved == new[key].moved
        if alone:
            check_shift(c.framework, new[key].framework)
            check_shift(c.recipe, new[key].recipe)
            assert BACK[c.effect] == new[key].effect
        elif c.effect != new[key].effect:  # numbers of one record may leave and return
            assert "none" not in (c.effect, new[key].effect)


NUMBERS = (math.nan, math.inf, 26.0, 27.0, 27.99, 28.0, 28.2, 28.5, 28.9, 29.0, 29.01, 29.4, 31.0)
ROWS = [
    MetricRow(name=("x",), better="higher", unit="dB"),
    MetricRow(name=("x",), better="lower", unit="dB"),
    None,
]


@pytest.fixture
def numbers(trajectory):
    """Compares numbers of BF16 and of a recipe."""

    def side(version: str, recipe: float, bf16: float) -> list[Measurements]:
        given = (("te-current", Execution.EMULATED, recipe), ("bf16", Execution.NATIVE, bf16))
        return [
            Measurements(
                cell=Cell(model="tiny", recipe=name, execution=execution, corpus="topics"), check="gemm",
                values=[Measurement(metric="x", where="g", value=value)],
                provenance=two_sides.provenance(trajectory, version), session=version,
            )
            for name, execution, value in given
        ]  # fmt: skip

    def made(
        recipe: tuple[float, float], bf16: tuple[float, float] = (28.5, 28.5), row: MetricRow | None = ROWS[0], width: float = 0.5
    ) -> tuple[Comparison, Comparison]:  # fmt: skip
        rule = Rule(check=("gemm",), metric=("x",), low=28.5 - width, high=28.5 + width, why=WHY)
        policy = POLICY.model_copy(update={"rule": (rule,), "metric": (row,) if row else ()})
        old, new = (side(version, recipe[i], bf16[i]) for i, version in enumerate(("2.12.0", "2.13.0")))
        return compared(old, new, policy), compared(new, old, policy)

    return made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.better if row else "neither")
def test_any_change_of_a_number_is_mirrored(numbers, row):
    for pair in itertools.combinations_with_replacement(NUMBERS, 2):
        for width in (0.5, 0.0):
            there, back = numbers(pair, row=row, width=width)
            check(there, back)
            assert (there.code, back.code) == CODES[change(there, kind="gemm").effect]


def test_number_of_bf16_and_of_a_recipe_are_mirrored(numbers):
    for recipe, bf16 in itertools.product(itertools.permutations((26.0, 28.2, 28.8, 31.0), 2), repeat=2):
        check(*numbers(recipe, bf16), alone=False)


def test_fall_into_the_band_is_a_return_and_no_gain(numbers):
    """Total SQNR of ao-rowwise: torch 2.12.1 gave 22.30 dB, and 2.13.0 21.68 dB, which its band allows."""
    there, back = numbers((29.3, 28.7))
    text = "te-current-tiny-emulated gemm -0.6 dB (x @ g), from outside to inside the band (29.30 to 28.70 dB, band [28.00, 29.00])"
    assert there.sentence.startswith(f"Recipe changed: {text}") and "better" not in there.sentence
    assert "from inside to outside the band (28.70 to 29.30 dB, band [28.00, 29.00])" in back.sentence
    assert "worse" not in back.sentence
    assert (there.code, back.code) == (0, 1)


def test_both_changed_only_if_both_left_a_tolerance(numbers):
    for bf16, moved in (((28.5, 28.8), "recipe changed"), ((28.5, 29.2), "both changed")):
        for made in numbers((29.3, 28.7), bf16):
            assert change(made, kind="gemm").moved == moved


SHIFTS = (-0.04, -0.00503, -0.00501, -0.005, -0.00499, -0.00497, 0.0, 0.002, 0.00499, 0.00501, 0.02)


@pytest.mark.parametrize("noise", [0.0, 1.0, 30.0])
def test_any_shift_of_a_loss_is_mirrored(runs, noise):
    """Also at the edge of the margin of 0.5%: a gain is what is worse on the way back."""
    for recipe, control in itertools.product(SHIFTS, SHIFTS[::2]):
        sides = runs(), runs("2.13.0", recipe=recipe, control=control, noise=noise)
        there, back = compared(*sides), compared(*reversed(sides))
        for side, other in ((there, back), (back, there)):
            assert {(c.cell, c.what) for c in side.changes} == {(c.cell, c.what) for c in other.changes}
        found, mirrored = change(there), change(back)
        assert found.moved == mirrored.moved
        check_shift(change(there, "bf16").framework, change(back, "bf16").framework)
        check_shift(found.recipe, mirrored.recipe)
        if len(found.effects) < 2:
            assert BACK[found.effect] == mirrored.effect


@pytest.mark.parametrize(("recipe", "codes"), [("te-current", (1, 0)), ("bf16", (1, 2))])
def test_run_that_stopped_is_mirrored(runs, recipe, codes):
    """Where OLD has no BF16, nothing says whether a recipe changed."""
    stopped = {"non_finite": NonFinite(step=7, where="x"), "loss": [1.0] * 7}
    new = [r.model_copy(update=stopped) if r.cell.recipe == recipe and r.seed == 1 else r for r in runs("2.13.0")]
    check(compared(runs(), new), compared(new, runs()))
    assert (compared(runs(), new).code, compared(new, runs()).code) == codes


@pytest.mark.parametrize(("golden", "codes"), [(True, (1, 0)), (False, (2, 2))])
def test_first_step_of_bf16_has_a_direction_by_its_golden(runs, trajectory, golden, codes):
    norm = Rule(check=("loss parity",), metric=("first gradient norm",), recipe=("te-current", "bf16"), low=0.99, high=1.01, why=WHY)  # fmt: skip
    policy = POLICY.model_copy(update={"rule": (norm,)})
    held = loss_goldens.from_runs([trajectory(seed=s) for s in range(3)], [])
    goldens = Goldens(loss={("nano", "topics"): held} if golden else {})
    new = [r.model_copy(update={"grad_norm": [0.96] + [1.0] * 11}) for r in runs("2.13.0")]
    there, back = compare(runs(), new, goldens, policy), compare(new, runs(), goldens, policy)
    check(there, back)
    assert (there.code, back.code) == codes


@pytest.mark.parametrize("field", ["bf16_seconds", "recipe_seconds", "bf16_memory", "recipe_memory"])
def test_any_shift_of_a_time_is_mirrored(field):
    old = timings.made(spread=0.0)
    for factor in (0.7, 0.9699, 0.9705, 0.98, 0.9801, 1.0, 1.019, 1.0201, 1.0299, 1.031, 1.4):
        value = getattr(old, field)
        scaled = [factor * x for x in value] if isinstance(value, list) else round(factor * value)
        new = old.model_copy(update={field: scaled})
        there, back = compared([old], [new]), compared([new], [old])
        for what in ("throughput", "memory"):
            found, other = change(there, kind=what), change(back, kind=what)
            check_shift(found.framework, other.framework)
            check_shift(found.recipe, other.recipe)
            assert found.moved == other.moved


UPGRADES = [
    ("xeon-torchao-0.17.0", "xeon-torchao-0.18.0"),
    ("h200-torchao-0.17.0", "h200-torchao-0.18.0"),
]


@pytest.mark.slow
@pytest.mark.parametrize("names", UPGRADES, ids="-".join)
def test_committed_sets_are_mirrored(names):
    old, new = (sets.load([GOLDEN / "records" / "upgrades" / f"{name}.zip"]) for name in names)
    check(compare(old, new, *stored()), compare(new, old, *stored()), alone=False)
