"""The first line of a comparison, whole: what moved in the order of its weight, what is missing or new, and between which versions."""

from __future__ import annotations

from functools import partial

import pytest
import two_sides
from fp8parity.judging.compare import Update, compare
from fp8parity.judging.references import Goldens
from two_sides import JITTER, POLICY, compared

VERSIONS = "(torch 2.12.0 -> 2.13.0)."
BETTER, SAME, WORSE = -0.02, 0.0, 0.02


@pytest.fixture
def side(trajectory):
    """The runs of BF16 and of recipes, each with its gap. A recipe that is undecided has one seed."""

    def make(version, packages=None, **gaps):
        made = two_sides.provenance(trajectory, version)
        own = {"provenance": made.model_copy(update={"packages": packages or made.packages}), "session": version}
        runs = [trajectory("bf16", s, **own) for s in range(2)]
        for name, gap in gaps.items():
            seeds = range(1 if gap is None else 2)
            runs += [trajectory(name.replace("_", "-"), s, (gap or 0) + JITTER[s], **own) for s in seeds]
        return runs

    return partial(make, "2.12.0"), partial(make, "2.13.0")


def part(recipe, gap):
    """What the sentence says of the loss of a recipe."""
    if gap is None:
        return f"cannot say: {recipe}-nano-emulated loss (1 seeds in common; an interval needs 2), undecided"
    return f"recipe moved: {recipe}-nano-emulated loss {gap:+.3%} [{gap:+.3%}, {gap:+.3%}], {'worse' if gap > 0 else 'better'}"


def told(*parts):
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]} {VERSIONS}"


@pytest.mark.parametrize(
    ("gaps", "parts"),
    [
        (
            {"te_current": BETTER, "te_block": None, "te_delayed": WORSE},
            (part("te-delayed", WORSE), part("te-block", None), part("te-current", BETTER)),
        ),
        (
            {"te_current": BETTER, "te_block": None, "te_delayed": WORSE, "te_mxfp8": WORSE},
            (part("te-delayed", WORSE), part("te-mxfp8", WORSE), part("te-block", None), "and 1 more"),
        ),
        (
            {"te_current": BETTER, "te_block": BETTER, "te_delayed": BETTER, "te_mxfp8": BETTER, "te_nvfp4": WORSE},
            (part("te-nvfp4", WORSE), part("te-current", BETTER), part("te-block", BETTER), "and 2 more"),
        ),
    ],
)
def test_what_is_worse_comes_first_then_what_is_undecided_and_three_are_told(side, gaps, parts):
    old, new = side
    assert compared(
        old(**{name: None if gap is None else SAME for name, gap in gaps.items()}), new(**gaps)
    ).sentence == told(*parts)


@pytest.mark.parametrize(
    ("more", "absent"),
    [
        (["te_block"], "te-block-nano-emulated seed0, seed1 (in NEW)"),
        (
            ["te_block", "te_mxfp8"],
            "te-block-nano-emulated seed0, seed1 (in NEW); te-mxfp8-nano-emulated seed0, seed1 (in NEW)",
        ),
        (
            ["te_block", "te_mxfp8", "te_nvfp4"],
            "te-block-nano-emulated seed0, seed1 (in NEW); te-mxfp8-nano-emulated seed0, seed1 (in NEW); and 1 more",
        ),
    ],
)
def test_of_missing_cells_two_are_told(side, more, absent):
    old, new = side
    assert compared(old(te_current=SAME, **dict.fromkeys(more, SAME)), new(te_current=SAME)).sentence == (
        "Cannot say, because one side lacks cells. What both hold is inside its margins: 2 comparisons, 2 of them equal to the bit; "
        f"missing: {absent} {VERSIONS}"
    )


def test_of_new_cells_two_are_told(side):
    old, new = side
    names = ("te-block", "te-mxfp8", "te-nvfp4")
    beyond = {f"{name}-nano-emulated": "torchao 0.18 or later" for name in names}
    for count, rest in ((2, ""), (3, "; and 1 more")):
        found = compare(
            old(), new(**{name.replace("-", "_"): SAME for name in names[:count]}), Goldens(), POLICY, beyond
        )
        assert found.sentence == (
            "Nothing moved beyond its margin: 1 comparisons, 1 of them equal to the bit; new: te-block-nano-emulated (it needs torchao "
            f"0.18 or later); te-mxfp8-nano-emulated (it needs torchao 0.18 or later){rest} {VERSIONS}"
        )


def test_with_nothing_in_common_the_sentence_says_what_each_side_lacks(side):
    old, new = side
    assert compared(old(), new(te_current=SAME)[2:]).sentence == (
        "Nothing could be compared; missing: bf16-nano-native seed0, seed1 (in NEW); te-current-nano-emulated seed0, seed1 (in OLD) "
        f"{VERSIONS}"
    )


def test_each_package_that_differs_is_named_and_what_a_side_lacks_is_a_dash(side):
    old, new = side
    found = compared(old({"torch": "2.12.0", "triton": "3"}), new({"apex": "1", "torch": "2.13.0"}))
    assert found.updates == [
        Update(name="torch", old="2.12.0", new="2.13.0"),
        Update(name="triton", old="3", new="-"),
        Update(name="apex", old="-", new="1"),
    ]
    assert found.sentence.endswith("equal to the bit (torch 2.12.0 -> 2.13.0, triton 3 -> -, apex - -> 1).")


def test_two_sets_of_one_environment_say_so(side):
    old, _ = side
    assert compared(old(), old()).sentence == (
        "Nothing moved beyond its margin: 1 comparisons, 1 of them equal to the bit (the same packages and machine)."
    )
