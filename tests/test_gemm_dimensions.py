"""A dimension that a recipe cannot take: ``fp8parity gemm`` refuses it, or leaves the recipe out, before anything is timed. No GPU."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from fp8parity.cli import main
from fp8parity.recipes import registry
from fp8parity.recipes.recipe import misfit
from fp8parity.recipes.registry import RECIPES
from fp8parity.training.hardware import Hardware
from fp8parity.workload.shapes import GemmShape
from gemm_records import made

CONFIG = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 32_000,
    "model_type": "llama",
}  # fmt: skip
NOT = ", and they are not divisible by 16"
BLOCKS_OF_32 = {r.name for r in RECIPES.values() if r.features == 32 and not r.base}


@pytest.mark.parametrize(
    ("shape", "recipe", "found"),
    [
        (GemmShape("up", 64, 96, 32), "te-current", None),
        (
            GemmShape("up", 72, 100, 33),
            "te-current",
            "te-current: up has 72 tokens (M), and they are not divisible by 16; change --micro-batch or --sequence",
        ),
        (
            GemmShape("up", 64, 100, 33),
            "te-current",
            "te-current: up has 100 output features (N), and they are not divisible by 16",
        ),
        (
            GemmShape("up", 64, 96, 40),
            "te-current",
            "te-current: up has 40 input features (K), and they are not divisible by 16",
        ),
        (
            GemmShape("up", 48, 96, 32),
            "te-mxfp8",
            "te-mxfp8: up has 48 tokens (M), and they are not divisible by 32; change --micro-batch or --sequence",
        ),
        (GemmShape("up", 7, 7, 7), "bf16", None),
    ],
)
def test_first_unfit_dimension_is_found(shape, recipe, found):
    unfit = misfit(RECIPES[recipe], [GemmShape("near", 64, 64, 64), shape])
    assert (unfit and unfit.remedy) == found


@pytest.fixture
def timed(tmp_path, monkeypatch) -> list[str]:
    """The recipes that were timed, on a made-up Blackwell GPU on which every recipe of its own runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fp8parity.training.hardware.detect", lambda requested: Hardware("b200", "cuda:0", (10, 0)))
    monkeypatch.setattr(Hardware, "current", lambda self: nullcontext())
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="made-up", total_memory=80)
    )
    monkeypatch.setattr(registry, "package_skip_reason", lambda native: None)
    monkeypatch.setattr(registry, "preload", lambda capability: None)
    seen: list[str] = []

    def measured(request, recipe, device, **terms):
        seen.append(recipe.name)
        return made("llama3-8b")

    monkeypatch.setattr("fp8parity.timing.gemms.measure", measured)
    return seen


def model(tmp_path, **changes: int) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | changes))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "args", "words"),
    [
        ({"intermediate_size": 4100}, [], f"gate and up has 8200 output features (N){NOT}"),
        ({"num_key_value_heads": 1, "head_dim": 20}, ["--separate"], f"k and v has 20 output features (N){NOT}"),
        ({}, ["--sequence", "100"], f"qkv has 100 tokens (M){NOT}; change --micro-batch or --sequence"),
        ({"vocab_size": 50_257}, [], f"lm_head has 50257 output features (N){NOT}; --no-head leaves it out"),
    ],
)
def test_named_recipe_that_does_not_fit_is_refused(timed, tmp_path, capsys, changes, args, words):
    assert main(["gemm", model(tmp_path, **changes), *args, "--recipe", "te-current"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err, timed) == ("", f"fp8parity: te-current: {words}\n", [])


def test_default_recipes_that_do_not_fit_are_left_out(timed, capsys):
    assert main(["gemm", "64x48x64"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out: ")]
    assert {line.split(": ")[1] for line in lines} == BLOCKS_OF_32
    assert all(line.endswith("has 48 input features (K), and they are not divisible by 32") for line in lines)
    assert timed and not BLOCKS_OF_32 & set(timed)


def test_no_default_recipe_that_fits_is_an_error(timed, capsys):
    assert main(["gemm", "64x40x64"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("fp8parity: no recipe that runs here can take these GEMMs: ")
    assert (said.out, said.err.count("\n"), timed) == ("", 1, [])
