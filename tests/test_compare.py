"""Two record sets: planted regressions, gains, noise and gaps, each with its class and exit status."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.compare import compare
from fp8parity.record import CellKey, Measurement, Measurements, NonFinite, Throughput, Watch
from fp8parity.record_set import what
from fp8parity.storage import file_name, write_json
from fp8parity.tolerances import Bound, LossRow, SpeedRow, Tolerances

BOUND = Bound(check="gemm", metric="*sqnr", low=28.0, high=29.0, why="a made-up row")
BIAS = Bound(check="gemm", metric="bias", low=0.0, high=2.0, why="a made-up row")
TABLE = Tolerances(
    path=Path("t.toml"),
    loss=[LossRow(margin=0.005, seeds=(3,), why="a made-up row")],
    bound=[BOUND, BIAS],
    golden=[],
    speed=[SpeedRow(band=0.03, memory_band=0.02, why="a made-up row")],
)
TOML = '[[loss]]\nmargin = 0.005\nseeds = [3]\nwhy = "a made-up row"\n'
JITTER = (1e-4, 4e-4, -3e-4, 2e-4, -2e-4)


@pytest.fixture
def provenance(trajectory):
    def make(version="2.12.0", device="EPYC", capability=None):
        packages = {"torch": version, "torchao": "0.18.0"}
        return trajectory().provenance.model_copy(update={"packages": packages, "device": device, "capability": capability})

    return make


@pytest.fixture
def runs(trajectory, provenance):
    """The trajectories of BF16 and te-current, shifted by relative gaps, of one environment."""

    def make(version="2.12.0", *, recipe=0.0, control=0.0, noise=0.0, seeds=3, device="EPYC", **changes):
        own = {"provenance": provenance(version, device), "session": f"{version} {device}", **changes}
        both = []
        for s in range(seeds):
            both.append(trajectory("bf16", s, control, **own))
            both.append(trajectory("te-current", s, recipe + (1 + noise) * JITTER[s], **own))
        return both

    return make


def change(comparison, recipe="te-current", kind="loss"):
    return next(c for c in comparison.changes if c.cell.recipe == recipe and c.what == kind)


@pytest.mark.parametrize(
    ("new", "moved", "effect", "code"),
    [
        ({"recipe": 0.02}, "recipe moved", "regression", 1),
        ({"recipe": 0.02, "control": 0.02}, "framework moved", "regression", 1),
        ({"recipe": 0.04, "control": 0.02}, "both moved", "regression", 1),
        ({"recipe": -0.02}, "recipe moved", "gain", 0),
        ({"recipe": -0.02, "control": -0.02}, "framework moved", "gain", 0),
        ({"noise": 1.0}, "noise", "none", 0),
        ({"recipe": 0.003}, "noise", "none", 0),
        ({"noise": 30.0}, "cannot say", "unknown", 2),
        ({}, "unchanged", "none", 0),
    ],
)
def test_planted_losses(runs, new, moved, effect, code):
    found = compare(runs(), runs("2.13.0", **new), TABLE)
    assert (change(found).moved, change(found).effect, found.code) == (moved, effect, code)
    framework = new.get("control", 0.0)
    assert change(found, "bf16").moved == ("framework moved" if framework else "unchanged")
    assert change(found, "bf16").framework.mean == pytest.approx(framework, abs=1e-12)
    assert found.sentence.endswith("(torch 2.12.0 -> 2.13.0).")


def test_the_gap_is_paired_by_seed(runs):
    """The seeds' own spread cancels: what is left is the shift, to within the jitter that NEW adds."""
    found = change(compare(runs(), runs("2.13.0", recipe=0.02, noise=0.1), TABLE))
    assert found.recipe.n == 3
    assert found.recipe.low < 0.02 < found.recipe.high
    assert found.recipe.high - found.recipe.low < 2e-4
    assert found.framework.low == found.framework.high == 0


def test_the_sentence_says_what_moved_and_by_how_much(runs):
    sentence = compare(runs(), runs("2.13.0", recipe=0.02), TABLE).sentence
    assert sentence.startswith("Recipe moved: te-current-nano-emulated loss +2.00% [+2.00%, +2.00%], worse")
    quiet = compare(runs(), runs("2.13.0"), TABLE).sentence
    assert quiet.startswith("Nothing moved beyond its margin: 2 comparisons, 2 of them equal to the bit (torch")


@pytest.mark.parametrize(("old", "new", "lacks"), [(5, 3, "NEW"), (3, 5, "OLD")])
def test_missing_seeds_are_listed_and_red(runs, old, new, lacks):
    found = compare(runs(seeds=old), runs("2.13.0", seeds=new), TABLE)
    assert [(m.cell, m.items, m.lacks) for m in found.missing] == [
        ("bf16-nano-native", ["seed3", "seed4"], lacks),
        ("te-current-nano-emulated", ["seed3", "seed4"], lacks),
    ]
    assert change(found).moved == "unchanged"
    assert found.code == 2


def test_a_missing_cell_is_listed_and_red_and_a_regression_outranks_it(runs, trajectory, provenance):
    more = [trajectory("te-block", s, 0.0, provenance=provenance()) for s in range(3)]
    found = compare(runs() + more, runs("2.13.0"), TABLE)
    assert [m.text for m in found.missing] == ["te-block-nano-emulated seed0, seed1, seed2 (in NEW)"]
    assert found.code == 2
    assert "missing: te-block-nano-emulated" in found.sentence
    assert compare(runs() + more, runs("2.13.0", recipe=0.02), TABLE).code == 1


@pytest.mark.parametrize(
    ("side", "moved", "effect", "code"),
    [(1, "recipe moved", "regression", 1), (0, "recipe moved", "gain", 0), (2, "cannot say", "unknown", 2)],
)
def test_non_finite_runs(runs, side, moved, effect, code):
    sides = [runs(), runs("2.13.0")]
    stopped = {"non_finite": NonFinite(step=7, where="x"), "loss": [1.0] * 7}
    for i in (0, 1):
        if side in (i, 2):
            sides[i] = [r.model_copy(update=stopped) if r.cell.recipe != "bf16" and r.seed == 1 else r for r in sides[i]]
    found = compare(*sides, TABLE)
    assert (change(found).moved, change(found).effect, found.code) == (moved, effect, code)
    assert "seed 1 is non-finite at step 7" in change(found).notes


@pytest.mark.parametrize(
    ("recipe", "sides", "moved", "effect", "code"),
    [
        ("te-current", (1,), "recipe moved", "regression", 1),
        ("te-current", (0,), "recipe moved", "gain", 0),
        ("te-current", (0, 1), "cannot say", "unknown", 2),
        ("bf16", (1,), "framework moved", "regression", 1),
    ],
)
def test_an_odd_first_step_moved_though_the_losses_did_not(runs, recipe, sides, moved, effect, code):
    expect = {"te-current": {"nano": 1.0}, "bf16": {"nano": 1.0}}
    bound = Bound(check="loss parity", metric="first gradient norm", expect=expect, band=0.01, why="a made-up bound")
    both = [runs(), runs("2.13.0")]
    for i in sides:
        both[i] = [r.model_copy(update={"grad_norm": [0.96] + [1.0] * 11}) if r.cell.recipe == recipe else r for r in both[i]]
    found = compare(*both, TABLE.model_copy(update={"bound": [bound]}))
    assert (change(found, recipe).moved, change(found, recipe).effect) == (moved, effect)
    assert "gradient norm 0.9600x" in change(found, recipe).notes[0]
    assert found.code == code
    assert recipe != "bf16" or change(found, "te-current").moved == moved
    assert change(compare(runs(), runs("2.13.0"), TABLE.model_copy(update={"bound": [bound]})), recipe).moved == "unchanged"


@pytest.mark.parametrize(("side", "effect", "code"), [(1, "regression", 1), (0, "unknown", 2)])
def test_a_silent_fall_back_trains_well_and_is_no_gain(runs, side, effect, code):
    """The gap to BF16 shrinks from 0.1% to 0: inside every margin, and nothing is quantised any more."""
    sides = [runs(recipe=0.001), runs("2.13.0", recipe=0.001)]
    bf16 = {r.seed: r.loss for r in sides[side] if r.cell.recipe == "bf16"}
    sides[side] = [r if r.cell.recipe == "bf16" else r.model_copy(update={"loss": bf16[r.seed]}) for r in sides[side]]
    found = compare(*sides, TABLE)
    assert (change(found).effect, found.code) == (effect, code)
    assert f"in {('OLD', 'NEW')[side]} the losses equal BF16's to the bit" in change(found).notes[0]


@pytest.mark.parametrize("field", ["initial_weights", "spec_hash", "fingerprint"])
def test_other_experiments_are_never_compared(runs, field):
    found = compare(runs(), runs("2.13.0", **{field: "other"}), TABLE)
    assert change(found).moved == "cannot say"
    assert change(found).notes[0] == f"seed 0: another {field.replace('_', ' ')}"
    assert found.code == 2


def test_without_a_control_or_anything_in_common(runs):
    old, new = runs(), [r for r in runs("2.13.0", recipe=0.02) if r.cell.recipe != "bf16"]
    found = compare(old, new, TABLE)
    assert change(found).moved == "cannot say"
    assert found.code == 2
    nothing = compare([r for r in old if r.cell.recipe == "bf16"], new, TABLE)
    assert (nothing.code, nothing.changes) == (2, [])
    assert nothing.sentence.startswith("Nothing could be compared")


def test_machines_are_paired_by_device_or_else_the_machine_changed(runs):
    old = runs(device="EPYC") + runs(device="H200", recipe=0.001)
    new = runs("2.13.0", device="H200", recipe=0.021) + runs("2.13.0", device="EPYC")
    found = compare(old, new, TABLE)
    by_machine = {c.machine: c.moved for c in found.changes if c.cell.recipe == "te-current" and c.what == "loss"}
    assert by_machine == {"EPYC": "unchanged", "H200": "recipe moved"}
    assert not found.missing
    other = compare(runs(device="H100"), runs("2.13.0", device="H200"), TABLE)
    assert other.machines == ["H100 -> H200"]
    assert "device H100 -> H200" in other.sentence
    assert other.code == 0
    gone = compare(old, runs("2.13.0", device="EPYC"), TABLE)
    assert {m.cell for m in gone.missing} == {"bf16-nano-native on H200", "te-current-nano-emulated on H200"}
    assert gone.code == 2


def test_one_device_in_two_environments_is_no_side(runs):
    with pytest.raises(ValueError, match="NEW holds EPYC with more than one torch"):
        compare(runs(), runs("2.13.0") + runs("2.14.0"), TABLE)


@pytest.fixture
def measured(provenance):
    def make(version, sqnr=28.5, bias=1.0, recipe="te-current", metric="fprop sqnr"):
        cell = CellKey(model="tiny", recipe=recipe, execution="native" if recipe == "bf16" else "emulated", corpus="synthetic")
        values = [Measurement(metric=metric, where="g", value=sqnr), Measurement(metric="bias", where="g", value=bias)]
        return Measurements(cell=cell, check="gemm", values=values, provenance=provenance(version), session=version)

    return make


@pytest.mark.parametrize(
    ("old", "new", "moved", "effect", "code"),
    [
        ({}, {"sqnr": 28.4}, "noise", "none", 0),
        ({}, {"sqnr": 28.2}, "recipe moved", "none", 0),
        ({}, {"sqnr": 27.9}, "recipe moved", "regression", 1),
        ({}, {"sqnr": 29.1}, "recipe moved", "regression", 1),
        ({"sqnr": 28.9}, {"sqnr": 28.1}, "recipe moved", "regression", 1),
        ({"sqnr": 28.1}, {"sqnr": 28.9}, "recipe moved", "gain", 0),
        ({"sqnr": 27.0}, {"sqnr": 28.5}, "recipe moved", "gain", 0),
        ({"bias": 0.2}, {"bias": 1.9}, "recipe moved", "regression", 1),
        ({"bias": 1.9}, {"bias": 0.2}, "recipe moved", "gain", 0),
        ({}, {"sqnr": math.nan}, "recipe moved", "regression", 1),
        ({"metric": "odd"}, {"metric": "odd", "sqnr": 28.4}, "cannot say", "unknown", 2),
        ({}, {}, "unchanged", "none", 0),
    ],
)
def test_numerics_by_the_share_of_their_band(measured, old, new, moved, effect, code):
    found = compare([measured("2.12.0", **old)], [measured("2.13.0", **new)], TABLE)
    assert (change(found, kind="gemm").moved, change(found, kind="gemm").effect, found.code) == (moved, effect, code)


def test_numerics_of_bf16_tell_the_framework(measured):
    old = [measured("2.12.0", recipe=r) for r in ("bf16", "te-current")]
    new = [measured("2.13.0", 28.2, recipe=r) for r in ("bf16", "te-current")]
    found = compare(old, new, TABLE)
    assert change(found, "bf16", "gemm").moved == "framework moved"
    assert change(found, kind="gemm").moved == "both moved"
    assert "fprop sqnr @ g: 28.5 -> 28.2 (-0.3, band +-0.5)" in change(found, kind="gemm").notes


def test_a_metric_that_vanished_is_missing(measured):
    new = measured("2.13.0")
    found = compare([measured("2.12.0")], [new.model_copy(update={"values": new.values[:1]})], TABLE)
    assert [m.text for m in found.missing] == ["te-current-tiny-emulated gemm: bias @ g (in NEW)"]
    assert found.code == 2


@pytest.fixture
def timed(provenance):
    def make(version="2.12.0", ratio=1.5, memory=0.8, bf16=1.0, device="H200", capability=(9, 0), **changes):
        wobble = [1 + 0.001 * (i % 3 - 1) for i in range(11)]
        base = Throughput(
            cell=CellKey(model="small", recipe="te-current", execution="native", corpus="synthetic"), mode="compiled", tokens=16384,
            steps_a_block=4, bf16_seconds=[bf16 * w for w in wobble], recipe_seconds=[bf16 / ratio] * 11, bf16_memory=1_000_000,
            recipe_memory=int(1_000_000 * memory), flops_per_token=1.0, peak_flops=None,
            watch=Watch(busy_before=0, sm_clocks=[1980], throttled=[]),
            provenance=provenance(version, device, list(capability) if capability else None), session=version,
        )  # fmt: skip
        return base.model_copy(update=changes)

    return make


@pytest.mark.parametrize(
    ("new", "kind", "moved", "effect", "code"),
    [
        ({"ratio": 1.35}, "throughput", "recipe moved", "regression", 1),
        ({"ratio": 1.65}, "throughput", "recipe moved", "gain", 0),
        ({"ratio": 1.505}, "throughput", "noise", "none", 0),
        ({"bf16": 1.1}, "throughput", "framework moved", "regression", 1),
        ({"memory": 0.9}, "memory", "recipe moved", "regression", 1),
        ({"memory": 0.7}, "memory", "recipe moved", "gain", 0),
        ({"ratio": 1.35, "mode": "eager"}, "throughput", "cannot say", "unknown", 2),
        ({"ratio": 1.35, "watch": Watch(busy_before=90, sm_clocks=[1980], throttled=[])}, "throughput", "cannot say", "unknown", 2),
        ({"ratio": 1.35, "device": "H100"}, "throughput", "shown", "none", 0),
        ({"ratio": 1.35, "capability": None}, "throughput", "shown", "none", 0),
    ],
)
def test_planted_throughput(timed, new, kind, moved, effect, code):
    found = compare([timed()], [timed("2.13.0", **new)], TABLE)
    assert (change(found, kind=kind).moved, change(found, kind=kind).effect, found.code) == (moved, effect, code)


def test_step_times_are_shown_and_never_decide(runs):
    slow = [r.model_copy(update={"step_seconds": 0.3}) if r.cell.recipe != "bf16" else r for r in runs("2.13.0")]
    found = compare(runs(), slow, TABLE)
    shown = change(found, kind="step time")
    assert (shown.old, shown.new, shown.moved, found.code) == ("1.00x BF16's time", "3.00x BF16's time", "shown", 0)


def save(folder: Path, records) -> Path:
    for r in records:
        write_json(folder / file_name(r.cell, what(r)), r)
    return folder


@pytest.mark.parametrize(("new", "code"), [({}, 0), ({"recipe": 0.02}, 1), ({"seeds": 2}, 2), ({"recipe": -0.02}, 0)])
def test_the_command_by_its_exit_status(runs, tmp_path, capsys, monkeypatch, new, code):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    (tmp_path / "tolerances.toml").write_text(TOML)
    old, later = save(tmp_path / "old", runs()), save(tmp_path / "new", runs("2.13.0", **new))
    report = tmp_path / "out" / "c.json"
    assert main(["compare", str(old), str(later), "--golden-dir", str(tmp_path), "--report", str(report)]) == code
    first, *rest = capsys.readouterr().out.splitlines()
    kept = json.loads(report.read_text())
    assert first == kept["sentence"]
    assert "torch 2.12.0 -> 2.13.0" in first
    assert kept["updates"] == [{"name": "torch", "old": "2.12.0", "new": "2.13.0"}]
    assert any(line.startswith("missing: te-current-nano-emulated seed2 (in NEW)") for line in rest) == (code == 2)
    assert main(["compare", str(old), str(later), "--golden-dir", str(tmp_path), "--report", str(tmp_path / "c.md")]) == code
    text = (tmp_path / "c.md").read_text()
    assert f"**{first}**" in text
    assert "| te-current-nano-emulated | loss |" in text
    assert ("## What is missing" in text) == (code == 2)


def test_the_command_with_bad_input(tmp_path, capsys, runs):
    (tmp_path / "tolerances.toml").write_text(TOML)
    old = str(save(tmp_path / "old", runs()))
    for arguments, words in (
        ((old, str(tmp_path / "no")), "no holds no records"),
        ((old, old, "--report", str(tmp_path / "x.txt")), "no renderer for '.txt'; use .md or .json"),
    ):
        assert main(["compare", *arguments, "--golden-dir", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err
