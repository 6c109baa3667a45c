"""A long run that was killed goes on from its checkpoint to the bit, and never from one of another run or build."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from faults.checkpoints import generator_of_a_new_run, masters_from_weights, moments_of_a_new_run
from fp8parity.numerics import emulation
from fp8parity.records.cell import Cell
from fp8parity.records.schema import Trajectory
from fp8parity.runner import Settings
from fp8parity.training import checkpoint, loop, provenance
from fp8parity.training.variants import Variant, replica
from fp8parity.workload import corpus
from fp8parity.workload.schedule import spec_hash
from fp8parity_lab import long_runs
from fp8parity_lab.long_runs import Checkpoint, trajectory
from processes import environment
from sessions import Session, cell, on_cpu

SAVED, KILLED = 7, 9
"""The run of twelve steps has one checkpoint, after step 6, and is killed two steps later. It validates after steps 5 and 11."""
BF16, DELAYED, NVFP4 = (
    cell(r, "native" if r == "bf16" else "emulated", "nano") for r in ("bf16", "te-delayed", "te-nvfp4")
)
BITS = (
    *("loss", "grad_norm", "validation", "first_gradients"),
    *("initial_weights", "final_weights", "probes", "hyperparameters"),
)


class Killed(BaseException):
    """Stands for a signal that ends the process."""


def die() -> None:
    raise Killed


def prepare(patch: pytest.MonkeyPatch, end: Callable[[], None] = die) -> None:
    """Let short runs write one checkpoint, in a clean tree, and end two steps after it."""
    real = Checkpoint.save

    def save(self: Checkpoint, state: dict[str, Any]) -> None:
        taken = len(state["history"]["loss"])
        if taken == SAVED:
            real(self, state)
        if taken == KILLED and not self.resume:
            end()

    patch.setattr(Checkpoint, "save", save)
    patch.setattr(long_runs, "EVERY_SECONDS", 0.0)
    patch.setattr(provenance, "tree", lambda folder: provenance.Tree("abc", dirty=False))
    patch.setattr(emulation, "compiles", lambda: False)


def child(folder: str) -> None:
    """Train until SIGKILL."""
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch, lambda: os.kill(os.getpid(), signal.SIGKILL))
        trajectory(on_cpu(Path(folder)), NVFP4, 0)


@pytest.fixture
def interrupted(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    prepare(monkeypatch)
    emulation.kernel.cache_clear()
    return session


def going_on(session: Session) -> Session:
    torch.manual_seed(99)  # a new process has other random numbers
    return Session(Settings(session.settings.records, resume=True), session.hardware, "next", session.presets)


def kill(session: Session, of: Cell, variant: Variant | None = None) -> Path:
    """Train until the kill, and return the checkpoint."""
    with pytest.raises(Killed):
        trajectory(session, of, 0, variant)
    [path] = session.settings.records.glob("*.checkpoint")
    assert not list(session.settings.records.glob("*.json"))
    return path


WHOLE: dict[tuple[Cell, str], Trajectory] = {}
"""The runs that nothing ended. Each is trained once."""


def uninterrupted(session: Session, of: Cell, variant: Variant | None = None) -> Trajectory:
    key = of, variant.name if variant else ""
    if key not in WHOLE:
        whole = replace(session, settings=Settings(session.settings.records / "whole", resume=True))
        WHOLE[key] = trajectory(whole, of, 0, variant)
    return WHOLE[key]


def differing(a: Trajectory, b: Trajectory) -> list[str]:
    return [name for name in BITS if getattr(a, name) != getattr(b, name)]


@pytest.mark.parametrize(
    ("of", "variant"),
    [(BF16, None), (BF16, replica(1)), (DELAYED, None)],
    ids=["bf16", "bf16 replica", "te-delayed"],
)
def test_a_killed_run_goes_on_to_the_bit(interrupted, of, variant):
    path, steps = kill(interrupted, of, variant), list[int]()
    with pytest.MonkeyPatch.context() as patch:
        real = loop.microbatches

        def noted(data: Any, schedule: Any, seed: int, step: int, device: torch.device) -> Any:
            steps.append(step)
            return real(data, schedule, seed, step, device)

        patch.setattr(loop, "microbatches", noted)
        found = trajectory(going_on(interrupted), of, 0, variant)
    assert steps == list(range(SAVED, 12))
    assert differing(found, uninterrupted(interrupted, of, variant)) == []
    assert len(found.probes) == (3 if of == DELAYED else 0)
    assert not path.exists()


def test_a_process_that_sigkill_ended_goes_on_to_the_bit(interrupted, tmp_path):
    """With stochastic rounding, whose generator is part of the state."""
    folder = interrupted.settings.records
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", f"import test_long_runs; test_long_runs.child({str(folder)!r})"]
    root = processes.ROOT
    paths = (*(str(root / name) for name in ("fixtures", "lab", "tests")), here)
    done = subprocess.run(command, env=environment(tmp_path, paths), capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [p.suffix for p in folder.glob("*seed0.*")].count(".checkpoint") == 1
    found = trajectory(going_on(interrupted), NVFP4, 0)
    assert found.probes[-1].noise
    assert differing(found, uninterrupted(interrupted, NVFP4)) == []


def weights_of_a_new_run(saved: dict[str, Any]) -> None:
    for name, weight in saved["model"].items():
        if name.endswith("up_proj.weight"):
            weight.zero_()


def scales_of_a_new_run(saved: dict[str, Any]) -> None:
    for name, state in saved["model"].items():
        if name.endswith("amax_history"):
            state.zero_()


@pytest.mark.parametrize(
    ("of", "lose"),
    [
        (BF16, weights_of_a_new_run),
        (BF16, masters_from_weights),
        (BF16, moments_of_a_new_run),
        (DELAYED, scales_of_a_new_run),
        (NVFP4, generator_of_a_new_run),
    ],
    ids=lambda x: x.recipe if isinstance(x, Cell) else x.__name__,
)
def test_a_part_that_is_not_restored_shows(interrupted, monkeypatch, of, lose):
    """Planted: one part of the state stays that of a new run."""
    kill(interrupted, of)
    real = checkpoint.restore
    monkeypatch.setattr(checkpoint, "restore", lambda c, o, saved: (lose(saved), real(c, o, saved)))
    found = trajectory(going_on(interrupted), of, 0)
    assert {"loss", "final_weights"} <= set(differing(found, uninterrupted(interrupted, of)))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def of_seed_1(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    torch.save({**state, "run": state["run"] | {"seed": "1"}}, path)


CLEAN = "tree", provenance.Tree("abc", dirty=False)


@pytest.mark.parametrize(
    ("of_session", "damage", "why"),
    [
        (("versions", {"torch": "0.0.1"}), None, "its packages differ"),
        (("tree", provenance.Tree("def", dirty=False)), None, "its commit differs"),
        (("tree", provenance.Tree("abc", dirty=True)), None, "the tree has uncommitted changes"),
        (CLEAN, cut, "it is damaged"),
        (CLEAN, of_seed_1, "its seed is 1, and this run's is 0"),
    ],
)
def test_a_checkpoint_of_another_run_or_build_is_refused(interrupted, monkeypatch, of_session, damage, why):
    path, (name, value) = kill(interrupted, BF16), of_session
    monkeypatch.setattr(provenance, name, lambda *folder: value)
    if damage:
        damage(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"{path.name}: the run cannot go on from it: {why}.*; remove it to train"):
        trajectory(going_on(interrupted), BF16, 0)
    assert path.read_bytes() == before and not list(path.parent.glob("*.json"))


def test_without_resume_a_run_begins_again(interrupted):
    kill(interrupted, BF16)
    kill(interrupted, BF16)


def test_quantized_weights_are_not_kept_and_it_is_said(interrupted):
    of = cell("te-current-ends-bf16-fp8-weights", "emulated", "nano-deep")
    preset = interrupted.presets["nano"]
    deep = replace(preset, model=replace(preset.model, name="nano-deep", layers=3))
    interrupted.presets = {**interrupted.presets, "nano-deep": deep}
    with pytest.warns(UserWarning, match="begins again: layers.1.*weight is kept in FP8 only"):
        trajectory(interrupted, of, 0)
    assert not list(interrupted.settings.records.glob("*.checkpoint"))


def test_fresh_text_goes_on_and_is_another_for_each_seed():
    """Windows of 128 follow each other over the borders of what is made together, and a paragraph begins every 132."""
    fresh = long_runs.fresh()
    steps = 2 * long_runs.BLOCK // (32 * 128)
    batches = [fresh.batch(3, step, 32, 128) for step in range(steps)]
    inputs, targets = (torch.cat([part.flatten() for part in parts]) for parts in zip(*batches, strict=True))
    assert torch.equal(inputs[1:], targets[:-1])
    assert bool((inputs[::33] >= 64).all()) and bool((inputs.view(-1, 128)[:, 1:] >= 64).any())
    halves = inputs[: long_runs.BLOCK], inputs[long_runs.BLOCK : 2 * long_runs.BLOCK]
    assert not torch.equal(halves[0][: len(halves[1])], halves[1])
    assert not torch.equal(batches[0][0], fresh.batch(4, 0, 32, 128)[0])
    assert fresh.floor == corpus.load("topics").floor and fresh.fingerprint != corpus.load("topics").fingerprint


def test_a_long_preset_is_that_of_the_runs_on_record():
    """The hashes of the runs behind lab/docs/evidence/gap-law.csv."""
    made = long_runs.long_presets()["tiny-long"]
    assert spec_hash(made.model, made.schedule, made.corpus).startswith("0713a687a7261f80")
    assert made.model.data(made.corpus).fingerprint.startswith("079b8639554f5680")
    assert made.model.data("topics") is corpus.load("topics")
