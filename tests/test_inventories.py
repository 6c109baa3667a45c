"""What a recipe converts: read from records, stored one fact a line, and compared with what a run converted.

tests/faults/identity.py has runs under a wrong name.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.judging import loss
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.references import inventories
from fp8parity.judging.references.inventories import Inventories, Modules, updated
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Module, Trajectory
from fp8parity.records.storage import name_of, write_json
from sessions import GOLDEN

ROW = LossRow(margin=0.005, window=4, why="made-up runs")
TE = "recipe_type=Float8BlockScaling, format=E4M3, fp8_quant_fwd_inp=Qparams(\npower_2_scale=True,\namax_epsilon=0.0\n), fp8_dpa=False"


@pytest.fixture
def run(trajectory):
    def make(*modules: tuple[str, str, str], seed: int = 0, **changes: object) -> Trajectory:
        inventory = [Module(fqn=f, kind=k, config=c) for f, k, c in modules]
        return trajectory("te-block", seed, 1e-4 * (seed + 1), inventory=inventory, **changes)

    return make


A, B = ("a", "te.Linear", TE), ("b", "te.Linear", TE)


@pytest.mark.parametrize(
    ("kind", "config", "facts"),
    [
        (
            "te.Linear",
            TE,
            {
                "kind": "te.Linear", "recipe_type": "Float8BlockScaling", "format": "E4M3",
                "fp8_quant_fwd_inp": "Qparams( power_2_scale=True, amax_epsilon=0.0 )", "fp8_dpa": "False",
            },
        ),
        ("te.TransformerLayer fc1_weight", "margin=0", {"kind": "te.TransformerLayer", "margin": "0"}),
        (
            "MXFP8Linear",
            "fprop_x: e4m3 1x32 e8m0-rceil; wgrad_x: bf16; kernels=EMULATED",
            {"kind": "MXFP8Linear", "fprop_x": "e4m3 1x32 e8m0-rceil", "wgrad_x": "bf16", "kernels": "EMULATED"},
        ),
        ("te.GroupedLinear of experts", "margin=0", {"kind of experts": "te.GroupedLinear", "margin": "0"}),
        ("b", "c", {"kind": "b", "c": ""}),
        ("b", "", {"kind": "b"}),
    ],
)  # fmt: skip
def test_a_configuration_is_read_by_key(kind, config, facts):
    assert Module(fqn="a", kind=kind, config=config).facts == facts


def test_a_run_like_the_stored_one_has_no_fault(run):
    stored, _ = updated(Inventories(), [run(A, B)])
    assert stored.fault(run(A, B, seed=1)) is None
    assert stored.fault(run(B, A)) is None
    later = ("a", "te.Linear", f"{TE}, backward_override=None")
    assert stored.fault(run(later, B)) is None, "a key that a later version adds is no difference"


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([A], "converted 1 module, and te-block converts 2 of nano"),
        ([A, B, ("c", *B[1:])], "converted 3 modules, and te-block converts 2 of nano"),
        ([], "converted 0 modules, and te-block converts 2 of nano"),
        ([A, ("c", *B[1:])], "converted other modules than te-block converts of nano"),
        ([A, ("b", "Linear", TE)], "the configuration of b has kind: Linear, and that of te-block has te.Linear"),
        ([A, ("b", "te.Linear", TE.replace("Block", "Current"))], "recipe_type: Float8CurrentScaling, and that of te-block has Float8"),
        ([A, ("b", "te.Linear", TE.replace("2_scale=True", "2_scale=False"))], "of b has fp8_quant_fwd_inp: Qparams( power_2_scale=False"),
        ([A, ("b", "te.Linear", "x=1")], "the configuration of b has no key of te-block's"),
    ],
)  # fmt: skip
def test_another_inventory_is_named(run, modules, words):
    stored, _ = updated(Inventories(), [run(A, B)])
    fault = stored.fault(run(*modules))
    assert fault is not None
    assert words in fault


def test_more_than_one_module_are_modules(run):
    stored, _ = updated(Inventories(), [run(A, B, ("c", *B[1:]))])
    assert stored.fault(run(A, B)) == "converted 2 modules, and te-block converts 3 of nano"


def test_all_values_of_a_configuration_are_told(run):
    """Versions of a package may differ in them."""
    of = {f: ("a", "te.Linear", TE.replace("E4M3", f)) for f in ("E4M3", "HYBRID", "E5M2")}
    stored, _ = updated(Inventories(), [run(of["HYBRID"]), run(of["E4M3"])])
    assert (
        stored.fault(run(of["E5M2"]))
        == "the configuration of a has format: E5M2, and that of te-block has E4M3 or HYBRID"
    )
    assert updated(stored, [run(of["E5M2"])])[1] == [
        "configurations: te-block emulated: format: E5M2 (also E4M3, HYBRID)"
    ]


def test_the_names_of_modules_are_hashed_in_order_one_a_line(run):
    sha256 = hashlib.sha256(b"a\nb").hexdigest()
    assert Modules.of(run(B, A)) == Modules(2, sha256)


def test_own_inventories_stand_beside_others_and_win(run):
    base = Inventories(
        {("a", "native"): {"k": frozenset("x")}, ("b", "native"): {}},
        {("m", "a"): Modules(1, "0"), ("m", "b"): Modules(2, "0")},
    )
    own = Inventories({("a", "native"): {"k": frozenset("y")}}, {("m", "a"): Modules(3, "0")})
    assert own.over(base) == Inventories(
        {("a", "native"): {"k": frozenset("y")}, ("b", "native"): {}},
        {("m", "a"): Modules(3, "0"), ("m", "b"): Modules(2, "0")},
    )


def test_what_nobody_stored_is_said(run, trajectory):
    stored, _ = updated(Inventories(), [run(A, B)])
    native = run(A).cell.model_copy(update={"execution": Execution.NATIVE, "model": "tiny"})
    assert stored.unmeasured(run(A).cell) == []
    assert stored.unmeasured(trajectory().cell) == []
    assert stored.unmeasured(native) == [
        "no configuration of te-block native is stored; only the seeds' were compared",
        "no modules of te-block on tiny are stored; only the seeds' were compared",
    ]
    assert Inventories().unmeasured(native) == []


def test_a_verdict_says_it_too(run, trajectory):
    stored, _ = updated(Inventories(), [run(A, B)])
    controls = [trajectory(seed=s) for s in range(3)]
    golden = from_runs([trajectory(seed=s) for s in range(8)], [])
    rules = Policy(path=Path("policy.toml"), loss=(ROW,))

    def judged(found: Inventories):
        runs = [run(A, seed=s) for s in range(3)]
        return loss.judge(runs, controls, golden, rules, MeasuredNumbers(inventories=found))

    assert (
        judged(stored)
        .message()
        .startswith("te-block-nano-emulated: loss parity error: seed 0: converted 1 module, and te-block converts 2")
    )
    assert judged(Inventories()).status == "pass"
    said = judged(replace(stored, modules={}))
    assert "no modules of te-block on nano are stored; only the seeds' were compared" in said.unmeasured
    assert ("not measured", said.unmeasured[-1]) in said.lines


def test_values_of_other_versions_are_added_and_told(run):
    first, lines = updated(Inventories(), [run(A)])
    assert lines[0] == "configurations: te-block emulated: format: E4M3"
    assert lines[-1] == "modules: te-block on nano: 1"
    second, lines = updated(first, [run(("a", "te.Linear", TE.replace("E4M3", "HYBRID")), B)])
    assert lines == [
        "configurations: te-block emulated: format: HYBRID (also E4M3)",
        "modules: te-block on nano: 1 -> 2",
    ]
    assert second.configurations["te-block", "emulated"]["format"] == {"E4M3", "HYBRID"}
    assert updated(second, [run(A, B)]) == (second, [])


def test_tables_keep_everything(run, tmp_path):
    stored, _ = updated(Inventories(), [run(A, B)])
    inventories.write(tmp_path, stored)
    assert inventories.load(tmp_path) == stored
    path = tmp_path / "modules.csv"
    path.write_text(path.read_text().replace(",2,", ",two,"))
    with pytest.raises(ValueError, match=r"modules.csv:2: expected a number of modules and a SHA-256"):
        inventories.load(tmp_path)


def test_bounds_store_them(run, trajectory, tmp_path, capsys):
    (tmp_path / "policy.toml").write_text("")
    for record in (run(A, B), trajectory()):
        write_json(tmp_path / "set" / name_of(record), record)
    command = ["bounds", str(tmp_path / "set"), "--golden-dir", str(tmp_path)]
    assert main(command) == 0
    assert "modules: te-block on nano: 2" in capsys.readouterr().out.splitlines()
    assert inventories.load(tmp_path / "numerics") == Inventories()
    assert main([*command, "--write"]) == 0
    stored = inventories.load(tmp_path / "numerics")
    assert stored.modules == {("nano", "te-block"): Modules.of(run(A, B))}
    assert stored.configurations["te-block", "emulated"]["fp8_dpa"] == {"False"}


def test_every_recipe_of_the_committed_sets_is_stored():
    stored = inventories.load(GOLDEN / "numerics")
    executions = Counter(execution for _, execution in stored.configurations)
    assert executions == {"emulated": 9 + 11, "native": 6 + 9, "fused": 3}  # of the catalogue, and variants
    assert (
        len(stored.modules) == 46 + 11 + 27 + 12 + 5
    )  # variants: of micro, native, and emulated on a GPU; and of tiny-moe
    of_block = {
        execution: facts for (recipe, execution), facts in stored.configurations.items() if recipe == "te-block"
    }
    assert of_block["emulated"]["fprop_w"] == {"e4m3 128x128 te-pow2"}
    assert of_block["native"]["recipe_type"] == of_block["fused"]["recipe_type"] == {"Float8BlockScaling"}
    assert stored.modules["micro", "te-nvfp4"].number == 14


def test_an_execution_that_does_not_exist_is_refused_with_its_line(tmp_path):
    """Found by benchmarks/endurance.py: one bit of a name, and no run was held to the row."""
    path = tmp_path / "configurations.csv"
    path.write_text("recipe,execution,key,value\nte-current,native,c,x\nte-current,emulaped,kind,b\n")
    with pytest.raises(
        ValueError, match=f"configurations.csv:3: execution 'emulaped' is none of {', '.join(Execution)}$"
    ):
        inventories.load(tmp_path)
