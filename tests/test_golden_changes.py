"""Each field of a golden that changes is told, with its old and its new value. A field that a later version adds is told, too."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fp8parity.judging import loss_store, speed_goldens
from fp8parity.judging.golden_changes import changes, moved
from fp8parity.judging.loss_goldens import Golden
from fp8parity.judging.speed_entries import SpeedEntry
from fp8parity.records.cell import Mode, Strict
from fp8parity.records.provenance import Provenance
from fp8parity.records.schema import Measurement
from paired import golden_of, runner
from pydantic import BaseModel
from timings import made


@pytest.fixture
def golden(trajectory) -> Golden:
    made = golden_of(runner(trajectory))
    return made.model_copy(update={"gradients": [Measurement(metric="total sqnr", where="initial", value=44.0)]})


def edited(value: Any, way: tuple[Any, ...], new: Any) -> Any:
    """A copy of nested data with ``new`` at the end of ``way``."""
    if not way:
        return new
    if isinstance(value, BaseModel):
        return value.model_copy(update={way[0]: edited(getattr(value, way[0]), way[1:], new)})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{way[0]: new})
    copied = value.copy()
    copied[way[0]] = edited(value[way[0]], way[1:], new)
    return copied


@pytest.mark.parametrize(
    ("way", "new", "told"),
    [
        (("schedule", "lr"), 0.002, "schedule.lr 0.001 -> 0.002 (+0.001)"),
        (("schedule", "tail"), 50, "schedule.tail 40.0 -> 50 (+10)"),
        (("spec_hash",), "other", "spec_hash spec -> other"),
        (("fingerprint",), "other", "fingerprint print -> other"),
        (("floor",), 3.5, "floor - -> 3.5"),
        (("seeds", 1, "initial_weights"), "x", "seed 1: initial_weights w1 -> x"),
        (("seeds", 1, "final_weights"), "x", "seed 1: final_weights f -> x"),
        (("seeds", 1, "loss", 7), 6.0, "seed 1: loss 1 of 160 values, most at 7: 4.94352 -> 6.0 (+1.06)"),
        (("seeds", 1, "grad_norm", 7), 6.0, "seed 1: grad_norm 1 of 160 values, most at 7: 2.0 -> 6.0 (+4)"),
        (("seeds", 1, "validation", 0), (159, 3.6), "seed 1: validation 1 of 1 values, most at 0: (159, 3.5) -> (159, 3.6)"),
        (("seeds", 1, "replicas", 0, "loss", 0), 6.0, "seed 1 replica1: loss 1 of 160 values, most at 0: 5.01003 -> 6.0 (+0.99)"),
        (("gradients", 0, "value"), 43.5, "gradients total sqnr @ initial: value 44.0 -> 43.5 (-0.5)"),
        (("spreads", 0, "tail_sd"), 2e-5, "spread of te-current: tail_sd "),
        (("spreads", 0, "loss", 3), 0.01, "spread of te-current: loss 1 of 20 values, most at 3: "),
        (("spreads", 0, "grad_norm", 3), 0.01, "spread of te-current: grad_norm 1 of 20 values, most at 3: "),
        (("spreads", 0, "seeds"), 9, "spread of te-current: seeds 24 -> 9 (-15)"),
        (("spreads", 0, "recipes"), ["te-block"], "spread of te-current removed"),
        (("spreads", 0, "recipes"), ["te-block"], "spread of te-block: new"),
        (("provenance", "commit"), "def", "provenance.commit abc -> def"),
        (("provenance", "packages", "torch"), "2.14", "provenance.packages.torch 0 -> 2.14"),
    ],
)  # fmt: skip
def test_a_changed_field_is_told(golden, way, new, told):
    found = changes(golden, edited(golden, way, new))
    assert any(told in line for line in found), found
    assert found != [] and loss_store.changes(golden, edited(golden, way, new)) != loss_store.changes(golden, golden)


def leaves(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values that hold no others. Of a list the last item stands for all."""
    if isinstance(value, BaseModel):
        return [w for name in type(value).model_fields for w in leaves(getattr(value, name), (*way, name))]
    if dataclasses.is_dataclass(value):
        return [w for f in dataclasses.fields(value) for w in leaves(getattr(value, f.name), (*way, f.name))]
    if isinstance(value, dict):
        return [w for name in value for w in leaves(value[name], (*way, name))] or [way]
    if isinstance(value, list) and value:
        return leaves(value[-1], (*way, len(value) - 1))
    return [way]


def test_no_field_of_a_golden_can_change_in_silence(golden):
    """The fields are those of the classes, so a field that is added later is told without anybody's care."""
    ways = leaves(golden)
    assert len(ways) >= 50
    silent = [
        way for way in ways if not changes(golden, edited(golden, way, 12345.0 if way[-1] == "value" else "changed"))
    ]
    assert silent == []


def test_no_field_of_a_throughput_golden_can_change_in_silence():
    golden = speed_goldens.updated(None, [made()])
    silent = [way for way in leaves(golden) if speed_goldens.changes(golden, edited(golden, way, 0.5)) == []]
    assert silent == []


class Later(Strict):
    """A model of a later version, which nobody has named in the module."""

    parts: list[SpeedEntry]
    more: Provenance | None = None


def test_a_list_of_unnamed_models_is_told_by_its_places():
    one = SpeedEntry(
        ratio=1.0, low=1.0, high=1.0, pairs=6, memory=1.0, tokens_per_second=1.0, bf16_tokens_per_second=1.0, mode=Mode.EAGER, tokens=1,
        flops_per_token=1.0, commit="c",
    )  # fmt: skip
    same = "low 1.0, high 1.0, pairs 6, memory 1.0, tokens_per_second 1.0, bf16_tokens_per_second 1.0"
    two = one.model_copy(update={"pairs": 7})
    assert changes(Later(parts=[one]), Later(parts=[one, one])) == [
        f"parts 2: new, ratio 1.0, {same}, mode eager, tokens 1, flops_per_token 1.0, "
        "attention torch's choice, optimizer torch's AdamW, commit c"
    ]
    assert changes(Later(parts=[one, one]), Later(parts=[one, two])) == ["parts 2: pairs 6 -> 7 (+1)"]
    assert changes(Later(parts=[one, one]), Later(parts=[one])) == ["parts 2 removed"]
    assert changes(Later(parts=[]), Later(parts=[])) == []


def test_values_that_are_gone_are_counted(golden):
    shorter = edited(golden, ("seeds", 0, "loss"), golden.seeds[0].loss[:-1])
    assert "seed 0: loss 160 -> 159 values" in changes(golden, shorter)


def test_changes_of_the_golden_itself_share_a_line(golden):
    assert changes(golden, golden.model_copy(update={"spec_hash": "a", "fingerprint": "b"})) == [
        "spec_hash spec -> a; fingerprint print -> b",
    ]


def test_changes_of_a_seed_share_a_line(golden):
    new = edited(edited(golden, ("seeds", 1, "initial_weights"), "x"), ("seeds", 1, "final_weights"), "y")
    assert changes(golden, new) == ["seed 1: initial_weights w1 -> x; final_weights f -> y"]


def test_of_a_new_part_the_largest_of_its_numbers_is_told(golden):
    fewer = golden.model_copy(update={"seeds": golden.seeds[:2]})
    told = "new, loss up to 5.02, grad_norm up to 2.0, seed 2, initial_weights w2, final_weights f"
    assert changes(fewer, golden) == [f"seed 2: {told}"]


def test_a_part_that_comes_or_goes_is_told_whole(golden):
    some, none = Later(parts=[], more=golden.provenance), Later(parts=[])
    assert changes(some, none) == [f"more {golden.provenance} -> -"]
    assert changes(none, some) == [f"more - -> {golden.provenance}"]


class Values(Strict):
    """A list of numbers, some of which may be missing."""

    values: list[float | None]


NAN = float("nan")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ([1.0, 10.0], [2.0, 10.5], ["values 2 of 2 values, most at 0: 1.0 -> 2.0 (+1)"]),
        ([1.0, -10.0], [0.5, -12.0], ["values 2 of 2 values, most at 1: -10.0 -> -12.0 (-2)"]),
        ([None, 1.0], [0.5, 1.5], ["values 2 of 2 values, most at 1: 1.0 -> 1.5 (+0.5)"]),
        ([None, 1.0], [0.5, 1.0], ["values 1 of 2 values, most at 0: - -> 0.5"]),
        ([NAN], [NAN], []),
        ([NAN], [1.0], ["values 1 of 1 values, most at 0: nan -> 1.0 (+nan)"]),
        ([1.0], [NAN], ["values 1 of 1 values, most at 0: 1.0 -> nan (+nan)"]),
    ],
)
def test_of_a_list_the_value_that_moved_most_is_told(old, new, told):
    """A missing value has no distance, and NaN equals NaN."""
    assert changes(Values(values=old), Values(values=new)) == told


def test_a_number_of_more_than_eight_characters_is_told_with_six_digits():
    assert moved(1.234567, 12.345678) == "1.234567 -> 12.3457 (+11.1)"
    assert moved((1.23456789, 2), (1.5, 2)) == "(1.23457, 2) -> (1.5, 2)"
