"""The command line: exit status and what it prints."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fp8parity import cli
from fp8parity.cli import main
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.stats import seeds_needed
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.records.storage import load_records, name_of, write_json
from narrowed import trajectories

GOLDEN = str(Path(__file__).parents[1] / "golden")


def test_recipes_lists_every_execution_and_a_reason(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    for name in RECIPES:
        assert name in out
    assert out.count("runs here") >= 10


def test_power_agrees_with_the_statistics(capsys):
    assert main(["power", "--golden-dir", GOLDEN, "--sd", "0.1%", "--margin", "0.25%"]) == 0
    out = capsys.readouterr().out
    assert f"true gap 0.000%: {seeds_needed(0.001, 0.0025, 0.0, 0.05 / 4)} seeds" in out


def test_power_gives_up_at_some_count(capsys):
    assert main(["power", "--golden-dir", GOLDEN, "--sd", "5%", "--margin", "0.1%"]) == 0
    assert "more than 400 seeds" in capsys.readouterr().out


def test_bounds_of_runs_without_a_first_step_says_so(trajectory, tmp_path, capsys):
    write_json(tmp_path / name_of(trajectory("te-current")), trajectory("te-current"))
    assert main(["bounds", str(tmp_path), "--golden-dir", GOLDEN]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path} holds no number to compare: no numerics check, and no run with a first step\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "minii"), "unknown model 'minii': did you mean mini"),
        (("--recipe", "te-curren"), "unknown recipe 'te-curren': did you mean te-current"),
        (("--margin", "0"), "--margin 0.00%: it is above 0 and below 100%"),
        (("--margin=-1%",), "--margin -1.00%: it is above 0 and below 100%"),
        (("--sd", "0"), "--sd 0.00%: it is above 0 and below 100%"),
    ],
)
def test_power_refuses_what_it_does_not_know(capsys, arguments, words):
    assert main(["power", "--golden-dir", GOLDEN, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and words in printed.err and printed.err.count("\n") == 1


def test_power_says_how_many_seeds_the_golden_holds(capsys):
    """mini asks for 2 seeds at its margin. A margin near its noise needs more than its golden holds."""
    assert main(["power", "--golden-dir", GOLDEN, "--model", "mini"]) == 0
    wide = capsys.readouterr().out
    assert "true gap 0.000%: 2 seeds\n" in wide and "the golden holds 8 seeds; a gate decides at 2, 3, 5, 8" in wide
    assert main(["power", "--golden-dir", GOLDEN, "--model", "mini", "--margin", "0.002%"]) == 0
    assert "margin 0.002%" in (near := capsys.readouterr().out)
    assert "true gap 0.000%: 15 seeds, and the golden holds 8: record it with more" in near
    assert main(["power", "--golden-dir", GOLDEN, "--model", "base"]) == 0
    small = capsys.readouterr().out
    assert "the golden holds 3 seeds; a gate decides at 2, 3" in small and "5 seeds resolve" not in small


@pytest.fixture
def gaps(trajectory, tmp_path) -> Path:
    """Records of te-current whose gaps to BF16 have a spread of 0.1%."""
    for seed, gap in enumerate((0.001, 0.002, 0.003)):
        for run in (trajectory(seed=seed), trajectory("te-current", seed, gap)):
            write_json(tmp_path / name_of(run), run)
    return tmp_path


def test_power_from_records(gaps, capsys):
    assert main(["power", "--golden-dir", GOLDEN, "--model", "nano", "--records", str(gaps)]) == 0
    assert "noise of a seed's gap 0.1000%" in capsys.readouterr().out


def test_power_of_a_recipe_that_is_not_on_record(gaps, capsys):
    assert (
        main(["power", "--golden-dir", GOLDEN, "--model", "nano", "--recipe", "te-curren", "--records", str(gaps)]) == 2
    )
    assert "did you mean te-current" in capsys.readouterr().err


def test_power_of_a_set_without_training_runs(capsys):
    shown = Path(GOLDEN) / "records" / "h200-lengths.zip"
    assert main(["power", "--golden-dir", GOLDEN, "--model", "1b", "--records", str(shown)]) == 2
    assert capsys.readouterr().err == f"fp8parity: {shown}: no training run of 1b is on record\n"


def measured(trajectory, value: float) -> Measurements:
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.EMULATED, corpus="topics")
    row = Measurement(metric="fprop sqnr", where="gaussian", value=value)
    # A record of an older schema may lack the other numbers of its check.
    return Measurements(
        partial=True, cell=cell, check="gemm", values=[row], provenance=trajectory().provenance, session="s"
    )


@pytest.mark.parametrize(("value", "code"), [(28.5, 0), (24.0, 1), (55.6, 1)])
def test_judge_by_its_exit_status(trajectory, tmp_path, capsys, value, code):
    record = measured(trajectory, value)
    write_json(tmp_path / name_of(record), record)
    report = tmp_path / "out" / "report.md"
    reports = ["--report", str(report), "--report", str(tmp_path / "report.json")]
    assert main(["judge", str(tmp_path), "--golden-dir", GOLDEN, *reports]) == code
    assert json.loads((tmp_path / "report.json").read_text())["sentence"] in report.read_text()
    assert ("**Refuse: te-current emulated on tiny fails (gemm: 1 of 1 numbers" in report.read_text()) == bool(code)
    assert ("**Accept: the only check is green.**" in report.read_text()) != bool(code)
    assert "te-current" in capsys.readouterr().out


@pytest.mark.parametrize("with_other", [False, True])
def test_a_machine_whose_records_give_no_verdict_is_refused(trajectory, tmp_path, capsys, with_other):
    """Steps with other lengths are timed to be shown. Also beside green checks of another machine."""
    green = measured(trajectory, 28.5)
    write_json(tmp_path / name_of(green), green)
    assert main(["judge", str(tmp_path), "--golden-dir", GOLDEN]) == 0
    shown = f"{GOLDEN}/records/h200-lengths.zip"
    assert main(["judge", shown, *([str(tmp_path)] if with_other else []), "--golden-dir", GOLDEN]) == 1
    out = capsys.readouterr().out
    assert "Refuse: nothing was checked." in out and (out.count("Accept: the only check is green.") == 1 + with_other)


@pytest.fixture
def bare(trajectory, tmp_path) -> list[str]:
    """The command that judges a number for which there is a rule, but no measured number."""
    record = measured(trajectory, 55.0)
    elsewhere = replace(record.values[0], where="nowhere")
    cell = record.cell.model_copy(update={"recipe": "bf16", "execution": Execution.NATIVE})
    record = record.model_copy(update={"cell": cell, "values": [elsewhere]})
    write_json(tmp_path / name_of(record), record)
    return ["judge", str(tmp_path), "--golden-dir", GOLDEN]


def test_judge_says_what_rules_alone_judged(bare, capsys):
    assert main(bare) == 0
    assert (
        "not measured: no numbers for gemm (fprop sqnr @ nowhere); rules only (1 cell, first bf16-"
        in capsys.readouterr().out
    )


def test_judge_can_require_numbers(bare, capsys):
    assert main([*bare, "--require-numbers"]) == 1
    assert (
        "Refuse: the only check that ran is green, but no numbers for gemm (fprop sqnr @ nowhere)"
        in capsys.readouterr().out
    )


def test_judge_of_a_whole_run_names_what_nothing_needed(trajectory, tmp_path, capsys):
    record = measured(trajectory, 28.5)
    write_json(tmp_path / name_of(record), record)
    assert main(["judge", str(tmp_path), "--golden-dir", GOLDEN, "--whole"]) == 0
    out = capsys.readouterr().out
    assert "not needed by any record: golden of 1b on topics" in out
    assert main(["judge", str(tmp_path), "--golden-dir", GOLDEN]) == 0
    assert "not needed" not in capsys.readouterr().out


@pytest.fixture
def bounds(tmp_path, capsys):
    """Runs ``fp8parity bounds`` on tmp_path/set with the given policy and no numbers on record; returns what it prints."""

    def call(rows: str, *arguments: str) -> str:
        (tmp_path / "policy.toml").write_text(rows)
        assert main(["bounds", str(tmp_path / "set"), "--golden-dir", str(tmp_path), *arguments]) == 0
        return capsys.readouterr().out

    return call


def band(check: str, metric: str) -> str:
    return f'[[band]]\ncheck = "{check}"\nmetric = "{metric}"\nband = 0.01\nwhy = "a made-up row"\n'


def test_bounds_prints_numbers_that_are_new(trajectory, tmp_path, bounds):
    record = measured(trajectory, 28.46)
    write_json(tmp_path / "set" / name_of(record), record)
    out = bounds(band("gemm", "fprop sqnr"))
    assert out == "shared: gemm: fprop sqnr @ gaussian of te-current on tiny, emulated: new, 28.46\n"
    assert not (tmp_path / "numerics").exists()


@pytest.fixture
def first_steps(trajectory, tmp_path):
    """Two seeds of BF16 and te-current whose first gradients differ."""
    for s in (0, 1):
        runs = (("bf16", 0.0, 2.0, 0.5), ("te-current", 1e-4 * (s + 1), 1.9 + 0.02 * s, 0.4))
        for made in (
            trajectory(r, s, gap, grad_norm=[a] + [1.0] * 11, first_gradients={"w": b}) for r, gap, a, b in runs
        ):
            write_json(tmp_path / "set" / name_of(made), made)


LOSS = '[[loss]]\nmargin = 0.005\nwhy = "a made-up row"\n'
FIRST_STEP = band("loss parity", "first gradient norm") + band("loss parity", "first gradient")


def test_bounds_of_a_first_step_are_means_over_seeds(first_steps, bounds):
    """Of the model and of its parameters, named by the model."""
    text = bounds(FIRST_STEP)
    assert "loss parity: first gradient norm @ nano of te-current on nano, emulated: new, 0.955" in text
    assert "loss parity: first gradient @ nano of te-current on nano, emulated: new, 0.8" in text
    assert "bf16" not in text


def test_bounds_of_a_first_step_judge_it(first_steps, bounds, tmp_path):
    bounds(FIRST_STEP + LOSS, "--write")
    controls = [r for r in trajectories(load_records(tmp_path / "set")) if r.cell.is_control]
    write_json(tmp_path / "loss" / "nano-topics.json", from_runs(controls, []))
    main(["judge", str(tmp_path / "set"), "--golden-dir", str(tmp_path), "--report", str(tmp_path / "r.json")])
    verdicts = {v["cell"]["recipe"]: v for v in json.loads((tmp_path / "r.json").read_text())["verdicts"]}
    lines = dict(verdicts["te-current"]["lines"])
    assert "expected 0.9450 to 0.9650" in lines["first step"]
    assert "not measured" not in lines


def test_bad_input_is_2_and_one_line(tmp_path, capsys):
    assert main(["judge", str(tmp_path), "--golden-dir", GOLDEN]) == 2
    assert capsys.readouterr().err == f"fp8parity: {tmp_path} holds no records\n"


def test_a_folder_without_a_policy_is_2(tmp_path):
    assert main(["judge", str(tmp_path), "--golden-dir", str(tmp_path)]) == 2


def test_a_crash_is_no_verdict(monkeypatch, capsys):
    """Python's own status of a crash is 1, and 1 means a regression."""

    def crash(_: object) -> int:
        raise KeyError("planted")

    monkeypatch.setitem(cli.COMMANDS, "recipes", cli.COMMANDS["recipes"]._replace(run=crash))
    assert main(["recipes"]) == 3
    assert "KeyError: 'planted'" in capsys.readouterr().err
