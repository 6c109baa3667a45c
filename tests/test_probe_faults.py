"""Whether a recipe's arithmetic stayed the same during its runs: made-up SQNRs, judged."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import paired
import pytest
from fp8parity.judging import gradients
from fp8parity.records.schema import Probed
from fp8parity.records.sets import merge
from narrowed import some
from paired import SEEDS


@pytest.fixture(autouse=True)
def measured(run, monkeypatch):
    monkeypatch.setattr(gradients, "PROBED_MODELS", frozenset({run().cell.model}))


def probes(early: float, late: float, worst: float | None = None) -> list[Probed]:
    return [
        Probed(step=10, sqnr=early, worst=early - 3, where="a.weight"),
        Probed(step=159, sqnr=late, worst=late - 3 if worst is None else worst, where="b.weight"),
    ]


def verdict(run, golden, found: list[Probed], **changes: object):
    """The verdict on three seeds, of which the second has these probes."""
    given = [{"probes": probes(25.0, 21.0)} if seed != 1 else {"probes": found} | changes for seed in SEEDS]
    runs = [run("te-current", seed, noise=3, **fields) for seed, fields in zip(SEEDS, given, strict=True)]
    return paired.judged(golden, runs, [run(seed=seed) for seed in SEEDS])


@pytest.mark.parametrize(
    ("found", "words", "value"),
    [
        (probes(25.0, 28.0), None, None),
        (probes(25.0, 28.1), "had an SQNR of 25.0 dB to BF16's in step 10 and has an SQNR of 28.1 dB", 3.1),
        (probes(25.0, inf), "in step 10 and is equal to BF16's in step 159 (seed 1): quantization stopped during the run", inf),
        (probes(inf, 25.0), "is equal to BF16's in step 10 and has an SQNR of 25.0 dB to BF16's in step 159", -inf),
        (probes(25.0, 10.0), None, None),
        (probes(25.0, 9.9), "(seed 1): quantization error grew|", -15.1),
        (probes(25.0, -inf, 5.0), "has an SQNR of -inf dB to BF16's in step 159 (seed 1): quantization error grew|", -inf),
        (probes(25.0, nan, 20.0), "has an SQNR of nan dB", nan),
        (probes(25.0, 21.0, 1.0), None, None),
        (probes(25.0, 21.0, 0.9), "the gradient of b.weight has an SQNR of 0.9 dB", 0.9),
        (probes(25.0, 21.0, nan), "the gradient of b.weight has an SQNR of nan dB to BF16's in step 159 (seed 1)", nan),
        (probes(inf, inf), "the gradient is BF16's in steps 10 and 159 (seed 1): nothing was quantized", inf),
        (probes(45.1, 46.0), "nothing was quantized", 46.0),
        (probes(45.0, 46.0), None, None),
        (probes(inf, inf)[:1], None, None),
        ([], None, None),
    ],
)  # fmt: skip
def test_a_change_within_the_limits_is_green_and_one_beyond_is_red(run, golden, found, words, value):
    made = verdict(run, golden, found)
    assert made.status == ("fail" if words else "pass"), made.message()
    assert [f.value for f in made.failing] == pytest.approx([] if words is None else [value], nan_ok=True)
    if words:
        assert (
            words in f"{made.headline}|" and dict(made.lines)["arithmetic"] == some(made.loss).changed == made.headline
        )
        assert some(made.loss).moved == "the recipe changed, not the framework"


def test_a_run_that_could_not_be_probed_says_why(run, golden):
    made = verdict(run, golden, [], unprobed="no room")
    assert (
        made.status == "pass"
        and dict(made.lines)["not probed"] == "no room"
        and made.unmeasured == verdict(run, golden, []).unmeasured
    )


def test_a_recipe_that_changed_beside_a_framework_that_moved_is_a_fault_of_both(run, golden):
    runs = [run("te-current", s, noise=3, change=0.01, probes=probes(25.0, inf)) for s in SEEDS]
    made = paired.judged(golden, runs, [run(seed=s, change=0.01) for s in SEEDS])
    assert (made.status, some(made.loss).moved) == ("fail", "framework and recipe changed")
    assert made.failing[-1].metric == "arithmetic"


def test_a_run_on_record_since_before_the_probe_is_the_same_run(run):
    """In any order. The record with more probes is kept: in another run of the same there may have been no memory for them."""
    old, one, new = (run("te-current", probes=found) for found in ([], probes(25.0, 21.0)[:1], probes(25.0, 21.0)))
    for some_of in ([old, new], [new, one, old], [one, new], [old, one, new]):
        assert merge([(Path(f"{i}"), r) for i, r in enumerate(some_of)]) == [new]
    assert merge([(Path("a"), new), (Path("b"), run("te-current", probes=probes(25.0, 21.001)))]) == [new]


@pytest.mark.parametrize(
    ("found", "status"), [(probes(25.0, 2.0), "pass"), (probes(25.0, 21.0, -3.0), "pass"), (probes(25.0, 28.1), "fail")]
)
def test_only_a_rise_is_judged_in_a_model_that_was_not_measured(run, golden, found, status, monkeypatch):
    """The gradient of a large batch falls further, and that of one expert may have nothing in common with BF16's."""
    monkeypatch.setattr(gradients, "PROBED_MODELS", frozenset())
    assert verdict(run, golden, found).status == status
