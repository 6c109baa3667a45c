"""What a gate runs without options, and what it refuses before any training."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import projects
import pytest
from fp8parity import gate as gate_room
from fp8parity import shipped
from fp8parity.gate import options, selection, workers
from fp8parity.gate.context import PluginContext
from fp8parity.records.cell import Cell, Execution
from fp8parity.training.hardware import Hardware
from fp8parity.workload import shapes
from fp8parity.workload.presets import presets
from fp8parity.workload.schedule import BY_NAME
from processes import run

GPU, CPU, A100 = Hardware("h100", "cuda:0", (9, 0)), Hardware("cpu", "cpu", None), Hardware("sm_80", "cuda:0", (8, 0))


def context(hardware: Hardware = GPU, **given: object) -> PluginContext:
    blank = dict.fromkeys(PluginContext.__dataclass_fields__)
    lists = {"model_globs": [], "recipes": [], "corpora": [], "options": [], "models": presets()}
    made = PluginContext(**{**blank, **lists, "updating": False, **given})  # type: ignore[arg-type]
    vars(made)["hardware"] = hardware
    return made


def trained(made: PluginContext) -> dict[Execution, set[str]]:
    """The models that the options select, by the execution of a recipe's cells."""
    found: dict[Execution, set[str]] = {}
    for cell in selection.PARAMETERS["trained_cell"].cells(made.models):
        if not cell.is_control and made.selects(cell, selection.default_models("trained_cell", cell, made)):
            found.setdefault(cell.execution, set()).add(cell.model)
    return found


SIZES = {"tiny", "mini", "small", "base", "1b"}
NATIVE, FUSED, EMULATED = Execution.NATIVE, Execution.FUSED, Execution.EMULATED


@pytest.mark.parametrize(
    ("given", "models"),
    [
        ({}, {NATIVE: SIZES, FUSED: SIZES}),
        ({"hardware": CPU, "requested": "h100"}, {NATIVE: SIZES, FUSED: SIZES}),
        ({"recipes": ["te-current"]}, {NATIVE: SIZES, FUSED: SIZES, EMULATED: {"micro"}}),
        ({"recipes": ["ao-mxfp8"]}, {NATIVE: SIZES, EMULATED: {"micro"}}),
        ({"model_globs": ["mini"]}, {"mini"}),
        ({"hardware": CPU}, {"micro"}),
        ({"hardware": A100}, {"micro"}),
        ({"requested": "cpu"}, {"micro"}),
        ({"corpora": ["text:a"]}, {"micro"}),
        ({"updating": True}, {"micro"}),
        ({"execution": EMULATED}, {"micro"}),
    ],
)
def test_default_models_of_convergence(given, models):
    """A set is the models of each execution."""
    expected = models if isinstance(models, dict) else dict.fromkeys((NATIVE, FUSED, EMULATED), models)
    assert trained(context(**given)) == expected


def test_star_selects_no_shape_that_is_only_timed():
    made = context(model_globs=["*"])
    timed = set(shapes.known()) - presets().keys() | {"7b-8-layers"}

    def names(parameter: str) -> set[str]:
        cells = selection.PARAMETERS[parameter].cells(made.models)
        return {c.model for c in cells if made.selects(c, selection.default_models(parameter, c, made))}

    assert names("trained_cell") == presets().keys() - {"7b-8-layers", *BY_NAME}
    trained = {c.model for c in selection.PARAMETERS["trained_cell"].cells(presets())}
    assert trained == presets().keys() - {"7b-8-layers"}
    assert names("gemm_cell") & timed == {shapes.GATED_GEMMS}
    assert context(model_globs=["llama3-70b"]).selects(Cell(model="llama3-70b", recipe="bf16", execution=NATIVE), ())


@pytest.mark.parametrize(
    ("arguments", "given", "count"),
    [
        (["suites/convergence"], {}, 8),
        (["suites/convergence", "-m", "cpu"], {"markexpr": "cpu"}, 0),
        (["suites/convergence"], {"numprocesses": 0}, 0),
        (["suites/convergence"], {"keyword": "te-block"}, 8),
        (["suites/convergence/test_loss_parity.py::test_loss_parity[te-block-tiny-native]"], {}, 0),
        (["suites/convergence"], {"usepdb": True}, 0),
        (["tests"], {}, 0),
    ],
    ids=str,
)
def test_gate_on_a_gpu_may_use_all_cores(monkeypatch, arguments, given, count):
    monkeypatch.setattr("fp8parity.training.hardware.detect", lambda asked: CPU if asked == "cpu" else GPU)
    monkeypatch.setattr(Hardware, "gpu_count", property(lambda self: int(self.capability is not None)))
    monkeypatch.setattr(workers, "cores", lambda: 8)
    monkeypatch.delenv(workers.WORKER, raising=False)
    monkeypatch.setattr(options, "value", lambda config, name: getattr(config.option, f"parity_{name}"))
    free: dict[str, object] = {"numprocesses": None, "dist": "no", "tx": [], "usepdb": False, "collectonly": False}
    option = Namespace(**{**free, "keyword": "", "parity_model": [], "markexpr": "", **given})
    invocation = SimpleNamespace(args=arguments, dir=projects.ROOT)
    config = SimpleNamespace(option=option, invocation_params=invocation, args=arguments)
    config.getoption = lambda name: option.markexpr
    assert workers.chosen(config) == count  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return projects.make(tmp_path_factory.mktemp("project"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            (),
            "no golden of nano on topics, so nothing could be judged; record it: pytest suites/convergence --model nano",
        ),
        (("--corpus", "text:nope.txt"), "corpus text:nope.txt: no such file"),
        (
            ("--require", "te-curent-*"),
            "--require te-curent-* matches no selected cell: did you mean te-current",
        ),
        (("--require", "te-block-*"), "--require te-block-* matches no selected cell"),
    ],
    ids=str,
)
def test_what_cannot_be_judged_is_refused_before_training(project, arguments, says):
    done = projects.start(project, "--recipe", "te-current", *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert says in " ".join((done.stdout + done.stderr).split())
    assert not list(project.glob(".parity/*seed*"))


@pytest.mark.slow
def test_seeds_beyond_the_golden_are_refused_with_the_command(tmp_path):
    done = run(
        "pytest", "suites/convergence", "--recipe", "te-current", "--seeds", "99", "--parity-records", str(tmp_path)
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "record it: pytest suites/convergence --model micro --corpus topics --seeds 99 --golden-update" in said


@pytest.mark.slow
def test_run_reads_the_settings_and_the_conftest_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "conftest", raising=False)  # this process has one; a user's has not
    (tmp_path / "pytest.ini").write_text("[pytest]\nfp8parity_require = te-*-native\n")
    (tmp_path / "conftest.py").write_text("def pytest_report_header(config): return 'MINE'\n")
    asked = ("numerics", "-k", "codes", "--recipe", "ao-tensorwise", "--execution", "emulated")
    done = run("fp8parity", "run", *asked, cwd=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "--require te-*-native matches no selected cell" in done.stdout + done.stderr
    monkeypatch.delitem(sys.modules, "conftest", raising=False)
    done = run("fp8parity", "run", *asked, "--require", "ao-tensorwise-*", cwd=tmp_path)
    assert "MINE" in done.stdout and (tmp_path / ".parity").is_dir()


@pytest.mark.slow
def test_run_in_a_folder_without_settings_reads_its_conftest(tmp_path):
    """And not the settings and the conftest of a clone that the suites are in."""
    (tmp_path / "conftest.py").write_text("def pytest_report_header(config): return 'MINE'\n")
    done = run("fp8parity", "run", "numerics", "-k", "codes", "--recipe", "ao-tensorwise", "--co", cwd=tmp_path)
    assert "MINE" in done.stdout and "pyproject.toml" not in done.stdout, done.stdout


@pytest.mark.slow
def test_settings_do_not_break_other_runs_of_a_strict_project(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-config\nfp8parity_require_numbers = true\n")
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    done = run("pytest", "-p", "fp8parity.gate.entry", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_table_of_version_0_2_is_refused(project, tmp_path):
    """A project that required cells there must not get a green gate without them."""
    shutil.copytree(project, tmp_path, dirs_exist_ok=True, symlinks=True)
    (tmp_path / "pyproject.toml").write_text("[tool.fp8parity]\nrequire = 'te-*-native'\n")
    done = run("fp8parity", "run", "convergence", cwd=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "require is fp8parity_require" in " ".join((done.stdout + done.stderr).split())


def test_printed_commands_run_where_they_are_printed(monkeypatch, tmp_path):
    suites = ["suites/numerics", "suites/convergence"]
    monkeypatch.chdir(shipped.folder("suites").parent)
    assert (
        shipped.run_command(suites, ["--corpus", "text:a b"])
        == "pytest suites/numerics suites/convergence --corpus 'text:a b'"
    )
    monkeypatch.chdir(tmp_path)
    assert shipped.run_command(suites, ["--recipe", "x"]) == "fp8parity run numerics convergence --recipe x"
    assert shipped.run_command([], ["--recipe", "x"]) == "pytest --recipe x"


def test_settings_file_is_that_of_the_repository(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert gate_room.ini_file(inner) is None
    (tmp_path / "a" / ".git").mkdir()
    assert gate_room.ini_file(inner) is None
    (tmp_path / "a" / "tox.ini").write_text("[tox]\n")
    assert gate_room.ini_file(inner) is None
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    assert gate_room.ini_file(inner) == tmp_path / "a" / "pyproject.toml"


@pytest.mark.parametrize(("text", "named"), [(None, True), ("", False), ('[[extends]]\ngoldens = "shipped"\n', True)])
def test_header_says_that_the_shipped_goldens_count(text, named, tmp_path):
    project = projects.complete(tmp_path)
    (project / "mine").mkdir()
    if text is not None:
        (project / "mine" / "policy.toml").write_text(text)
    done = run("pytest", "suites/convergence", "--golden-dir", "mine", "--collect-only", cwd=project)
    assert (", goldens in mine and the shipped ones" in done.stdout) == named, done.stdout


WARNS = """
import warnings

def test_own():
    for module in ("torch.jit._script", "mine"):
        warnings.warn_explicit("old", DeprecationWarning, f"{module}.py", 1, module)
"""


def test_only_deprecations_inside_torch_are_left_out(tmp_path):
    (tmp_path / "test_own.py").write_text(WARNS)
    done = run("pytest", "test_own.py", cwd=projects.complete(tmp_path))
    assert "1 passed, 1 warning" in done.stdout and "mine.py:1: DeprecationWarning" in done.stdout
