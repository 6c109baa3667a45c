"""Bisect packages and releases: the search alone, and the command on a local index."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import zipfile
from pathlib import Path

import pytest
from fp8parity_lab.bisection import trials
from fp8parity_lab.bisection.search import GateOutcome, Trial, bisect, first_red, read_pins
from processes import run
from projects import commit

GREEN, RED, UNKNOWN = GateOutcome
RELEASES = {"a": ["1.1", "1.2", "1.3"], "b": ["4.5"]}


def gate_of(red, unknown=lambda pins: False):
    seen = []

    def gate(pins):
        seen.append(dict(pins))
        return Trial((), UNKNOWN if unknown(pins) else RED if red(pins) else GREEN, "")

    return gate, seen


def search(old, new, red, unknown=lambda pins: False):
    gate, seen = gate_of(red, unknown)
    found = bisect(old, new, gate, lambda name, low, high: RELEASES[name])
    return found.before, found.after, seen


OLD, NEW = {"a": "a==1.0", "b": "b==4.0"}, {"a": "a==1.4", "b": "b==5.0"}


@pytest.mark.parametrize("first", ["1.1", "1.3", "1.4"])
def test_release_of_one_package_is_found(first):
    before, after, _ = search(OLD, NEW, lambda pins: pins["a"] >= f"a=={first}")
    order = ["1.0", *RELEASES["a"], "1.4"]
    assert (before, after) == ((f"a=={order[order.index(first) - 1]}",), (f"a=={first}",))


def test_release_that_cannot_be_judged_is_skipped():
    before, after, _ = search(OLD, NEW, lambda pins: pins["a"] > "a==1.1", lambda pins: pins["a"] == "a==1.2")
    assert (before, after) == (("a==1.1",), ("a==1.3",))


def test_packages_that_fail_together_or_are_new_are_found():
    before, after, _ = search(OLD, NEW, lambda pins: pins["a"] == "a==1.4" and pins["b"] == "b==5.0")
    assert (before, after) == (("b==4.5",), ("b==5.0",))
    before, after, _ = search({"a": "a==1.0"}, {"a": "a==1.0", "b": "b==5.0"}, lambda pins: "b" in pins)
    assert (before, after) == (("no b",), ("b==5.0",))


@pytest.mark.parametrize(
    ("red", "unknown", "words"),
    [
        (lambda pins: True, lambda pins: False, "OLD is not green"),
        (lambda pins: False, lambda pins: False, "NEW is not red"),
        (lambda pins: True, lambda pins: pins == OLD, "OLD is not green (cannot say)"),
    ],
)
def test_ends_that_are_not_green_and_red_are_refused(red, unknown, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is tested
        search(OLD, NEW, red, unknown)
    assert words in str(caught.value)


def test_first_red_tests_few_places_and_skips_unknown_ones():
    tried = []

    def test(place):
        tried.append(place)
        return UNKNOWN if place in (7, 8) else RED if place >= 9 else GREEN

    assert first_red(16, test) == (6, 9)
    assert len(tried) <= 7


def test_pins_are_read_from_a_lock_file():
    text = "# made by uv\n--index-url x\nTorch==2.13.0 \\\n    --hash=sha256:0\nb @ file:///b.whl  # local\nc==1; sys_platform == 'none'\n"
    assert read_pins(text, "lock") == {"torch": "torch==2.13.0", "b": "b @ file:///b.whl"}
    for wrong, words in {"torch>=2\n": "is not pinned", "==\n": "is no requirement", "\n": "pins no package"}.items():
        with pytest.raises(ValueError, match=words):
            read_pins(wrong, "lock")


def test_phase_is_said_at_once_and_while_it_lasts(monkeypatch):
    said, waited = list[str](), threading.Event()
    monkeypatch.setattr(trials, "BEAT_SECONDS", 0.01)

    def say(text):
        said.append(text)
        if "so far" in text:
            waited.set()

    with trials.timed("install", say):
        assert said[0] == "  install ..." and waited.wait(10)
    count = len(said)
    time.sleep(0.05)
    assert len(said) == count, "it ended with its phase"


SCRIPT = """
import argparse, json, math, random, pathlib, stepper
p = argparse.ArgumentParser()
p.add_argument("--seed"); p.add_argument("--fp8", action="store_true"); p.add_argument("--out", type=pathlib.Path)
a = p.parse_args()
draw, noise = random.Random(a.seed), random.Random(a.seed + "fp8")
with open(a.out / "log.jsonl", "w") as log:
    for step in range(60):
        loss = 2 + 2 * math.exp(-step / 10) + 0.05 * draw.random()
        loss *= 1 + a.fp8 * (stepper.GAP + 1e-4 * noise.random())
        log.write(json.dumps({"step": step, "loss": loss}) + "\\n")
"""
TRAINER = """
[trainer.toy]
command = ["{python}", "train.py", "--seed={seed}", "--out={out}"]
recipes = { bf16 = [], fp8 = ["--fp8"] }
log = "{out}/log.jsonl"
steps = 60
"""


def publish(index: Path, name: str, versions: dict[str, float]) -> None:
    """Write wheels of a module with one number into a local index."""
    folder = index / name
    folder.mkdir(parents=True)
    for version, gap in versions.items():
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", f"GAP = {gap}\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    links = "".join(f'<a href="{path.name}">{path.name}</a>' for path in sorted(folder.glob("*.whl")))
    (folder / "index.html").write_text(links)


@pytest.mark.slow
def test_release_with_a_planted_fault_is_found_by_the_command(tmp_path, monkeypatch):
    publish(tmp_path / "index", "stepper", {"1.0": 0, "1.1": 0, "1.2": 0.02, "1.3": 0.02})
    publish(tmp_path / "index", "idle", {"1.0": 0, "2.0": 1})
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    (project / "trainers.toml").write_text(TRAINER)
    (project / ".gitignore").write_text(".parity/\ngolden/\n")
    (project / "old.txt").write_text("stepper==1.0\nidle==1.0\n")
    (project / "new.txt").write_text("stepper==1.3\nidle==2.0\n")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    commit(project)
    variables = {"PIP_INDEX_URL": f"file://{tmp_path / 'index'}", "PIP_NO_CACHE_DIR": "1"}
    python = trials.environment(
        tmp_path / "first", {"stepper": f"stepper @ file://{tmp_path}/index/stepper/stepper-1.0-py3-none-any.whl"}
    )
    gate = ["convergence", "--trainers", "trainers.toml"]
    done = run("fp8parity", "run", *gate, "--golden-update", cwd=project, FP8PARITY_PYTHON=str(python))
    assert done.returncode == 0, done.stdout
    words = ["bisect", "old.txt", "new.txt", "--json", "found.json", "--gate", " ".join(gate)]
    done = run("fp8parity", *words, cwd=project, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stepper==1.1 -> stepper==1.2 turns the gate red." in done.stdout
    trial = r"trial 1: OLD\n  install 2 packages \.\.\.\n(.*\n)*  install 2 packages: \d+ s\n  run the gate \.\.\.\n(.*\n)*  judge: green"
    assert re.search(trial, done.stdout)
    found = json.loads((project / "found.json").read_text())
    assert found["red"]["outcome"] == "red" and "fp8 on toy +2.0" in found["red"]["sentence"]
    again = run("fp8parity", *words, cwd=project, **variables)
    assert "trial 1" not in again.stdout and "stepper==1.1 -> stepper==1.2" in again.stdout
