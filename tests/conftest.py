"""Shared pieces of the tests of the suite."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import paired
import pytest
import reports
import sessions
import torch
import trajectories
import two_sides
from fp8parity import checks
from fp8parity.judging.references.loss import Golden
from fp8parity.numerics import emulation
from fp8parity.records import files
from fp8parity.records.files import locked
from fp8parity.records.schema import Trajectory
from fp8parity.report.summary import Report
from fp8parity.training import provenance
from hypothesis import settings
from sessions import Session

pytest_plugins = ("pytester",)

# Goldens are refused in a CI. Tests of that set the variable; all others must not depend on where they run.
os.environ.pop("CI", None)
# The same examples on every machine, however slow it is. "--hypothesis-profile default" draws new ones.
settings.register_profile("repeated", derandomize=True, deadline=None)
settings.load_profile("repeated")
# A process reads the versions of packages once: here, before a test replaces what reads them.
provenance.versions()
ROOT = Path(__file__).parents[1]
Made = TypeVar("Made")


@pytest.fixture(autouse=True, scope="module")
def frozen_heap():
    """Leave what earlier modules made out of garbage collections: with a million objects one takes longer than most tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread():
    """The tests' own thread count, put back whatever a test does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], Made]], Made]:
    """Returns what a function made under a name. It is called once, also if several processes (xdist) ask: the others read its result.
    An error is kept, too, so that a second process does not try again for a minute."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def kept(name: str, make: Callable[[], Made]) -> Made:
        path = folder / "once" / name
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                try:
                    result: object = make()
                except Exception as error:
                    result = error
                files.write(path, pickle.dumps(result))
            found = pickle.loads(path.read_bytes())
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]  # as it was written

    return kept


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch):
    """Run the emulation uncompiled, so that a planted fault is not hidden in an older kernel."""
    monkeypatch.setattr(emulation, "compiles", lambda: False)
    emulation.kernel.cache_clear()
    yield
    emulation.kernel.cache_clear()


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """The project's own goldens and policy, records in a scratch folder, on the CPU."""
    return sessions.on_cpu(tmp_path / "records")


@pytest.fixture
def nano(session):
    """A model that learns in seconds, with its schedule."""
    return session.preset("nano")


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """A made-up trajectory: a smooth curve, shifted by a relative ``gap``, with any field replaced."""

    return trajectories.made


@pytest.fixture
def run(trajectory: Callable[..., Trajectory]) -> Callable[..., Trajectory]:
    """Makes runs that share their seed's losses (``paired.runner``)."""
    return paired.runner(trajectory)


@pytest.fixture
def golden(run: Callable[..., Trajectory]) -> Golden:
    """The golden of such runs."""
    return paired.golden_of(run)


@pytest.fixture
def runs(trajectory: Callable[..., Trajectory]) -> Callable[..., list[Trajectory]]:
    """Makes the runs of one side of a comparison (``two_sides.runs``)."""
    return partial(two_sides.runs, trajectory)


def subject(session: Session, recipe: str, execution: str = "emulated") -> checks.RunSpec:
    return session.subject(recipe, execution)


def measured(found: checks.Result) -> dict[str, float]:
    return {f"{m.metric} @ {m.where}": m.value for m in found[0]}


@pytest.fixture(scope="session")
def faulty() -> Report:
    """One recipe above the margin, one non-finite, one speed row a cell, two reasons of skips."""
    skipped = {
        "te-mxfp8-tiny-native": "Skipped: needs sm_100",
        "te-nvfp4-tiny-native": "Skipped: needs sm_100",
        "x-tiny-native": "no package",
    }
    return reports.report(
        skipped, recipes=("te-current", "te-block", "te-nvfp4"), models=("tiny", "mini"), gaps={("te-current", "mini"): 0.0081},
        stops={("te-nvfp4", "mini"): 100}, speeds=True,
    )  # fmt: skip


@pytest.fixture
def one_rank():
    """A process group of one rank, in this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
