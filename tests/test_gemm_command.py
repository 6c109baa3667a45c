"""fp8parity gemm: its table, CSV and JSON, and its errors. No GPU: the records are made up."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock, Timeout
from fp8parity.cli import gemm, main
from fp8parity.recipes import Recipe, registry
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.gemms import GemmTimes
from fp8parity.records.storage import name_of
from fp8parity.report import timings
from fp8parity.training.hardware import Hardware
from gemm_records import changed, made

H100 = Hardware("h100", "cuda:0", (9, 0))
LOST = {"bf16_seconds": [], "recipe_seconds": [], "failed": "RuntimeError: no algorithm"}


def test_the_table_fits_80_columns_and_has_one_line_a_gemm():
    lines = gemm.table(made("llama3-8b")).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[:2] for line in lines[3:6]] == [["qkv", "fprop"], ["qkv", "dgrad"], ["qkv", "wgrad"]]
    assert "gate and up fprop   3.006  80%   1.582 1.900 152%   1.879 1.600 [1.60, 1.60]" in lines
    assert "a layer     all    16.750  80%   8.816 1.900 152%  10.469 1.600 [1.60, 1.60]" in lines


def test_csv_has_a_line_for_each_gemm():
    record = changed(made(), "o wgrad training", **LOST)
    found = list(csv.DictReader(io.StringIO(timings.GEMM_RENDERERS["csv"]([record, made("llama3-8b")]))))
    assert len(found) == 24 + 30
    assert (found[0]["model"], found[0]["linear"], found[0]["gemm"]) == ("codonfm-5b", "qkv", "fprop")
    assert float(found[0]["ratio"]) == pytest.approx(1.9)
    assert float(found[0]["share_of_peak"]) == pytest.approx(1.52)
    failed = next(r for r in found if r["failed"])
    assert (failed["failed"], failed["ratio"], failed["tflops"]) == ("RuntimeError: no algorithm", "", "")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["no-model"], "unknown model 'no-model'"),
        (
            ["meta-llama/Llama-3.1-8B"],
            "meta-llama/Llama-3.1-8B is no file or folder; of a repository give its config.json",
        ),
        (["llama3-8b", "--pairs", "5"], "'5' is not a whole number from 6 to 1000"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, args, words):
    try:
        code = main(["gemm", *args])
    except SystemExit as stop:  # argparse
        code = int(stop.code or 0)
    assert code == 2
    assert words in capsys.readouterr().err


def test_a_pattern_names_the_recipes_that_run_here():
    """ao-mxfp8 needs a newer GPU, and a variant is named in full."""
    pytest.importorskip("torchao")
    assert [r.name for r in gemm.chosen(["ao-rowwise", "ao-*"], H100)] == [
        "ao-rowwise",
        "ao-tensorwise",
        "ao-rowwise-gw-hp",
    ]
    with pytest.raises(
        ValueError, match=r"^no recipe of ao-mx\* runs here: ao-mxfp8 needs sm_100 and below sm_120; this GPU is sm_90$"
    ):
        gemm.chosen(["ao-mx*"], H100)
    with pytest.raises(ValueError, match=r"^ao-mxfp8 needs sm_100"):
        gemm.chosen(["ao-*", "ao-mxfp8"], H100)
    with pytest.raises(ValueError, match=r"^no recipe of bf\* runs here$"):  # there is nothing beside BF16
        gemm.chosen(["bf*"], H100)


CONFIG = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 32_000,
    "model_type": "llama",
}  # fmt: skip
NOT = ", and they are not divisible by 16"
BLOCKS_OF_32 = {r.name for r in RECIPES.values() if r.features == 32 and not r.base}


class Timed:
    """A made-up Blackwell GPU on which every recipe of its own runs, and what was timed on it."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.recipes: list[str] = []
        self.terms: list[dict[str, Any]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def measure(self, request: Any, recipe: Recipe, device: object, **terms: Any) -> GemmTimes:
        self.meanwhile()
        self.requests.append(request)
        self.recipes.append(recipe.name)
        self.terms.append(terms | {"device": str(device)})
        return made("llama3-8b")


@pytest.fixture
def timed(tmp_path, monkeypatch) -> Timed:
    found = Timed()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fp8parity.training.hardware.detect", lambda requested: Hardware("b200", "cuda:0", (10, 0)))
    monkeypatch.setattr(Hardware, "current", lambda self: nullcontext())
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="made-up", total_memory=80)
    )
    monkeypatch.setattr(registry, "package_skip_reason", lambda native: None)
    monkeypatch.setattr(registry, "preload", lambda capability: None)
    monkeypatch.setattr("fp8parity.timing.gemms.measure", found.measure)
    return found


def test_the_gpu_is_held_alone_while_it_is_timed(timed, capsys):
    """The suites and the other commands wait at the lock of .parity, so records in a folder below it have the same lock."""

    def meanwhile() -> None:
        [last, *_] = sorted(Path(".parity/.locks").glob("*made-up*/*.lock"))
        with pytest.raises(Timeout):
            FileLock(last).acquire(blocking=False)

    timed.meanwhile = meanwhile
    assert main(["gemm", "llama3-8b", "--recipe", "ao-rowwise", "--pairs", "7", "--main-grads"]) == 0
    [terms] = timed.terms
    assert (timed.recipes, terms["device"], terms["rounds"]) == (["ao-rowwise"], "cuda:0", 7)
    assert terms["terms"].main_grads
    assert [p.name for p in Path(".parity/gemms").glob("*.json")] == [name_of(made("llama3-8b"))]
    assert "te-current on llama3-8b" in capsys.readouterr().out


def model(tmp_path, **changes: object) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | changes))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "args", "words"),
    [
        ({"intermediate_size": 4100}, [], f"gate and up has 8200 output features (N){NOT}"),
        ({}, ["--sequence", "100"], f"qkv has 100 tokens (M){NOT}; change --micro-batch or --sequence"),
        ({"vocab_size": 50_257}, [], f"lm_head has 50257 output features (N){NOT}; --no-head leaves it out"),
    ],
)
def test_named_recipe_that_does_not_fit_is_refused(timed, tmp_path, capsys, changes, args, words):
    assert main(["gemm", model(tmp_path, **changes), *args, "--recipe", "te-current"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err, timed.recipes) == ("", f"fp8parity: te-current: {words}\n", [])


HYBRID = {
    "model_type": "nemotron_h", "layers_block_type": ["mamba", "moe", "attention", "moe"], "mamba_num_heads": 16, "mamba_head_dim": 64,
    "n_groups": 2, "ssm_state_size": 64, "n_routed_experts": 24, "moe_intermediate_size": 256, "num_experts_per_tok": 3, "head_dim": 128,
    "moe_shared_expert_intermediate_size": 512, "num_key_value_heads": 2,
}  # fmt: skip


def test_a_hybrid_model_is_timed_by_its_own_linears(timed, tmp_path, capsys):
    """Experts are groups with the tokens that each has on average; a router is named and not timed."""
    pytest.importorskip("transformers")
    path = model(tmp_path, **HYBRID, num_hidden_layers=4)
    assert main(["gemm", path, "--sequence", "512", "--recipe", "te-current"]) == 0
    assert capsys.readouterr().out.startswith("left out: mixer.gate (24x1024, a router)\n")
    [request] = timed.requests
    found = {g.name: (g.m, g.n, g.k, g.groups, g.count) for g, part in request.linears() if part == "layer"}
    assert found["mixer.experts.up_proj"] == (64, 256, 1024, 24, 2)
    assert found["mixer.q_proj"] == (512, 1024, 1024, 1, 1)
    assert found["mixer.in_proj"] == (512, 2 * 1024 + 2 * 2 * 64 + 16, 1024, 1, 1)
    assert [(g.name, g.n) for g, part in request.linears() if part == "model"] == [("lm_head", 32_000)]


def test_a_hybrid_model_has_no_block(tmp_path, capsys):
    pytest.importorskip("transformers")
    assert main(["block", model(tmp_path, **HYBRID, num_hidden_layers=4), "--recipe", "bf16"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert ": its 4 layers are not all alike (mixer.in_proj runs 1x); only layers of one kind" in line


def test_default_recipes_that_do_not_fit_are_left_out(timed, capsys):
    assert main(["gemm", "64x48x64"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out: ")]
    assert {line.split(": ")[1] for line in lines} == BLOCKS_OF_32
    assert all(line.endswith("has 48 input features (K), and they are not divisible by 32") for line in lines)
    assert timed.recipes and not BLOCKS_OF_32 & set(timed.recipes)
