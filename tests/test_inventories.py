"""Inventories: what a recipe converts, read from records, stored and compared with what a run converted."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from fp8parity.cli import main
from fp8parity.judging.references import inventories
from fp8parity.judging.references.inventories import Inventories, Modules
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Module, Trajectory
from fp8parity.records.storage import name_of, write_json
from sessions import stored

TE = "recipe_type=Float8BlockScaling, format=E4M3, fp8_quant_fwd_inp=Qparams(\npower_2_scale=True,\namax_epsilon=0.0\n), fp8_dpa=False"
A, B = ("a", "te.Linear", TE), ("b", "te.Linear", TE)


@pytest.fixture
def run(trajectory):
    def make(*modules: tuple[str, str, str], seed: int = 0) -> Trajectory:
        inventory = [Module(fqn=f, kind=k, config=c) for f, k, c in modules]
        return trajectory("te-block", seed, 1e-4 * (seed + 1), inventory=inventory)

    return make


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([A, B], None),
        ([B, A], None),
        ([A, ("b", "te.Linear", TE.replace("Block", "Current"))], "has recipe_type: Float8CurrentScaling, and that of te-block has Float8"),
        ([A, ("b", "te.Linear", TE.replace("2_scale=True", "2_scale=False"))], "fp8_quant_fwd_inp: Qparams( power_2_scale=False"),
        ([A, ("b", "te.Linear", "x=1")], "the configuration of b has no key of te-block's"),
    ],
)  # fmt: skip
def test_run_of_another_recipe_is_named(run, modules, words):
    known, _ = inventories.updated(Inventories(), [run(A, B)])
    fault = known.fault(run(*modules))
    assert fault is None if words is None else words in str(fault)
    assert Inventories().fault(run(*modules)) is None


def test_values_of_other_versions_are_added(run):
    first, lines = inventories.updated(Inventories(), [run(A)])
    assert (lines[0], lines[-1]) == (
        "configurations: te-block emulated: format: E4M3",
        "modules: te-block on nano: 1",
    )
    second, lines = inventories.updated(first, [run(("a", "te.Linear", TE.replace("E4M3", "HYBRID")), B)])
    assert lines == [
        "configurations: te-block emulated: format: HYBRID (also E4M3)",
        "modules: te-block on nano: 1 -> 2",
    ]
    assert inventories.updated(second, [run(A, B)]) == (second, [])
    assert second.over(first) == second and first.over(second).modules == first.modules


def test_missing_inventory_is_said(run, trajectory):
    known, _ = inventories.updated(Inventories(), [run(A, B)])
    other = run(A).cell.model_copy(update={"execution": Execution.NATIVE, "model": "tiny"})
    assert known.unmeasured(run(A).cell) == known.unmeasured(trajectory().cell) == Inventories().unmeasured(other) == []
    assert known.unmeasured(other) == [
        "no configuration of te-block native is stored; only the seeds' were compared",
        "no modules of te-block on tiny are stored; only the seeds' were compared",
    ]


def test_bounds_store_inventories(run, trajectory, tmp_path, capsys):
    (tmp_path / "policy.toml").write_text("")
    for record in (run(A, B), trajectory()):
        write_json(tmp_path / "set" / name_of(record), record)
    command = ["golden", "bounds", str(tmp_path / "set"), "--golden-dir", str(tmp_path)]
    assert main(command) == 0
    assert "modules: te-block on nano: 2" in capsys.readouterr().out.splitlines()
    assert main([*command, "--write"]) == 0
    found = inventories.load(tmp_path / "numerics")
    assert found.modules == {("nano", "te-block"): Modules.of(run(A, B))}
    assert found.configurations["te-block", "emulated"]["fp8_dpa"] == {"False"}


@pytest.mark.parametrize(
    ("table", "line", "words"),
    [
        ("modules", "m,r,two,0", "modules.csv:2: expected a number of modules and a SHA-256"),
        ("configurations", "r,emulaped,k,v", "configurations.csv:2: execution 'emulaped' is none of native"),
    ],
)
def test_fault_of_a_table_is_named_with_file_and_line(tmp_path, table, line, words):
    (tmp_path / f"{table}.csv").write_text(f"{','.join(inventories.COLUMNS[table])}\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(words)):
        inventories.load(tmp_path)


def test_every_recipe_has_an_inventory():
    found = stored()[0].numbers.inventories
    executions = Counter(execution for _, execution in found.configurations)
    assert executions == {"emulated": 9 + 11, "native": 6 + 9, "fused": 3}  # of the catalogue, and variants
    assert found.configurations["te-block", "emulated"]["fprop_w"] == {"e4m3 128x128 te-pow2"}
    assert found.configurations["te-block", "native"]["recipe_type"] == {"Float8BlockScaling"}
    assert found.modules["micro", "te-nvfp4"].number == 14
