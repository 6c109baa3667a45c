"""Programs of a user as cells: started by their command, judged by their log."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records
from fp8parity.runner import Runner, Settings
from fp8parity.trainers import launch, runs, spec
from fp8parity.training import hardware
from processes import Done, run
from projects import complete

ROOT = Path(__file__).parents[1]
COMMAND = ["{python}", "train.py", "--seed={seed}", "--steps={steps}", "--out={out}"]
FAULTS = {
    "count": ("fail", "the gradient norm left its band around BF16's"),
    "crash": ("error", "crash, seed 0: the command ended with exit status 3 after 10 of 100 steps"),
    "hang": ("error", "hang, seed 0: the command was stopped after 3 s (timeout)"),
    "early": ("error", "early, seed 0: it stopped early: its log holds 30 of 100 steps"),
    "nan": ("fail", "seed 0 is non-finite at step 40: loss"),
    "rate": ("fail", "seed 0: its learning rate in step 0 is 0.00515, and BF16's 0.005"),
    "data": ("fail", "or trained on other batches; the correlation of their detrended losses is"),
    "off": ("fail", "the losses of seed 0 equal BF16's to the bit"),
}
"""A fault of the tested arm, the status that follows, and what the message says."""
POLICY = """
[[extends]]
goldens = "shipped"

[[loss]]
model = "bigram"
margin = 0.005
bf16_margin = 0.002
min_step_band = 0.02
min_norm_band = 0.25
min_loss_drop = 0.05
why = "sixteen numbers a row: rounding moves a seed by 0.2%"
"""
"""The rule of trainers, with a margin of its own."""
ADDED = {"off": [], "data": ["--bits=3", "--data_seed=7"]}


def write(folder: Path, **keys: object) -> None:
    """Write a file with a trainer of these keys, and its script."""
    recipes = {"bf16": [], "te-current": ["--bits=3"]}
    recipes |= {name: ADDED.get(name, ["--bits=3", f"--fault={name}"]) for name in FAULTS}
    given = {"command": COMMAND, "recipes": recipes, "log": "{out}/log.jsonl", "steps": 100, "timeout": 3} | keys
    inline = {k: v for k, v in given.items() if not isinstance(v, dict)}
    text = "".join(f"{k} = {json.dumps(v)}\n" for k, v in inline.items())
    for table in (k for k in given if k not in inline):
        rows = "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in dict(given[table]).items())  # type: ignore[call-overload]
        text += f"[trainer.bigram.{table}]\n{rows}"
    (folder / "trainers.toml").write_text(f"[trainer.bigram]\n{text}")
    shutil.copy(ROOT / "tests" / "numpy_trainer.py", folder / "train.py")


def make(folder: Path, **keys: object) -> Path:
    """A project with a trainer of these keys, its script and a policy that extends the shipped one."""
    write(folder, **keys)
    return complete(folder, POLICY, ignored=".parity*/\ngolden/\n__pycache__/\n.pytest_cache/\n")


def gate(project: Path, *args: str) -> Done:
    return run("pytest", "suites/convergence", "--trainers", "trainers.toml", *args, cwd=project)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    made = make(tmp_path_factory.mktemp("trainer"), packages=["numpy"])
    done = gate(made, "--golden-update")
    assert done.returncode == 0, done.stdout
    return made


@pytest.fixture(scope="module")
def judged(project):
    """One gate of all recipes, in two processes."""
    return gate(project, "-n", "2")


@pytest.mark.slow
def test_sound_recipe_passes_and_each_fault_is_named(judged):
    for recipe in ("bf16", "te-current"):
        line = next(text for text in judged.stdout.splitlines() if f" {recipe} " in text and "bigram" in text)
        assert line.startswith("pass"), judged.stdout
    for name, (status, words) in FAULTS.items():
        assert f"{name}-bigram-native: loss parity {status}: " in judged.stdout, name
        assert words in judged.stdout


@pytest.mark.slow
def test_output_of_a_program_is_shown_and_runs_nothing(judged):
    assert "| \\x1b[31mout of memory" in judged.stdout
    assert "\x1b[31m" not in judged.stdout
    assert not any(line.startswith("::") for line in judged.stdout.splitlines())


@pytest.mark.slow
def test_record_says_how_the_program_ran(project, judged):
    records = [r for r in load_records(project / ".parity") if r.cell.recipe == "te-current"]
    made = next(r for r in records if isinstance(r, Trajectory) and r.seed == 1)
    assert made.trainer
    assert made.trainer.command[1:3] == ["train.py", "--seed=1"] and made.trainer.status == 0
    assert made.provenance.packages["numpy"] and len(made.trainer.learning_rate) == 100


@pytest.mark.slow
def test_set_of_a_program_is_judged_and_compared_later(project, judged, tmp_path):
    done = run("fp8parity", "judge", ".parity", cwd=project)
    assert "te-current" in done.stdout and done.returncode == 1
    assert "selected te-current-bigram-native loss parity (no record holds it)" not in done.stdout
    shutil.copytree(project, tmp_path / "new", symlinks=True, ignore=shutil.ignore_patterns(".parity"))
    script = tmp_path / "new" / "train.py"
    script.write_text(script.read_text().replace("lr = a.lr", "lr = 0.3 * a.lr"))  # of both arms
    edited = "no package did: your code did (uncommitted changes in train.py)"
    assert f"BF16 changed and {edited}" in gate(tmp_path / "new", "--recipe", "bf16").stdout
    done = run("fp8parity", "compare", ".parity", str(tmp_path / "new" / ".parity"), cwd=project)
    assert done.returncode == 1 and "bf16-bigram-native" in done.stdout and edited in done.stdout, done.stdout


@pytest.mark.slow
def test_program_that_does_not_repeat_itself_is_not_taken_for_fp8(tmp_path):
    recipes = {"bf16": [], "off": [], "te-current": ["--bits=3"]}
    project = make(tmp_path, command=[*COMMAND, "--fault=noise"], recipes=recipes)
    assert gate(project, "--golden-update").returncode == 0
    done = gate(project)
    assert "off-bigram-native: loss parity inconclusive" in done.stdout
    assert "nothing shows that anything was quantized" in done.stdout


@pytest.mark.slow
def test_golden_of_a_program_that_ignores_its_seed_is_refused(tmp_path):
    project = make(tmp_path, command=[*COMMAND, "--seed=0"])
    done = gate(project, "--golden-update")
    assert done.returncode == 1 and "seeds 0 and 1 have the same losses" in done.stdout


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"recipes": {"fp8": []}}, "recipes has no bf16"),
        ({"log": "log.jsonl"}, "log does not hold {out}"),
        ({"log": "stderr"}, '("stdout" is what is printed)'),
        ({"command": ["train", "{out}"]}, "holds {seed}: all seeds would be one run"),
        ({"command": ["train", "{seed}", "{outt}"]}, "unknown placeholder 'outt': did you mean out?"),
        ({"steps": 5}, "steps: Input should be greater than or equal to 20"),
        ({"tail": 200}, "tail is 200; it takes 4 to the 100 steps of a run"),
        ({"seeds": [1, 1]}, "a seed is there twice"),
        ({"comand": []}, "unknown key 'comand': did you mean command?"),
    ],
)
def test_wrong_trainer_is_one_sentence(tmp_path, keys, words):
    write(tmp_path, **keys)
    with pytest.raises(ValueError, match=r"trainers.toml: \[trainer.bigram\]") as caught:
        spec.load(tmp_path / "trainers.toml")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_file_without_trainers_is_refused(tmp_path):
    for text, words in {"": "no trainer", "[model]\n": "unknown table 'model'"}.items():
        (tmp_path / "t.toml").write_text(text)
        with pytest.raises(ValueError, match=words):
            spec.load(tmp_path / "t.toml")
    with pytest.raises(ValueError, match="no such file"):
        spec.load(tmp_path / "none.toml")


@pytest.mark.slow
def test_packages_are_those_that_an_import_takes(tmp_path, monkeypatch):
    for folder, version in {"first": "2.0", "second": "1.0"}.items():
        made = tmp_path / folder / f"some_thing-{version}.dist-info"
        made.mkdir(parents=True)
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: some_thing\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    runs.installed_for.cache_clear()
    assert runs.installed_for(sys.executable, "cpu", ())[0]["some-thing"] == "2.0"
    runs.installed_for.cache_clear()
    with pytest.raises(ValueError, match="python: no-such-python cannot be run"):
        runs.installed_for("no-such-python", "cpu", ())


@pytest.mark.parametrize(("keys", "slots"), [({}, hardware.SLOTS), ({"memory": 4}, 4)])
def test_memory_lets_runs_share_a_gpu(tmp_path, keys, slots):
    write(tmp_path, **keys)
    (trainer,) = spec.load(tmp_path / "trainers.toml")
    runner = Runner(Settings(tmp_path), hardware.Hardware("cpu", "cpu", None), "session", {trainer.name: trainer})
    held = runner._training(trainer.cells[0], 0, None)
    assert held.use.slots(hardware.GPU("H100", 80e9)) == slots


def trained(folder: Path, **keys: object) -> Trajectory:
    """The run of seed 0 of BF16 of a trainer with these keys."""
    write(folder, **keys)
    (trainer,) = spec.load(folder / "trainers.toml")
    return runs.train(trainer, trainer.cells[0], 0, folder / "runs", torch.device("cpu"), session="s")


@pytest.mark.slow
def test_printed_losses_are_those_of_a_log(tmp_path):
    """Standard error is kept, and is not between the losses."""
    logged = trained(tmp_path)
    printed = trained(tmp_path, log="stdout", command=[*COMMAND, "--print"])
    assert (printed.loss, printed.grad_norm) == (logged.loss, logged.grad_norm)
    assert printed.trainer and printed.trainer.output[-1] == "a warning, and no log"


@pytest.mark.slow
def test_run_of_another_command_or_program_is_not_reused(tmp_path):
    record, folder = trained(tmp_path), tmp_path / "runs"

    def unlike(written: float = time.time() + 1, **keys: object) -> str | None:
        write(tmp_path, **keys)
        (trainer,) = spec.load(tmp_path / "trainers.toml")
        return runs.unlike(trainer, record, written, folder, torch.device("cpu"))

    assert unlike() == record.provenance.unlike(record.provenance)
    assert unlike(recipes={"bf16": ["--bits=4"]}) == "its command or environment differs"
    assert unlike(environment={"SCALE": "2"}) == "its command or environment differs"
    assert unlike(written=time.time() - 60) == f"{tmp_path / 'train.py'} was changed after it"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("added", "words"),
    [
        (["--print", "--fault=crash"], "exit status 3 after 10 of 100 steps"),
        (["--steps=0", "--print"], "its log cannot be read"),
    ],
)
def test_faulty_output_is_no_log(tmp_path, added, words):
    with pytest.raises(ValueError, match=words):
        trained(tmp_path, log="stdout", command=[*COMMAND, *added])


def test_program_that_cannot_start_is_named(tmp_path):
    with pytest.raises(ValueError, match="no-such-program cannot be started"):
        launch.run(["no-such-program"], {}, tmp_path, 1, tmp_path / "out")


def test_what_a_stopped_program_started_is_stopped(tmp_path):
    script = "import subprocess,time; subprocess.Popen(['sleep', '61.5']); print('up', flush=True); time.sleep(60)"
    ended = launch.run(["python3", "-c", script], {}, tmp_path, 1.5, tmp_path / "out")
    assert ended.status is None and ended.output == ["up"]
    for _ in range(50):  # a killed process may need a moment to go
        lines = (p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists())
        if not (running := [line for line in lines if line.startswith(b"sleep\x0061.5")]):
            break
        time.sleep(0.1)
    assert not running
