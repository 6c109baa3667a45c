"""A gate with given verdicts: suites/convergence of three emulated recipes. Nothing is trained."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path

import processes
from processes import FIXTURES, ROOT, Done

CONFTEST = """
import os

import pytest
import reports
from fp8parity.gate import manifest
from fp8parity.judging import loss
from fp8parity.judging.verdict import Gap, LossDetail, Verdict
from fp8parity.records.storage import name_of, write_json
from fp8parity.runner import Runner

pytest_plugins = ("fp8parity.gate.plugin",)
STATUS = {status}
PATCH = pytest.MonkeyPatch()

def trajectory(self, cell, seed):
    match STATUS.get(cell.recipe):
        case "crash":
            raise ModuleNotFoundError("No module named 'gone'")
        case "die":
            os._exit(9)
        case "interrupt":
            raise KeyboardInterrupt
    made = reports.run(cell.model, cell.recipe, seed, 16, cell=cell)
    write_json(self.settings.records / name_of(made), made)
    return made

def judge(candidates, controls, golden, policy, numbers):
    cell = candidates[0].cell
    gap = Gap(mean=0.0081, low=0.0066, high=0.0097, n=3, text="+0.81% [+0.66%, +0.97%]")
    detail = LossDetail(margin=0.005, seeds=[0, 1, 2], gap=gap)
    return Verdict(cell=cell, check="loss parity", status=STATUS.get(cell.recipe, "pass"), headline="50% off: a, b", detail=detail)

PATCH.setattr(Runner, "trajectory", trajectory)
PATCH.setattr(loss, "judge", judge)
PATCH.setattr(manifest, "refuse_unjudged", lambda context, trained: None)

def pytest_unconfigure(config):
    PATCH.undo()

def pytest_collection_modifyitems(items):
    items.reverse()
"""
RECIPES = ("te-current", "te-block", "te-mxfp8")


def of(folder: Path) -> Callable[..., Done]:
    """A function that runs the gate with more arguments. Its keywords are the status of each recipe, or how its test ends. ``more`` is code
    for the end of conftest.py, ``known`` the known failures."""

    def run(
        *arguments: str,
        known: str = "",
        more: str = "",
        recipes: Sequence[str] = RECIPES,
        execution: str = "emulated",
        environment: dict[str, str] | None = None,
        **status: str,
    ) -> Done:
        code = CONFTEST.format(status={k.replace("_", "-"): v for k, v in status.items()})
        (folder / "conftest.py").write_text(code + more)
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
        if not (folder / "suites").exists():
            (folder / "suites").symlink_to(ROOT / "suites")
        (folder / "golden").mkdir(exist_ok=True)
        (folder / "golden" / "policy.toml").write_text('[[loss]]\nmargin = 0.005\nwhy = "a made-up row"\n')
        (folder / "golden" / "known_failures.toml").write_text(known)
        chosen = [part for name in recipes for part in ("--recipe", name)]
        terms = ("suites/convergence", *chosen, "--execution", execution, "--model", "tiny", *arguments)
        return processes.run("pytest", *terms, cwd=folder, path=(FIXTURES, str(ROOT / "tests")), **(environment or {}))

    return run


def properties(path: Path) -> dict[str, dict[str, str]]:
    return {
        case.attrib["name"]: {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
        for case in ElementTree.parse(path).getroot().iter("testcase")
        if case.find("properties") is not None
    }
