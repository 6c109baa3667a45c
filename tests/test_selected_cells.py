"""Which cells each parameter has, and which of them the options, the markers and this machine leave to a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fp8parity.gate import selection
from fp8parity.recipes import registry
from fp8parity.records.cell import Cell
from fp8parity.training.hardware import Hardware
from fp8parity.workload.own import OwnModel
from fp8parity.workload.presets import presets
from fp8parity.workload.schedule import Schedule
from sessions import cell

SCHEDULE = Schedule(steps=12, rows=8, length=64, lr=2e-3, warmup=3, tail=4, validation_every=6, validation_rows=8)
MINE: Any = OwnModel("mine", lambda seed: None, lambda module: None, lambda seed, step: [], SCHEDULE)  # type: ignore[arg-type, return-value]  # nobody trains it
MODELS = {name: presets()[name] for name in ("tiny", "tiny-moe")} | {"mine": MINE}
KNOWN = ["mine", "tiny", "tiny-moe"]
WHOLE = "one block is timed, and te-current-ends-bf16 is about places of a whole model"
CPU, H100 = Hardware("cpu", "cpu", None), Hardware("h100", "cuda", (9, 0))
ENDS = "te-current-ends-bf16"
"""A recipe that keeps the first and the last block in BF16: of micro, which has two, it leaves nothing."""
EMPTY = f"its rules leave nothing of micro to quantize: {'; '.join(map(str, registry.RECIPES[ENDS].rules))} in BF16"


TESTS = {"timed_cell": "training_step", "block_cell": "block", "gemm_cell": "gemms"}
"""The tests that time a golden, by their parameter."""


def item(*markers: str, parameter: str = "cell", **params: Cell | int) -> Any:
    marks = {name: getattr(pytest.mark, name) for name in markers}
    test, path = f"test_{TESTS.get(parameter, 'loss_parity')}[x]", Path("/project/suites/throughput/test_x.py")
    return SimpleNamespace(
        nodeid=test, path=path, get_closest_marker=marks.get, callspec=SimpleNamespace(params=params)
    )


@pytest.mark.parametrize(
    ("parameter", "models", "ranks", "fused", "defaults"),
    [
        ("cell", KNOWN, [1], ["tiny"], ("tiny",)),
        ("trained_cell", KNOWN, [1], ["tiny"], ("micro",)),
        ("recipe_cell", ["tiny"], [1], [], None),
        ("expert_cell", ["tiny-moe"], [1], [], ()),
        ("timed_cell", ["1b", "base", "small"], [1], ["1b", "base", "small"], ("small", "base", "1b")),
        ("block_cell", ["llama3-405b", "llama3-70b", "llama3-8b"], [1], ["llama3-405b", "llama3-70b", "llama3-8b"],
         ("llama3-8b", "llama3-70b", "llama3-405b")),
        ("gemm_cell", ["1b", "base", "codonfm-5b", "llama3-405b", "llama3-70b", "llama3-8b", "small"], [1], [], ("llama3-8b",)),
        ("ranked_cell", KNOWN, [2, 4, 8], [], ("micro",)),
        ("odd_cell", KNOWN, [3], [], ("micro",)),
        ("split_cell", KNOWN, [2, 4], [], ("tiny",)),
        ("scaled_cell", KNOWN, [1, 2, 4, 8], [], ("1b", "7b-8-layers")),
    ],
)  # fmt: skip
def test_parameter_has_its_models_and_ranks(parameter, models, ranks, fused, defaults):
    made = selection.PARAMETERS[parameter].cells(MODELS)
    assert sorted({c.model for c in made}) == models
    assert sorted({c.ranks for c in made}) == ranks
    assert sorted({c.model for c in made if c.execution == "fused"}) == fused
    assert selection.PARAMETERS[parameter].models == defaults


def cases(*arguments: str, models: tuple[str, ...] = ("tiny-moe",), parameter: str = "expert_cell") -> dict[str, Any]:
    """The cases of two tests that take a cell, by their ids. The options select these ``models``."""
    made: list[tuple[str, Any]] = []
    config = SimpleNamespace(args=arguments)
    context: Any = SimpleNamespace(selects=lambda c, defaults, control: c.model in models)
    for _ in range(2):
        metafunc: Any = SimpleNamespace(
            definition=item(),
            fixturenames=["parity", parameter],
            config=config,
            parametrize=lambda name, cases: made.append((name, cases)),
        )
        selection.parametrize(metafunc, selection.suite_cells(MODELS), context)
    (name, first), again = made
    assert again == (name, first) and name == parameter
    return {case.id: case for case in first}


def test_cases_have_markers_of_their_platforms():
    found = cases()
    assert list(found) == [c.id for c in selection.expert_cells(MODELS)]
    block = {name: [m.name for m in found[f"te-block-tiny-moe-{name}"].marks] for name in ("native", "emulated")}
    assert block == {"native": ["h100"], "emulated": ["cpu", "b200"]}
    assert found["te-block-tiny-moe-native"].values == (cell("te-block", "native", "tiny-moe"),)


BF16, NATIVE, EMULATED, MINI = (
    cell("bf16", "native"),
    cell("te-block", "native"),
    cell("te-block"),
    cell("bf16", "native", "mini"),
)
TIMED = cell("te-block", "native", "small")
OTHER = BF16.on("other")
"""A cell that the options select only as the control of another one."""


@pytest.mark.parametrize(
    ("parameter", "of", "markers", "updating", "kept"),
    [
        ("cell", BF16, [], False, True),
        ("cell", EMULATED, ["golden", "vendor"], False, True),
        ("cell", MINI, [], False, False),
        ("recipe_cell", MINI, [], False, True),
        ("cell", BF16, ["quantized"], False, False),
        ("cell", EMULATED, ["quantized"], False, True),
        ("cell", BF16, ["kernels"], False, True),
        ("cell", NATIVE, ["kernels"], False, True),
        ("cell", EMULATED, ["quantized", "kernels"], False, False),
        ("cell", BF16, ["golden"], True, True),
        ("cell", BF16, [], True, False),
        ("cell", NATIVE, ["golden"], True, False),
        ("timed_cell", TIMED, ["golden"], True, True),
        ("block_cell", TIMED.model_copy(update={"model": "llama3-8b"}), ["golden"], True, True),
        ("gemm_cell", TIMED.model_copy(update={"model": "llama3-8b"}), ["golden"], True, True),
        ("timed_cell", TIMED, [], True, False),
        ("timed_cell", TIMED, ["quantized"], True, False),
        ("cell", OTHER, [], False, False),
        ("cell", OTHER, ["control"], False, True),
        ("cell", OTHER, ["control", "golden"], True, False),
    ],
)
def test_options_and_markers_keep_a_cell(parameter, of, markers, updating, kept):
    """A golden is of BF16 or of time, so an update keeps nothing else."""

    def selects(of, models, control):
        return (models is None or of.model in models) and (of.corpus != "other" or control)

    context: Any = SimpleNamespace(updating=updating, selects=selects)
    assert selection.wanted(item(*markers, parameter=parameter), parameter, of, context) is kept


@pytest.fixture
def packages(monkeypatch):
    """Every vendor's package is there, and new enough."""
    monkeypatch.setattr(registry, "installed", lambda package: True)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "99")


@pytest.mark.parametrize(
    ("parameter", "of", "here", "reason"),
    [
        ("cell", cell("te-current"), CPU, None),
        ("cell", cell(ENDS, "native", "micro"), CPU, "needs a GPU of sm_90; this machine has none"),
        ("cell", cell("te-current", "native"), H100, None),
        ("timed_cell", cell("te-current"), CPU, "CPU time is never gated"),
        ("timed_cell", cell("te-current", "native"), H100, None),
        ("cell", cell(ENDS, model="micro"), CPU, EMPTY),
        ("cell", cell(ENDS), CPU, None),
        ("recipe_cell", cell(ENDS, model="micro"), CPU, None),
        ("cell", cell(ENDS, model="mine"), CPU, None),
        ("gemm_cell", cell(ENDS, "native", "llama3-8b"), H100, None),
        ("block_cell", cell(ENDS, "native", "llama3-8b"), H100, WHOLE),
        ("block_cell", cell("te-current", "native", "llama3-8b"), H100, None),
    ],
)
@pytest.mark.usefixtures("packages")
def test_cell_that_cannot_run_has_a_reason(parameter, of, here, reason):
    context: Any = SimpleNamespace(hardware=here, execution=None, models=presets() | {"mine": MINE})
    made = item("golden", parameter=parameter)
    assert selection.item_skip_reason(made, parameter, of, context) == reason


NODE = "suites/numerics/test_device.py::test_large"


@pytest.mark.parametrize(
    ("test", "argument", "keyword", "checks"),
    [
        (NODE, "suites/numerics", "te-block and not large", ["large"]),
        (NODE, "suites/numerics", "Large or codes", []),
        (NODE, "suites/numerics/test_device.py", "", []),
        (NODE, f"{NODE}[te-block-native]", "", []),
        (NODE, "suites/numerics/test_device.py::test_modes", "", ["large"]),
        (NODE, "suites/numerics/test_experts.py", "", ["large"]),
        ("suites/numerics/test_numerics.py::test_twins", "suites", "", ["twins"]),
        ("suites/distributed/test_sharded.py::test_checkpoint", "suites", "", []),
        ("suites/numerics/test_numerics.py::test_canary", "suites", "", []),
        ("mine/test_mine.py::test_large", "mine", "", []),
    ],
)
def test_check_of_a_release_runs_if_it_is_named(test, argument, keyword, checks):
    here = Path("/project")
    option, params = SimpleNamespace(keyword=keyword), SimpleNamespace(dir=here)
    config = SimpleNamespace(args=[argument], option=option, invocation_params=params)
    made: Any = SimpleNamespace(nodeid=f"{test}[te-block-native]", path=here / test.partition("::")[0], config=config)
    assert selection.release_checks(made) == checks


HERE = "its native kernels run here (use --execution emulated to run the emulation)"


@pytest.mark.parametrize(
    ("here", "requested", "of", "reason"),
    [
        (CPU, None, EMULATED, None),
        (H100, None, NATIVE, None),
        (H100, None, EMULATED, HERE),
        (H100, None, cell("te-mxfp8"), None),
        (H100, None, cell("te-current-wgrad-bf16"), None),
        (H100, "native", EMULATED, "--execution native was asked for"),
        (H100, "emulated", EMULATED, None),
        (H100, "emulated", NATIVE, "--execution emulated was asked for"),
        (H100, "emulated", BF16, None),
        (CPU, "emulated", NATIVE, "needs a GPU of sm_90; this machine has none"),
        (replace(CPU, requested="cpu"), None, EMULATED, None),
        (replace(CPU, requested="b200"), None, BF16, "-m b200 asks for an sm_100 GPU; this machine is cpu (no GPU)"),
        (replace(H100, requested="cpu"), None, BF16, "-m cpu asks for a CPU; this machine is h100 (sm_90)"),
    ],
)
@pytest.mark.usefixtures("packages")
def test_asked_platform_and_execution_skip_others(here, requested, of, reason):
    assert selection.cell_skip_reason(of, here, requested) == reason
