"""The catalogue against the installed packages, conversion and its refusals."""

import logging
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from fp8parity import recipes
from fp8parity.gate.selection import cell_skip_reason
from fp8parity.recipes import RECIPES, apply, registry
from fp8parity.recipes.adapters import torchao
from fp8parity.recipes.conversion import studied
from fp8parity.recipes.registry import executions, matrix, platforms, skip_reason
from fp8parity.records.cell import Execution
from fp8parity.training.hardware import Hardware, detect
from fp8parity.workload import models
from fp8parity.workload.presets import presets
from sessions import cell
from torch import nn

TORCHAO = [r for r in RECIPES.values() if r.adapter == "torchao" and not r.base]


def tiny() -> models.Transformer:
    return models.build(presets()["tiny"].model, 0)


@pytest.mark.parametrize("recipe", TORCHAO, ids=lambda r: r.name)
def test_torchao_defaults_equal_the_catalogue(recipe):
    assert torchao.default_spec(recipe) == recipe.linear


def test_recipe_that_converts_nothing_is_an_error():
    with pytest.raises(ValueError, match="ao-tensorwise converted no module"):
        apply(tiny(), replace(RECIPES["ao-tensorwise"], filters=("",)), Execution.EMULATED, tokens=512)


def test_another_recipe_than_asked_is_an_error():
    """What torchtitan's and AutoModel's emulated rowwise was: tensorwise."""
    with pytest.raises(ValueError, match="converted to another recipe"):
        apply(tiny(), replace(RECIPES["ao-rowwise"], vendor="tensorwise"), Execution.EMULATED, tokens=512)
    with pytest.raises(ValueError, match="does another recipe"):
        apply(tiny(), replace(RECIPES["ao-mxfp8"], vendor="mxfp8_floor"), Execution.EMULATED, tokens=512)


@pytest.mark.parametrize(
    ("recipe", "features", "tokens", "message"),
    [
        ("te-current", 24, 64, "linear.out_features = 24 is not divisible by 16"),
        ("te-mxfp8", 48, 64, "linear.out_features = 48 is not divisible by 32"),
        ("te-delayed", 64, 40, "40 tokens a microbatch are not divisible by 16"),
    ],
)
def test_dimensions(recipe, features, tokens, message):
    model = nn.Sequential()
    model.add_module("linear", nn.Linear(64, features, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=message):
        apply(model, RECIPES[recipe], Execution.EMULATED, tokens=tokens)


@pytest.mark.parametrize(
    ("recipe", "option", "message"),
    [
        ("ao-tensorwise", "enable_fsdp_float8_all_gather", ""),
        ("ao-rowwise", "enable_fsdp_float8_all_gather", "works with the tensorwise recipe only"),
        ("ao-tensorwise", "fsdp_all_gather", "unknown torchao option 'fsdp_all_gather'"),
    ],
)
def test_torchao_options_are_set_or_refused(recipe, option, message):
    chosen = replace(RECIPES[recipe], options=((option, True),))
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        assert getattr(torchao.config_for(chosen, emulate=True), option)


def test_pattern_matches_recipes_without_variants():
    def names(*patterns, among=None):
        return [r.name for r in registry.matching(patterns, among)]

    assert names("te-c*") == ["te-current"]
    assert names("te-current-pow2", "te-cur*", "te-current") == ["te-current-pow2", "te-current"]
    assert names("te-*", among=["ao-rowwise", "te-current-pow2"]) == ["te-current-pow2"]
    assert names("bf16", among=["te-current"]) == ["bf16"]
    with pytest.raises(ValueError, match="^unknown recipe 'te-d.*': did you mean te-delayed"):
        names("te-dellayed*", among=["te-current"])


@pytest.mark.parametrize(
    ("recipe", "execution", "markers"),
    [
        ("te-current", "native", ["h100", "b200"]),
        ("te-mxfp8", "emulated", ["cpu", "h100"]),
        ("te-block", "native", ["h100"]),
        ("bf16", "native", ["cpu", "h100", "b200"]),
    ],
)
def test_markers_are_the_platforms_of_a_cell(recipe, execution, markers):
    assert platforms(cell(recipe, execution, "tiny")) == markers


@pytest.mark.parametrize(
    ("recipe", "execution", "capability", "why"),
    [
        ("te-current", "native", None, "needs a GPU of sm_90; this machine has none"),
        ("te-mxfp8", "native", (9, 0), "needs sm_100 and below sm_120; this GPU is sm_90"),
        ("te-block", "native", (10, 0), "needs sm_90 and below sm_100; this GPU is sm_100"),
        ("te-current", "native", (9, 0), "needs the package transformer_engine, which is not installed"),
        ("ao-tensorwise", "fused", (9, 0), "torchao has no fused layer"),
        ("te-mxfp8-head", "native", (10, 0), "has no native kernels"),
        ("ao-tensorwise", "native", (9, 0), None),
        ("bf16", "native", None, None),
    ],
)
def test_skip_reason_names_what_is_missing(recipe, execution, capability, why):
    assert skip_reason(RECIPES[recipe], Execution(execution), capability) == why


def test_each_recipe_runs_once_a_machine(monkeypatch):
    """--execution auto: one execution of every recipe is not skipped, and its fused form in addition to native kernels."""
    monkeypatch.setattr(registry, "installed", lambda package: True)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "99")
    for hardware in (Hardware("cpu", "cpu", None), Hardware("h100", "cuda", (9, 0)), Hardware("b200", "cuda", (10, 0))):
        running = [c for c in matrix(["tiny"]) if cell_skip_reason(c, hardware, None) is None]
        assert sorted(c.recipe for c in running if c.execution != "fused") == sorted(RECIPES), hardware
        native = {
            c.recipe for c in running if c.execution == "native" and Execution.FUSED in executions(RECIPES[c.recipe])
        }
        assert {c.recipe for c in running if c.execution == "fused"} == native, hardware


def test_ids_do_not_depend_on_the_machine():
    ids = [c.id for c in matrix(presets())]
    assert len(ids) == len(set(ids)) and "te-current-tiny-emulated" in ids
    assert executions(RECIPES["bf16"]) == ("native",)
    assert detect("cpu") == Hardware("cpu", "cpu", None, "cpu")


@pytest.mark.parametrize(
    ("version", "why"),
    [("0.17.0", "needs torchao 0.18 or later; 0.17.0 is installed"), ("0.18.0", None), ("1.2", None)],
)
def test_package_too_old_for_a_recipe_is_a_reason(monkeypatch, version, why):
    """torchao 0.17.0 has no MXFP8Linear: the cell says so instead of failing on an import."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert skip_reason(recipes.get("ao-mxfp8"), Execution.EMULATED, None) == why
    assert skip_reason(recipes.get("ao-rowwise"), Execution.EMULATED, None) is None


def test_tied_head_is_not_studied():
    """Its gradient holds that of the embedding, and has the embedding's name."""
    tied, plain = (models.build(replace(presets()["micro"].model, tied=tied), 0) for tied in (True, False))
    with_head = RECIPES["te-mxfp8-head"]
    assert studied(tied, with_head) == studied(tied, RECIPES["te-mxfp8"])
    assert studied(plain, with_head) == [*studied(plain, RECIPES["te-mxfp8"]), "lm_head.weight"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Failed to load /x/torchao/_C_mxfp8.cpython-39-x86_64-linux-gnu.so: no such library", False),
        ("Failed to load /x/torchao/_C_cutlass_90a.abi3.so: undefined symbol", True),
        ("<enum 'KernelPreference'> is an Enum subclass and is now natively supported", False),
    ],
)
def test_import_noise_of_other_machines_is_dropped(text, shown, monkeypatch, caplog):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    registry.adapter("torchao")
    logger = logging.getLogger("torchao" if "torchao" in text else "torch.utils._pytree")
    logger.addHandler(caplog.handler)
    logger.warning(text)
    logger.removeHandler(caplog.handler)
    assert (text in caplog.text) == shown
