"""How a session with pytest-xdist starts and orders its tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fp8parity.gate.schedule import Schedule
from fp8parity.gate.tally import function_of
from fp8parity.planning import cost
from fp8parity.planning.balance import Work
from fp8parity.planning.seconds import Key, Seconds
from processes import FIXTURES, ROOT, run

PROBE = """
import os
import sys
import pytest
from fp8parity.gate import context

@pytest.hookimpl(tryfirst=True)
def pytest_configure():
    def noted(capability):
        with open("seen.txt", "a") as out:
            out.write(os.environ.get("PYTEST_XDIST_WORKER", "main") + "\\n")

    context.preload = noted


@pytest.hookimpl(trylast=True)
def pytest_sessionstart():
    with open("compiler.txt", "a") as out:
        out.write(f"{'torch._dynamo' in sys.modules}\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "processes"), [(("-n", "1"), ["gw0"]), ((), ["main"])], ids=["workers", "one process"]
)
def test_only_processes_that_run_tests_import_the_vendors(tmp_path: Path, more, processes):
    """The main process of pytest-xdist starts its workers without them. No process imports torch's compiler before it needs it: 1.8 s."""
    (tmp_path / "probe.py").write_text(PROBE)
    without = [part for name in ("randomly", "cacheprovider", "hypothesispytest") for part in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-p", "probe", "-p", "fp8parity.gate.plugin", *without]
    chosen = ["--recipe", "te-current", "-k", "codes and te-current-emulated"]
    gate = ["--import-mode=importlib", "--rootdir=.", str(ROOT / "suites/numerics"), *chosen, *more, "-q"]
    outside = {
        name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"
    }  # set if this test runs in a worker
    environment = {**outside, "PYTHONPATH": os.pathsep.join([FIXTURES, str(tmp_path)])}
    done = subprocess.run([*command, *gate], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "seen.txt").read_text().split() == processes
    assert set((tmp_path / "compiler.txt").read_text().split()) == {"False"}


def test_controls_come_first_and_what_needs_most_of_the_memory_late(monkeypatch):
    """Seen on an H100: three recipes of small waited 45 s for their control, and eight workers behind a check that waited for memory."""
    table = Seconds(
        {
            Key(test, "tiny", "x", "native"): s
            for test, s in (("test_large", 9.5), ("test_autotune", 9.0), ("test_codes", 2.5))
        }
    )
    names = [
        ("test_large", "x"),
        ("test_codes", "x"),
        (cost.TRAINED, "x"),
        ("test_autotune", "x"),
        (cost.TRAINED, "bf16"),
    ]
    items: list[Any] = [
        SimpleNamespace(nodeid=f"a.py::{test}[{r}]", get_closest_marker=lambda marker: None) for test, r in names
    ]

    def work(item: Any) -> Work:
        test, recipe = function_of(item.nodeid), item.nodeid.partition("[")[2][:-1]
        return cost.work(item.nodeid, Key(test, "tiny", recipe, "native"), 2 * (test == cost.TRAINED), table)

    order = Schedule(Any)  # type: ignore[arg-type]  # the order of tests needs no context
    monkeypatch.setattr(order, "_work", work)
    assert [item.nodeid[6:] for item in order._ordered(items)] == [
        "test_loss_parity[bf16]", "test_loss_parity[x]", "test_autotune[x]", "test_codes[x]", "test_large[x]",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_longest_tests_run_first_under_xdist(tmp_path: Path):
    """One worker: the order is that of the recorded seconds. A skipped test is second, so that no test waits behind a long one."""
    (tmp_path / "golden/seconds/cpu").mkdir(parents=True)
    (tmp_path / "golden/policy.toml").write_text("")
    rows = [("test_codes", 5), ("test_gemm_sqnr", 50), ("test_accumulation", 30)]
    text = "".join(f"{test},tiny,te-current,emulated,1,test,{seconds},0\n" for test, seconds in rows)
    (tmp_path / "golden/seconds/cpu/x.csv").write_text("test,model,recipe,execution,ranks,per,alone,device\n" + text)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("fp8parity.gate.plugin",)\n' + STUB)
    (tmp_path / "suites").symlink_to(ROOT / "suites")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    chosen = "codes or gemm or accumulation"
    done = run(
        "pytest",
        "suites/numerics",
        "--recipe",
        "te-current",
        "--execution",
        "emulated",
        "-n",
        "1",
        "-k",
        chosen,
        cwd=tmp_path,
    )
    assert (tmp_path / "order.txt").read_text().split() == ["gemm", "accumulation", "codes"], done.stdout


STUB = """
from fp8parity.runner import Runner

def measure(self, check, cell, variant=None):
    with open("order.txt", "a") as out:
        out.write(check + "\\n")
    raise ValueError("not measured")

Runner.measure = measure
"""
