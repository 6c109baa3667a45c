"""Trace a step: planted faults are named, sound steps are not, and what cannot be said is said."""

from __future__ import annotations

import dataclasses
import json
from itertools import cycle
from typing import Any

import own_models
import pytest
from faults import arm, moments, places
from faults.plants import Plant
from fp8parity import cli
from fp8parity.numerics import emulation
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Execution, Mode
from fp8parity.training import hardware
from fp8parity.workload import hf_tiny
from fp8parity.workload.presets import presets
from fp8parity_lab.cli import trace as trace_command
from fp8parity_lab.tracing import step
from fp8parity_lab.tracing.step import Trace
from torch import nn
from traced import ARM, EVERYWHERE, MODEL, MOMENTS, OUT, PLACES, UNSEEN, over, planted, traced


@pytest.fixture(autouse=True, scope="module")
def quick():
    """No garbage collection after each step, and no compilation of quantizers: their bits are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "reset_state", lambda: None)
        patch.setattr(emulation, "compiles", lambda: False)
        emulation.kernel.cache_clear()
        yield
    emulation.kernel.cache_clear()


@pytest.mark.parametrize(("name", "first"), (ARM | MODEL | PLACES | MOMENTS | EVERYWHERE).items())
def test_planted_fault_is_the_first_operation_over_its_budget(name, first, monkeypatch):
    assert over(name, monkeypatch)[:1] == [first]


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSEEN)
def test_fault_that_a_trace_cannot_see_gives_no_other_name(name, monkeypatch):
    assert over(name, monkeypatch) == []


def changed(change: places.Change) -> Plant:
    """A change of the converted model."""
    return places.converted(change)


def late_cosine(rotations: Any) -> Any:
    """Positions have the cosine of the one before."""
    cosine, sine = rotations
    return cosine.roll(1, 1), sine


OWN = {
    "a gelu gradient": (arm.of_gradient("h.0.ln_1.weight", lambda g: g * 1.02), "gradient of weight of h.0.ln_1"),
    "a norm": (arm.of_object("ln_f", "eps", lambda _: 1e-2), "output of ln_f"),
    "a mask": (arm.of_object("h.1", "causal", lambda _: False), "input of h.1.proj"),
}
LAYER = "model.layers.1"
HUGGING_FACE = {
    "softmax": (
        arm.of_object(f"{LAYER}.self_attn", "scaling", lambda a: a.scaling * 1.1),
        f"input of {LAYER}.self_attn.o_proj",
    ),
    "positions": (arm.of_output("model.rotary_emb", late_cosine), "output of model.rotary_emb"),
    "1%": (
        changed(moments.results(f"{LAYER}.mlp.down_proj", lambda y: y * 1.01)),
        f"fprop of {LAYER}.mlp.down_proj",
    ),
    "a gradient": (arm.of_gradient("lm_head.weight", lambda g: g * 1.02), "wgrad of lm_head"),
}


@pytest.mark.parametrize(
    ("name", "plant", "first"),
    [pytest.param("my_models", *case, id=f"GPT-2, {name}") for name, case in OWN.items()]
    + [pytest.param("my_llama", *case, id=f"Hugging Face, {name}") for name, case in HUGGING_FACE.items()],
)
def test_planted_fault_of_an_own_model_is_named(name, plant, first, monkeypatch):
    assert planted(plant, "te-current", monkeypatch, own_models.own(name))[:1] == [first]


SOUND = [
    *((None, recipe, 0) for recipe in ("te-delayed", "te-current", "te-mxfp8", "te-nvfp4")),
    *((None, recipe, 2) for recipe in ("te-block", "ao-tensorwise", "ao-rowwise", "ao-mxfp8", "te-mxfp8-head")),
    *(("my_models", recipe, 1) for recipe in ("te-delayed", "te-nvfp4", "te-mxfp8-head")),
    *(("my_llama", recipe, 1) for recipe in ("te-current", "te-nvfp4", "ao-rowwise-gw-hp")),
    *(("my_vit", recipe, 1) for recipe in ("te-current", "te-nvfp4", "te-current-backward-dequantized")),
]


def assert_sound(found: Trace) -> None:
    assert (found.over, found.unmatched, found.far) == ((), (), ())
    assert len(found.operations) > 90


@pytest.mark.parametrize(("name", "recipe", "seed"), SOUND)
def test_sound_step_has_no_operation_over_its_budget(name, recipe, seed):
    assert_sound(traced(recipe, own_models.own(name) if name else None, seed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recipe"),
    list(zip(hf_tiny.NAMES, cycle(["te-delayed", "te-mxfp8", "te-nvfp4", "ao-rowwise"]), strict=False)),
)
def test_sound_step_of_a_hugging_face_model_has_none_over_its_budget(name, recipe):
    [made] = hf_tiny.named(f"hf:{name}")
    assert_sound(traced(recipe, made))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["te-mxfp8", "ao-rowwise"])
def test_compiled_sound_step_has_no_operation_over_its_budget(recipe):
    assert_sound(traced(recipe, mode=Mode.COMPILED))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask off by one", "E5M2 for E4M3 in the input of one linear"])
def test_fault_of_a_compiled_step_is_named(name, monkeypatch):
    assert over(name, monkeypatch, Mode.COMPILED)[:1] == [(ARM | MOMENTS)[name]]


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["trace", *words, "--device", "cpu"])
    return code, *capsys.readouterr()


def test_command_names_the_fault_with_its_place_and_repeats(capsys, monkeypatch, tmp_path):
    changed(places.not_quantized(OUT))(monkeypatch)
    code, out, _ = command(capsys, "te-current", "--model", "micro", "--json", str(tmp_path / "found.json"))
    first, place, size, cause, more, _, *table = out.splitlines()
    assert code == 1 and first.endswith(f"first over its budget is fprop of {OUT} (Linear).")
    assert place == "It is operation 15 of 134, in the forward pass: less noise than its formats give."
    assert size.startswith("On the same inputs it is 55.") and "its formats give 28." in size
    assert cause == "This is what both operands in bf16 gives." and more == "Others over their budget: 2."
    assert [line.split()[0] for line in table if f"of {OUT}" in line] == ["fprop", "dgrad", "wgrad"]
    assert out.endswith("repeat: fp8parity trace te-current --model micro --seed 0 --mode eager --device cpu\n")
    over = [o for o in json.loads((tmp_path / "found.json").read_text())["operations"] if o["over"]]
    assert [(o["kind"], o["module"]) for o in over] == [(gemm, OUT) for gemm in ("fprop", "dgrad", "wgrad")]


def test_command_passes_a_sound_step(capsys):
    code, out, _ = command(capsys, "te-mxfp8", "--model", "micro", "--seed", "1")
    first, *_ = out.splitlines()
    assert (code, first) == (0, "te-mxfp8 (emulated, eager) on micro, seed 1: 134 operations, none over its budget.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bf16",), "bf16 quantizes nothing"),
        (("te-current", "--model", "mikro"), "mikro"),
        (("te-curent",), "te-current"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(words, message, capsys):
    code, out, err = command(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


def skips(module: Any) -> None:
    """The second block is not called as a module."""
    first, second = module.layers
    module.layers, norm = nn.ModuleList([first]), module.norm.forward
    module.norm.forward = lambda x: norm(second.forward(x, module.rope(x.shape[1], x.device)))


def test_module_without_a_counterpart_is_not_judged(monkeypatch):
    changed(skips)(monkeypatch)
    found = traced("te-current")
    assert "layers.1" in found.unmatched and "layers.0" not in found.unmatched


def test_grouped_gemm_is_held_as_a_whole():
    of = presets()["tiny-moe"]
    work = of.model, RECIPES["ao-mxfp8"], Execution.EMULATED, dataclasses.replace(of.schedule, rows=1), of.corpus
    found = step.trace(*work, device=own_models.CPU)
    assert (found.over, found.far, found.unmatched) == ((), (), ()) and "layers.1.mlp.down_proj" in found.whole
    assert {"layers.0.mlp.router", "layers.1.mlp.down_proj.7"} < {o.module for o in found.operations}


def test_step_that_is_not_finite_in_bf16_is_refused():
    own = own_models.small(loss=lambda m, x, y: 1 + (0 * m(x).float()).sqrt().mean())
    with pytest.raises(
        ValueError, match="pair: the step in BF16 is not finite, first in gradient of output of the model"
    ):
        traced("te-current", dataclasses.replace(own, keep=("unembed",)))


def test_what_cannot_be_said_is_said():
    """Noise as large as the signal, and an output further away than noise explains."""
    found = traced("te-current")
    blind = dataclasses.replace(found.operations[0], lowest=-3.0)
    lines = trace_command.sentences(dataclasses.replace(found, operations=(blind, *found.operations[1:])))
    assert lines[-1] == f"Cannot say for {blind.name}: as much noise as signal."
    far = dataclasses.replace(found.distances[-1], found=12.0)
    found = dataclasses.replace(found, distances=(*found.distances[:-1], far))
    assert found.far == (far,)
    assert trace_command.sentences(found)[-1].startswith("Cannot say which operation, but the output")
