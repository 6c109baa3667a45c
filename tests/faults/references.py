"""Faults of what the gate compares with: goldens, measured numbers, the policy, known failures, and the other side of an upgrade."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fp8parity.judging.references import store
from fp8parity.judging.references.loss import Golden, GoldenSeed
from fp8parity.judging.references.sound_runs import RecipeNoise
from fp8parity.records.schema import AnyRecord, Measurement
from fp8parity.records.storage import write_json
from sessions import GOLDEN
from trajectories import OTHER_NORM
from two_sides import TOML, runs, save

from faults.gate import Make, Plant, fault, judge, number, red, refused
from faults.runs import calibration


def copied(folder: Path) -> Path:
    """A copy of the golden folder without records."""
    shutil.copytree(GOLDEN, folder / "golden", ignore=shutil.ignore_patterns("records"))
    return folder / "golden"


def _numbers(change: Callable[[str], str]) -> Plant:
    """The measured numbers of the golden folder, changed."""

    def plant(folder: Path, make: Make) -> list[str]:
        path = copied(folder) / "numerics" / "shared.csv"
        path.write_text(change(path.read_text()))
        return judge(folder, [number(make, 28.5)], folder / "golden")

    return plant


def _known(value: float, expires: str) -> Plant:
    """A known failure of the number, which has this value."""
    entry = (
        f'\n[[known]]\nrecipe = "te-current"\ncheck = "gemm"\nstatus = "fail"\nlink = "https://example.org/7"\n'
        f'expires = {expires}\nwhy = "the scale is applied twice"\n'
        'number = [{ metric = "fprop sqnr", where = "gaussian", low = 23, high = 25 }]\n'
    )

    def plant(folder: Path, make: Make) -> list[str]:
        path = copied(folder) / "known_failures.toml"
        path.write_text(entry)
        return judge(folder, [number(make, value)], folder / "golden")

    return plant


def micro(factor: float = 1.0) -> list[AnyRecord]:
    runs = [r for r in calibration("micro") if r.cell.recipe in ("bf16", "te-current") and not r.variant]
    return [r if r.cell.is_control else r.model_copy(update={"loss": [v * factor for v in r.loss]}) for r in runs]


def _golden(change: Callable[[Golden], Golden], *, recorded: bool = False, factor: float = 1.0) -> Plant:
    """The golden of micro, edited with a checksum that is right, or ``recorded`` so: with its digest.

    The losses of te-current are a ``factor`` higher.
    """

    def plant(folder: Path, make: Make) -> list[str]:
        path = copied(folder) / "loss" / "micro-topics.json"
        golden = change(store.read(path, Golden))
        write_json(path, golden.sealed() if recorded else golden)
        return judge(folder, micro(factor), folder / "golden")

    return plant


def _golden_file(change: Callable[[Path], object]) -> Plant:
    def plant(folder: Path, make: Make) -> list[str]:
        change(copied(folder) / "loss" / "micro-topics.json")
        return judge(folder, micro(), folder / "golden")

    return plant


def _noise(factor: float, *fields: str) -> Callable[[Golden], Golden]:
    """The gaps of all sound runs times a factor."""

    def times(noise: RecipeNoise) -> RecipeNoise:
        runs = [
            r.model_copy(update={f: [x * factor for x in getattr(r, f)] for f in fields or GAPS}) for r in noise.runs
        ]
        return noise.model_copy(update={"runs": runs})

    return lambda g: g.model_copy(update={"noise": [times(n) for n in g.noise]})


def _moved_by(
    factor: float, first: int = 0, seeds: Sequence[int] = range(8), *, norms: float = OTHER_NORM
) -> Callable[[Golden], Golden]:
    """BF16's losses times a factor from a step on. The norms of other training differ, too, if only by ``norms``."""

    def change(s: GoldenSeed) -> GoldenSeed:
        losses = [*s.loss[:first], *(v * factor for v in s.loss[first:])]
        changes = {"loss": losses, "grad_norm": [n + norms for n in s.grad_norm], "replicas": []}
        return s.model_copy(update=changes) if s.seed in seeds else s

    return lambda g: g.model_copy(update={"seeds": [change(s) for s in g.seeds]})


def compare(folder: Path, make: Make, *, lost: Callable[[Any], bool] = lambda r: False, **new: Any) -> list[str]:
    """Two sides of an upgrade. NEW lacks the records that ``lost`` selects."""
    (folder / "policy.toml").write_text(TOML)
    later = [r for r in runs(make, "2.13.0", **new) if not lost(r)]
    old, kept = save(folder / "old", runs(make)), save(folder / "new", later)
    return ["compare", str(old), str(kept), "--golden-dir", str(folder)]


def _metric_lost(folder: Path, make: Make) -> list[str]:
    """The new version measures one number less."""
    values = [
        Measurement(metric=f"fprop {what}", where="gaussian", value=value)
        for what, value in (("sqnr", 28.5), ("gain", -0.001))
    ]
    new = make().provenance.model_copy(update={"packages": {"torch": "9"}})
    old = save(folder / "old", [number(make, 28.5, values=values)])
    later = save(folder / "new", [number(make, 28.5, values=values[:1], provenance=new)])
    return ["compare", str(old), str(later), "--golden-dir", str(GOLDEN)]


GAPS = ("loss", "grad_norm", "first_gradients")
EDITED = "micro-topics.json: its values do not match their digest: they were edited after"
unclear = partial(fault, code=2, where="fp8parity compare")
GOLDENS = {
    **{
        f"golden raised by 0.05% {when} and recorded so": red(
            _golden(_moved_by(1.0005, first, norms=0.0), recorded=True),
            (
                "does not match its golden",
                f"BF16, seed 0: in step {first} its loss is -0.050% from the golden's",
                "equal to the bit: the golden or the record was edited",
            ),
        )
        for first, when in ((0, "from the first step on"), (240, "in its tail"))
    },
    "golden of a framework that trained wrongly": red(
        _golden(_moved_by(1.01), recorded=True), "BF16 changed and no package did"
    ),
    "tail of a golden high, and a recipe high": red(
        _golden(_moved_by(1.0005, 240), recorded=True, factor=1.0012),
        (
            "BF16 is -0.05",
            "from its golden, and the recipe +0.12",
            "from BF16 (sound runs +0.0",
            ": BF16 and the recipe changed and no package did",
        ),
    ),
    **{
        f"golden whose {what}": refused(_golden(change), EDITED)
        for what, change in (
            ("noise was multiplied by three", _noise(3.0)),
            ("tail was raised in one seed", _moved_by(1.0005, 240, [0])),
        )
    },
    **{
        f"golden of noise {words} times as large": red(
            _golden(_noise(factor), recorded=True),
            ("first gradients from sound runs, most in ", f": {share}", "gap to BF16 away from those of sound runs"),
        )
        for words, factor, share in (("three", 3.0, "0.6"), ("0.3", 0.3, "2.3"))
    },
    "golden edited by hand": refused(
        _golden_file(lambda p: p.write_text(p.read_text().replace('"seed": 1', '"seed": 17'))),
        "its checksum does not match its content",
    ),
    "golden lost": red(_golden_file(Path.unlink), "no-golden"),
    "measured number that appears twice": refused(_numbers(lambda t: t + t.splitlines()[-1] + "\n"), "appears twice"),
    "measured number without its source": refused(
        _numbers(lambda t: t.rstrip("\n").rpartition(",")[0] + ",gone\n"), "source 'gone' is not in sources.csv"
    ),
    "known failure that has expired": red(_known(24.0, "2026-01-01"), "expired on 2026-01-01: recipe te-current, gemm"),
    "known failure that passes": red(_known(28.5, "2999-01-01"), "is green now"),
}
UPGRADES = {
    "metric lost in an upgrade": unclear(_metric_lost, "gemm: fprop gain @ gaussian"),
    "control lost in an upgrade": unclear(
        partial(compare, lost=lambda r: r.cell.recipe == "bf16"), "missing: bf16-nano-native"
    ),
}
FAULTS = GOLDENS | UPGRADES
