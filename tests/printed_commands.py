"""All kinds of printed commands, and whether each is one where it is printed. It runs in a wheel's folder and in a clone."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import projects
import pytest
from fp8parity import cli, gate, shipped
from fp8parity.cli import pairs
from fp8parity.judging.verdict import Status, Verdict
from fp8parity.records.cell import TRAINER_CORPUS, Cell, Execution
from fp8parity.report.commands import COMMANDS, command, next_steps
from fp8parity.report.evidence import Evidence

TRAINER = """
[trainer.toy]
command = ["{python}", "train.py", "--seed={seed}", "--out={out}"]
recipes = { bf16 = [], mine = ["--fp8"] }
log = "{out}/log.jsonl"
steps = 60
"""
EMULATED, NATIVE = Execution.EMULATED, Execution.NATIVE
LOSS, CRASH = "loss parity", "suites/numerics/test_layers"
KINDS: dict[str, tuple[str, Status, Cell, list[str]]] = {
    "loss": (LOSS, "fail", Cell(model="micro", recipe="te-current", execution=EMULATED), []),
    "BF16": (LOSS, "drift", Cell(model="micro", recipe="bf16", execution=NATIVE), []),
    "gradients": ("gradients", "fail", Cell(model="tiny", recipe="te-current", execution=EMULATED), []),
    "step": ("throughput", "fail", Cell(model="1b", recipe="te-current", execution=NATIVE), []),
    "block": ("block throughput", "fail", Cell(model="llama3-8b", recipe="te-current", execution=NATIVE), []),
    "GEMMs": ("GEMM throughput", "fail", Cell(model="llama3-8b", recipe="te-current", execution=NATIVE), []),
    "ranks": ("sharded", "fail", Cell(model="micro", recipe="te-current", execution=EMULATED, ranks=2), []),
    "crash": (CRASH, "error", Cell(model="tiny", recipe="te-current", execution=EMULATED), []),
    "no golden": (LOSS, "no-golden", Cell(model="mini", recipe="te-current", execution=EMULATED), []),
    "own model": (LOSS, "fail", Cell(model="pair", recipe="te-current", execution=EMULATED), ["--parity-model-factory", "own_models:small"]),
    "own trainer": (LOSS, "fail", Cell(model="toy", recipe="mine", execution=NATIVE, corpus=TRAINER_CORPUS), ["--parity-trainers", "trainers.toml"]),
    "golden of a trainer": (
        "golden", "error", Cell(model="toy", recipe="bf16", execution=NATIVE, corpus=TRAINER_CORPUS),
        ["--parity-trainers", "trainers.toml", "--parity-golden-update", "--parity-golden-dir", "goldens"],
    ),
}  # fmt: skip
"""Kind -> check, status and cell of a verdict, and the options of its session."""


def project(folder: Path, *, clone: bool) -> None:
    """Make a folder of a user with a trainer and a commit. A clone has the suites, too."""
    (folder / "trainers.toml").write_text(TRAINER)
    (folder / "train.py").touch()
    projects.complete(folder)
    if not clone:
        (folder / "suites").unlink()
        (folder / "pytest.ini").unlink()
        projects.commit(folder)


def printed() -> Iterator[tuple[str, str]]:
    """Yield each kind with a command as it is printed."""
    for kind, (check, status, cell, options) in KINDS.items():
        verdict = Verdict(cell=cell, check=check, status=status, headline="")
        evidence = Evidence(options=options)
        for name, text in next_steps(verdict, evidence).items():
            if name in COMMANDS:
                yield f"{kind}: {name}", text
    verdict = Verdict(cell=Cell(model="pico", recipe="x", execution=EMULATED), check=LOSS, status="fail", headline="")
    yield "demo", command([verdict], Evidence(command=shipped.command("demo")))
    yield "after demo", shipped.run_command(["suites/convergence"], ["-n", "2"])
    yield "verdict", pairs._command(cli.parser().parse_args(["verdict", "a b", "c"]))


class Collected:
    """Counts the tests that a session selected."""

    count = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.count = len(session.items)


def selected(text: str) -> int:
    """Return the number of tests that a command selects; 1 for another command that its parser takes, otherwise 0."""
    program, *words = shlex.split(text)
    if program == "fp8parity" and words[0] != "run":
        if words[0] in cli.known():  # a command of the lab may be missing: it says then how to get it
            cli.parser().parse_args(words)
        else:
            assert words[0] in cli.LAB
        return 1
    arguments = gate.arguments(words[1:], Path.cwd()) if program == "fp8parity" else words
    found = Collected()
    pytest.main([*arguments, "--collect-only", "-q", "-p", "no:cacheprovider", "-n", "0"], plugins=[found])
    return found.count


if __name__ == "__main__":
    answers = {}
    for kind, text in printed():
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            try:
                count = selected(text)
            except SystemExit:
                count = 0
        answers[kind] = [text, count, "" if count else out.getvalue()]
    print(json.dumps(answers))
