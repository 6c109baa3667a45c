"""What a verdict on loss parity says: the status, the headline, who moved, the numbers that fail, and the lines below the headline."""

from pathlib import Path

import pytest
import trajectories
from fp8parity.judging import loss
from fp8parity.judging.loss_goldens import from_runs
from fp8parity.judging.measured_numbers import MeasuredNumbers
from fp8parity.judging.number_rows import Rule
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory
from narrowed import some

ROW = LossRow(margin=0.005, seeds=(3, 5), window=4, why="a made-up row")
SOUND, SAME = (0.0005, -0.0004, 0.0003), (0.0, 0.0, 0.0)
UP, DOWN, WIDE = (0.0099, 0.01, 0.0101), (-0.0101, -0.01, -0.0099), (-0.004, 0.001, 0.008)


def runs(recipe: str, gaps: tuple[float, ...], validation: float = 0.0, **changes: object) -> list[Trajectory]:
    """Runs with relative gaps of the loss. ``validation`` is one more gap of the last validation."""
    found = [trajectories.made(recipe, s, g, **changes) for s, g in enumerate(gaps)]
    return [r.model_copy(update={"validation": [(at, x * (1 + validation)) for at, x in r.validation]}) for r in found]


def judged(
    candidates: list[Trajectory], controls: list[Trajectory], rules: tuple[Rule, ...] = (), **row: object
) -> Verdict:
    golden = from_runs([trajectories.made(seed=s) for s in range(8)], [])
    policy = Policy(path=Path("policy.toml"), loss=(ROW.model_copy(update=row),), rule=rules)
    return loss.judge(candidates, controls, golden, policy, MeasuredNumbers())


def failing(found: Verdict) -> dict[str, float]:
    return {f.text.rpartition(" ")[0]: round(f.value, 4) for f in some(found.loss).failing}


INSIDE = "the gap to BF16 is inside the margin"
OUTSIDE = "the gap to BF16 is outside the margin"
LOWER = "the loss is lower than BF16's by more than the margin"
OPEN = "the interval of the gap still crosses the margin after the last seed; a gate counts it as red"
BF16 = "BF16 itself moved: the framework changed, not the recipe"
TOO_GOOD = "the loss is lower than BF16's by more than 3 margins: such a gain is a fault"
NEITHER, BOTH = "neither moved beyond the margin", "framework and recipe moved"
RECIPE, FRAMEWORK = "the recipe moved, not the framework", "the framework moved, not the recipe"
UNKNOWN = "whether the recipe moved cannot be said yet"
MOVED, STAYED = "the framework moved", "the framework has not moved"
FAR = ("first out", "last validation")


def alike(value: float, *names: str) -> dict[str, float]:
    return dict.fromkeys(names, value)


@pytest.mark.parametrize(
    ("gaps", "controls", "status", "headline", "moved", "numbers"),
    [
        (SOUND, SAME, "pass", INSIDE, NEITHER, {}),
        (UP, SAME, "fail", OUTSIDE, RECIPE, alike(0.01, "tail gap", "to control", "validation")),
        (DOWN, SAME, "improved", LOWER, RECIPE, alike(-0.01, "tail gap", "to control", "validation")),
        (WIDE, SAME, "inconclusive", OPEN, UNKNOWN, alike(0.0017, "tail gap", "to control", "validation")),
        ((0.0102, 0.0099, 0.0102), UP, "drift", BF16, FRAMEWORK, alike(0.0101, "tail gap", "validation") | {"BF16": 0.01}),
        ((0.0001, 0.0002, 0.0001), DOWN, "drift", BF16, FRAMEWORK, {"to control": 0.0102, "BF16": -0.01}),
        ((0.0001, 0.0002, 0.0001), UP, "drift", BF16, FRAMEWORK, {"to control": -0.0098, "BF16": 0.01}),
        (UP, DOWN, "fail", OUTSIDE, BOTH, alike(0.01, "tail gap", "validation") | {"to control": 0.0202, "BF16": -0.01}),
        ((-0.0179, -0.018, -0.0181), SAME, "fail", TOO_GOOD, RECIPE, alike(-0.018, "tail gap", "to control", "validation")),
        ((0.0101, 0.0102, 0.0097), WIDE, "fail", OUTSIDE, UNKNOWN, alike(0.01, "tail gap", "validation")),
    ],
)  # fmt: skip
def test_a_verdict_on_a_recipe(gaps, controls, status, headline, moved, numbers):
    """Validations and step bands are wide here, so that the gaps of the tail decide."""
    found = judged(runs("te-current", gaps), runs("bf16", controls), min_step_band=0.1)
    assert (found.status, found.headline, some(found.loss).moved) == (status, headline, moved)
    assert dict(found.lines)["control"].endswith(f": {moved}")
    assert {k: v for k, v in failing(found).items() if "last validation" not in k} == numbers


def test_a_gain_of_three_margins_is_no_fault_yet():
    """The interval ends exactly at three margins. The validation loss is BF16's, so that it decides nothing."""
    own = runs("te-current", DOWN, validation=1 / 0.99 - 1)
    high = some(some(judged(own, runs("bf16", SAME)).loss).gap).high
    assert -3 * (high / -3) == high
    found = judged(own, runs("bf16", SAME), margin=high / -3, min_step_band=0.1)
    assert (found.status, found.headline) == ("improved", LOWER)
    assert judged(own, runs("bf16", SAME), margin=high / -3.001, min_step_band=0.1).headline == TOO_GOOD


@pytest.mark.parametrize(
    ("validation", "status", "moved"), [(0.0, "drift", FRAMEWORK), (-0.01, "drift", FRAMEWORK), (0.01, "fail", BOTH)]
)
def test_a_recipe_whose_validation_rose_did_not_stay(validation, status, moved):
    """BF16 fell by 1%, and the tail of the recipe is where the golden is."""
    found = judged(runs("te-current", (0.0001, 0.0002, 0.0001), validation), runs("bf16", DOWN), min_step_band=0.1)
    assert (found.status, some(found.loss).moved) == (status, moved)


@pytest.mark.parametrize(
    ("gaps", "validation", "status", "headline", "moved", "numbers"),
    [
        (SOUND, 0.0, "pass", INSIDE, STAYED, {}),
        (UP, 0.0, "drift", BF16, MOVED, alike(0.01, "tail gap", "validation")),
        (DOWN, 0.0, "drift", BF16, MOVED, alike(-0.01, "tail gap", "validation")),
        (WIDE, 0.0, "inconclusive", OPEN, STAYED, alike(0.0017, "tail gap", "validation")),
        (SOUND, 0.01, "drift", BF16, MOVED, {"validation": 0.0101}),
        (SOUND, -0.01, "drift", BF16, MOVED, {"validation": -0.0099}),
    ],
)
def test_a_verdict_on_bf16_itself(gaps, validation, status, headline, moved, numbers):
    control = runs("bf16", gaps, validation)
    found = judged(control, control)
    assert (found.status, found.headline, some(found.loss).moved) == (status, headline, moved)
    assert failing(found) == numbers


@pytest.mark.parametrize(
    ("gaps", "drift", "status", "headline", "moved", "numbers"),
    [
        (SOUND, 0.002, "pass", INSIDE, STAYED, {}),
        (SOUND, 0.001, "inconclusive", OPEN, STAYED, {"tail gap": 0.0001}),
        ((0.0019, 0.002, 0.0021), 0.001, "drift", BF16, MOVED, {"tail gap": 0.002}),
        ((0.0019, 0.002, 0.0021), None, "pass", INSIDE, STAYED, {}),
    ],
)
def test_bf16_is_held_to_its_own_margin(gaps, drift, status, headline, moved, numbers):
    control = runs("bf16", gaps)
    found = judged(control, control, bf16_margin=drift)
    assert (found.status, found.headline, some(found.loss).moved) == (status, headline, moved)
    assert some(found.loss).margin == (drift or 0.005)
    assert failing(found) == numbers


def spiked(recipe: str, gaps: tuple[float, ...], *starts: int) -> list[Trajectory]:
    """Runs with losses that are 10% too high for two steps from each start on."""
    high = {s for start in starts for s in (start, start + 1)}
    return [
        r.model_copy(update={"loss": [x * (1.1 if i in high else 1) for i, x in enumerate(r.loss)]})
        for r in runs(recipe, gaps)
    ]


SPIKE = "the loss left the step band around BF16's"


@pytest.mark.parametrize(
    ("own", "control", "status", "headline", "moved", "names", "first_out"),
    [
        ((4,), (), "fail", SPIKE, RECIPE, ["first out", "to control: first out"], 4),
        ((4,), (4,), "drift", BF16, FRAMEWORK, ["first out", "BF16: first out"], 4),
        ((0, 4), (4,), "fail", SPIKE, BOTH, ["first out", "to control: first out", "BF16: first out"], 0),
        ((), (4,), "pass", INSIDE, FRAMEWORK, ["to control: first out", "BF16: first out"], None),
    ],
)
def test_a_spike_belongs_to_who_has_it(own, control, status, headline, moved, names, first_out):
    found = judged(spiked("te-current", SOUND, *own), spiked("bf16", (0.0001, 0.0001, 0.0001), *control))
    assert (found.status, found.headline, some(found.loss).moved) == (status, headline, moved)
    assert (list(failing(found)), some(found.loss).first_out) == (names, first_out)
    shown = [name for name, _ in found.lines if "out" in name]
    assert shown == [n for n in names if n != "to control: first out"]


def test_a_spike_of_bf16_is_its_own():
    control = spiked("bf16", SOUND, 4)
    found = judged(control, control)
    assert (found.status, found.headline, some(found.loss).moved) == ("drift", BF16, MOVED)
    assert failing(found) == {"first out": 0.0516}
    assert [name for name, _ in found.lines if "out" in name] == ["first out"]


RULES = tuple(
    Rule(
        check=("loss parity",),
        metric=("first gradient norm",),
        where=("nano",),
        recipe=(r,),
        low=0.99,
        high=1.01,
        why="a made-up bound",
    )
    for r in ("te-current", "bf16")
)
START = "the gradient of the first step is not the one that this recipe gives"
BF16_START = "BF16's own gradient of the first step is not its golden's: the framework changed, not the recipe"


EVEN = "1.0000x BF16's"


def started(recipe: str, gaps: tuple[float, ...], norm: float) -> list[Trajectory]:
    return runs(recipe, gaps, grad_norm=[norm] + [1.0] * 11)


@pytest.mark.parametrize(
    ("norms", "status", "headline", "moved", "numbers", "odd"),
    [
        ((1.0, 1.0), "pass", INSIDE, NEITHER, {}, None),
        ((0.9, 1.0), "fail", START, RECIPE, [("first step", 0.9)] * 3, "0.9000x BF16's"),
        ((0.9, 0.9), "drift", BF16_START, FRAMEWORK, [("BF16: first step", 0.9)] * 3, "0.9000x its golden's"),
        (
            (0.81, 0.9),
            "drift",
            BF16_START,
            FRAMEWORK,
            [("BF16: first step", 0.9)] * 3 + [("first step", 0.9)] * 3,
            "0.9000x its golden's",
        ),
        ((None, 0.9), "drift", BF16_START, MOVED, [("first step", 0.9)] * 3, "0.9000x its golden's"),
    ],
)
def test_the_first_step_is_told_with_its_numbers(norms, status, headline, moved, numbers, odd):
    """Without a norm of the recipe, BF16 itself is judged."""
    controls = started("bf16", (0.0001, -0.0001, 0.0), norms[1])
    found = judged(started("te-current", SOUND, norms[0]) if norms[0] else controls, controls, RULES)
    assert (found.status, found.headline, some(found.loss).moved) == (status, headline, moved)
    assert [(f.metric, pytest.approx(f.value)) for f in some(found.loss).failing] == list(numbers)
    text = f"gradient norm {odd or EVEN}, expected 0.9900 to 1.0100, seed 0"
    assert some(found.loss).odd_start == (text if odd else None)
    assert dict(found.lines)["first step"] == f"{text} (a made-up bound)"
