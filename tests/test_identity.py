"""Runs that cannot be the seeds of one cell, and the whole sentence about each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fp8parity.judging.preconditions import fault
from fp8parity.judging.references.inventories import Inventories
from fp8parity.records.schema import Module, Trajectory

Run = Callable[..., Trajectory]


@pytest.fixture
def run(trajectory: Run) -> Run:
    def make(seed: int, recipe: str = "te-block", **configs: str) -> Trajectory:
        return trajectory(
            recipe, seed, inventory=[Module(fqn=f, kind="te.Linear", config=c) for f, c in configs.items()]
        )

    return make


def test_seeds_that_converted_alike_have_no_fault(run):
    assert fault([run(s, a="x", b="y") for s in range(3)], [run(s, "bf16") for s in range(3)], Inventories()) is None


NAMES = ("a.weight", "b.weight", "c.weight")


@pytest.mark.parametrize(
    ("first", "second", "control", "found"),
    [
        (NAMES, NAMES, NAMES, None),
        (
            NAMES[:1],
            NAMES[:1],
            NAMES,
            "seed 0: the record lacks the first gradient of b.weight, which BF16, seed 0 holds",
        ),
        (NAMES, NAMES[::2], NAMES, "seed 1: the record lacks the first gradient of b.weight, which seed 0 holds"),
        (NAMES[1:], NAMES, NAMES, "seed 0: the record lacks the first gradient of a.weight, which seed 1 holds"),
        (NAMES, NAMES, NAMES[:2], "BF16, seed 0: the record lacks the first gradient of c.weight, which seed 0 holds"),
        ((), (), NAMES, None),  # of an older schema
        (NAMES, NAMES, (), None),
        (("ab.weight", "c.weight"), ("ab.weight", "c.weight"), NAMES, None),  # joined by an adapter
    ],
)
def test_a_lost_first_gradient_is_named(run, first, second, control, found):
    def holding(made: Trajectory, names: tuple[str, ...]) -> Trajectory:
        return made.model_copy(update={"first_gradients": dict.fromkeys(names, 1.0), "partial": True})

    candidates = [holding(run(seed, a="x"), names) for seed, names in enumerate((first, second))]
    assert fault(candidates, [holding(run(seed, "bf16"), control) for seed in (0, 1)], Inventories()) == found


@pytest.mark.parametrize(
    ("seeds", "words"), [((0, 1, 0), "seed 0 is there 2 times"), ((2, 2, 2), "seed 2 is there 3 times")]
)
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


@pytest.mark.parametrize(("configs", "words"), [({"a": "x"}, "1 module was"), ({"a": "x", "b": "x"}, "2 modules were")])
def test_a_control_converts_nothing(run, configs, words):
    found = fault([run(0, a="x")], [run(0, "bf16", **configs)], Inventories())
    assert found == f"BF16, seed 0: {words} converted, and the control converts none"
