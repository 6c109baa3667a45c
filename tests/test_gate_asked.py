"""A gate is judged against what was asked for: recipes and not the control alone, the required cells, the platform."""

from __future__ import annotations

import gates
import pytest
from fp8parity.gate import context
from processes import run

pytestmark = pytest.mark.slow

WITHOUT_BLOCK = """
from fp8parity.gate import selection
there = selection.skip_reason
PATCH.setattr(selection, "skip_reason", lambda r, *rest: "needs the package x" if r.name == "te-block" else there(r, *rest))
"""


@pytest.fixture
def gate(tmp_path):
    return gates.of(tmp_path)


def test_gate_without_any_recipe_is_red(tmp_path):
    """The command of the report, on a CPU: BF16's GEMM passes, and 18 tests of recipes are skipped."""
    terms = ("suites/numerics", "-k", "gemm", "--execution", "native", "--parity-records", str(tmp_path))
    done = run("pytest", *terms, "--parity-report", str(tmp_path / "r.md"))
    assert "1 passed, 18 skipped" in done.stdout
    assert done.returncode == 1, done.stdout
    assert (
        "Refuse: the only check that ran is green, but only the BF16 control was checked and no recipe: 18 tests"
        in done.stdout
    )
    assert "**Refuse: the only check" in (tmp_path / "r.md").read_text()


def test_selected_control_alone_is_green(gate):
    done = gate("-k", "bf16", recipes=("bf16", *gates.RECIPES))
    assert done.returncode == 0, done.stdout
    assert "Accept BF16: the only check is green; no recipe was selected." in done.stdout


def test_required_cell_removed_by_k_is_red(gate):
    done = gate("-k", "te-current and emulated", "--require", "te-*-emulated")
    assert done.returncode == 1
    said = "fp8-parity: required cell {}-tiny-emulated was removed by -k, -m or a plugin"
    assert [name for name in gates.RECIPES if said.format(name) in done.stdout] == ["te-block", "te-mxfp8"]
    assert (
        "Refuse: all 2 checks that ran are green, but required cell te-block-tiny-emulated was removed" in done.stdout
    )


def test_platform_removes_only_cells_of_others(gate):
    """``-m cpu`` selects the emulated cells. It does not ask for native ones."""
    done = gate("-m", "cpu", "--require", "te-*")
    assert done.returncode == 0, done.stdout
    assert "Accept: all 4 checks are green." in done.stdout


def test_stress_without_a_numerics_check_is_red(gate):
    done = gate("-k", "te-current", "--parity-stress")
    assert done.returncode == 1
    assert "--parity-stress repeats the checks of suites/numerics, and none was judged" in done.stdout


def test_sentence_names_tests_that_cannot_run(gate):
    done = gate("-m", "cpu", more=WITHOUT_BLOCK)
    assert done.returncode == 0, done.stdout
    says = "Accept: all 3 checks are green; -m cpu --execution emulated was asked for, and 1 test of it cannot run here: te-block (1 test, "
    assert f"{says}needs the package x)." in done.stdout


@pytest.mark.parametrize(
    ("expression", "platform"),
    [("(h100) and not slow", "h100"), ("cpu and not (h100 or b200)", "cpu"), ("not (h100)", None), ("slow", None)],
)
def test_platform_of_a_marker_expression(expression, platform):
    assert context.platform_of(expression) == platform
