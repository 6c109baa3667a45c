"""Made-up records of two environments, for the tests of comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fp8parity.judging.compare import Comparison, compare
from fp8parity.judging.compare.change import Change
from fp8parity.judging.policy import LossRow, MetricRow, Policy, SpeedRow
from fp8parity.judging.policy.rows import Rule
from fp8parity.judging.references import Goldens
from fp8parity.records.manifest import Manifest, Selected
from fp8parity.records.provenance import Provenance
from fp8parity.records.schema import AnyRecord, Trajectory
from fp8parity.records.storage import name_of, write_json

WHY = "a made-up row"
POLICY = Policy(
    path=Path("policy.toml"),
    loss=(LossRow(margin=0.005, seeds=(3,), why=WHY),),
    speed=(SpeedRow(band=0.03, memory_band=0.02, why=WHY),),
    rule=(
        Rule(check=("gemm",), metric=("fprop sqnr",), low=28.0, high=29.0, why=WHY),
        Rule(check=("gemm",), metric=("bias",), low=0, high=2, why=WHY),
    ),
    metric=(MetricRow(name=("fprop sqnr",), better="higher", unit="dB"),),
)
TOML = f'[[loss]]\nmargin = 0.005\nseeds = [3]\nwhy = "{WHY}"\n'
JITTER = (1e-4, 4e-4, -3e-4, 2e-4, -2e-4)

Make = Callable[..., Trajectory]


def provenance(
    trajectory: Make, version: str = "2.12.0", device: str = "EPYC", capability: list[int] | None = None
) -> Provenance:
    packages = {"torch": version, "torchao": "0.18.0"}
    return trajectory().provenance.model_copy(update={"packages": packages, "device": device, "capability": capability})


def runs(
    trajectory: Make,
    version: str = "2.12.0",
    *,
    recipe: float = 0.0,
    control: float = 0.0,
    noise: float = 0.0,
    seeds: int = 3,
    device: str = "EPYC",
    **changes: object,
) -> list[Trajectory]:
    """The trajectories of BF16 and te-current, shifted by relative gaps, of one environment."""
    own = {"provenance": provenance(trajectory, version, device), "session": f"{version} {device}", **changes}
    both = []
    for s in range(seeds):
        both.append(trajectory("bf16", s, control, **own))
        both.append(trajectory("te-current", s, recipe + (1 + noise) * JITTER[s], **own))
    return both


def compared(old: Sequence[AnyRecord], new: Sequence[AnyRecord], policy: Policy = POLICY) -> Comparison:
    return compare(old, new, Goldens(), policy)


def change(comparison: Comparison, recipe: str = "te-current", kind: str = "loss") -> Change:
    return next(c for c in comparison.changes if c.cell.recipe == recipe and c.what == kind)


def session(trajectory: Make, *selected: Selected, **changes: object) -> Manifest:
    """The manifest of a session that selected these tests, in the environment of ``provenance``."""
    given = {
        "session": "s",
        "options": [],
        "started": "",
        "ended": "",
        "status": "ok",
        "provenance": provenance(trajectory),
    }
    return Manifest.model_validate({**given, "selected": list(selected), **changes})


def save(folder: Path, records: Sequence[AnyRecord]) -> Path:
    for r in records:
        write_json(folder / name_of(r), r)
    return folder
