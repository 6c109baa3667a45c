"""The command ``fp8parity split``: what it asks of the runner, prints and writes, what it refuses, and ``--from``. No GPU."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import reports
from fp8parity import cli, recipes
from fp8parity.cli import blocks as command
from fp8parity.records.cell import Execution
from fp8parity.records.schema import AnyRecord
from fp8parity.timing import blocks
from fp8parity_lab.cli import split as split_command
from fp8parity_lab.splitting import kernels
from fp8parity_lab.splitting.linears import linears
from own_models import CPU
from splits import KV, Q
from splits import split as split_of
from test_block_command import FakeRunner, fake_runner  # noqa: F401 - a fixture
from test_block_command import run as run
from test_hf_layer import config as config
from test_hf_layer import layer
from test_recorded import show as show
from timings import SHAPE
from timings import made as timed

SPLIT = split_of(Q, KV)
OTHER = split_of(Q).model_copy(update={"variant": "eager", "provenance": reports.provenance(device="NVIDIA Other")})
BLOCKS = [timed(ratio, block=SHAPE, variant=name) for ratio, name in ((1.2, ""), (1.25, "without k_proj v_proj"))]


@pytest.fixture
def runner(fake_runner: FakeRunner, monkeypatch) -> FakeRunner:  # noqa: F811
    def of_block(runner: FakeRunner, recipe: Any, execution: Any, workload: Any) -> object:
        runner.asked.append(("block", workload.shape.name))
        return SPLIT

    def of_step(runner: FakeRunner, cell: Any) -> object:
        runner.asked.append(("step", cell.id))
        return SPLIT

    monkeypatch.setattr(kernels, "of_block", of_block)
    monkeypatch.setattr(kernels, "of_step", of_step)
    return fake_runner


@pytest.mark.parametrize("option", ["--sequence", "--micro-batch"])
def test_split_of_a_step_refuses_a_batch(runner, run, option):
    """The suite sets the batch of a whole step, so the option would be ignored."""
    code, out, err = run("split", "1b", "--recipe", "te-current", option, "16")
    assert (code, out, runner.asked) == (2, "", [])
    assert err == "fp8parity: --sequence and --micro-batch are those of a block; add --block, or leave them out\n"
    assert run("split", "1b", "--recipe", "te-current", option, "16", "--block")[0] == 0 and runner.asked == [
        ("block", "1b")
    ]


def test_the_proposed_filter_is_measured_on_request(runner, run):
    _, out, _ = run("split", "llama3-8b", "--recipe", "te-current", "--measure-filter")
    assert [a[-1] for a in runner.asked[1:]] == ["", "without k_proj v_proj"]
    assert "predicted gain +2.0%" in out and "a block with the filter: measured gain +4.2% [" in out


def test_the_tables_are_written(runner, run, tmp_path):
    files = {kind: tmp_path / f"s.{kind}" for kind in ("csv", "json", "html")}
    options = [f"--{kind.replace('html', 'plot')}={path}" for kind, path in files.items()]
    assert run("split", "1b", "--recipe", "te-current", *options)[0] == 0 and runner.asked[0][0] == "step"
    texts = {kind: path.read_text() for kind, path in files.items()}
    assert texts["csv"].startswith("device,cell,timed,mode,category,") and '"filter"' in texts["json"]
    assert 'id="time-split"' in texts["html"] and "Linears of te-current native" in texts["html"]
    (tmp_path / "file").write_text("")
    code, _, err = run("split", "1b", "--recipe", "te-current", "--csv", str(tmp_path / "file" / "s.csv"))
    assert code == 2 and "s.csv could not be written" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.json", "--recipe", "te-current"), "missing.json"),
        (("llama3-8b", "--recipe", "te-current", "--execution", "emulated"), "this machine has none"),
    ],
)
def test_what_is_refused_is_one_line(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("split", *arguments)
    assert (code, out) == (2, "") and words in err and len(err.splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_splits_of_several_sets_are_all_shown(show):
    code, out, _ = show([SPLIT, OTHER], "split", "--csv", "s.csv", "--json", "s.json")
    assert code == 0
    assert out.split("\n\n") == [
        f"NVIDIA Made Up: training-step-split\n{split_command.table(SPLIT)}",
        f"NVIDIA Other: training-step-split-eager\n{split_command.table(OTHER)}\n",
    ]
    assert [r["device"] for r in csv.DictReader(io.StringIO(Path("s.csv").read_text()))] == ["NVIDIA Made Up"] * 3 + [
        "NVIDIA Other"
    ] * 3
    assert [s["filter"] is None for s in json.loads(Path("s.json").read_text())] == [False, True]


def test_a_measured_filter_is_shown_with_its_split(show):
    _, out, _ = show([SPLIT, *BLOCKS], "split")
    line = " ".join(out.split("+2.0%")[1].split())
    assert line.startswith("a block, without k_proj v_proj: 1.250x [") and "measured gain +4.2% [" in line
    assert max(map(len, out.splitlines())) <= 80


def test_blocks_of_another_machine_do_not_count(show):
    there: list[AnyRecord] = [
        b.model_copy(update={"provenance": reports.provenance(device="NVIDIA Other")}) for b in BLOCKS
    ]
    assert "measured gain" not in show([SPLIT, *there], "split")[1]


FROM = "--from shows what is on record, and times nothing; leave out"


@pytest.mark.parametrize(
    ("records", "words", "said"),
    [
        ([SPLIT], ("1b",), f"{FROM} the model"),
        ([SPLIT], ("--measure-filter",), f"{FROM} --measure-filter"),
        ([], (), "give the model and --recipe to time something, or --from SET to show what is on record"),
        ([], ("1b",), "give --recipe to time something, or --from SET to show what is on record"),
        ([BLOCKS[0]], (), "NVIDIA Made Up: no record of fp8parity split"),
    ],
)
def test_arguments_that_would_be_ignored_or_lack_are_refused(show, records, words, said):
    assert show(records, "split", *words, given=bool(records)) == (2, "", f"fp8parity: {said}\n")


@pytest.mark.parametrize("recipe", ["te-current", "ao-mxfp8"])
@pytest.mark.parametrize("text", ["qwen3@0", "qwen3_moe@0", "gpt_oss@0", "qwen3_next@0"])
def test_each_converted_linear_of_a_layer_is_timed_alone(text, recipe, config, eager):
    """Linears of equal sizes are one, and so are the experts of a name, with all of their rows. What stays in BF16 has no time."""
    work = layer(config, text)
    block = blocks.make_block(work, recipes.get(recipe), Execution.EMULATED, CPU)
    found = linears(work, recipes.get(recipe), Execution.EMULATED, CPU)
    names = [fqn for one in found for fqn in one.fqns]
    experts = re.compile(r"(?<=_proj)\.\d+$")
    assert sorted(names) == sorted(
        {experts.sub("", m.fqn.removeprefix("layers.0.")) for m in block.converted.inventory}
    )
    assert len(found) < len(names) and ("mlp.experts.down_proj" in names) == (text != "qwen3@0")


def test_split_takes_a_layer(config, monkeypatch, capsys):
    monkeypatch.setattr(command, "recipe_of", lambda args: recipes.get("te-current"))
    code = cli.main(["split", str(config("qwen3_moe")), "--layer", "0", "--recipe", "te-current", "--sequence", "64"])
    said = capsys.readouterr()
    assert code == 2 and "this machine has none" in said.err and said.out.startswith("Qwen3MoeDecoderLayer; in BF16: ")
