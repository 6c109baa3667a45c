"""The bytes of a Hugging Face layer outside of GEMMs and attention, and the errors of its predicted time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import held_out
import made_up_gpu as gpu
import pytest
from fp8parity import cli
from fp8parity.recipes import registry
from fp8parity.records.cell import Execution
from fp8parity.workload import shapes
from fp8parity_lab.prediction.calibration import OWN_LAYERS
from fp8parity_lab.prediction.sizes import EagerWorkload
from fp8parity_lab.prediction.step import casts_alone, quantized_shares, step_time
from processes import ROOT
from test_hf_layer import config as config
from test_hf_layer import layer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fp8parity_lab.prediction import hf_traffic  # noqa: E402 - with transformers only

N = 1024


@pytest.mark.parametrize(
    ("work", "eager_bytes"),
    [
        (lambda x: x.float(), [2 * N + 4 * N]),
        (lambda x: x * x, [3 * 2 * N]),
        (lambda x: x + x.new_empty(1).expand(N), [2 * N + 2 + 2 * N]),
        (lambda x: x.view(32, 32).T, []),
        (lambda x: x.view(32, 32) @ x.view(32, 32), []),
        (lambda x: x.sum(), [2 * N + 2]),
        (lambda x: x.zero_(), [2 * N]),
        (lambda x: x.add_(1), [2 * 2 * N]),
        (lambda x: hf_traffic._dropout(x, 0.1), [2 * N + 2 * N + N]),
    ],
    ids=["cast", "product", "an expanded input", "views", "GEMM", "sum", "written only", "in place", "dropout"],
)
def test_bytes_of_an_operation_are_those_of_its_tensors(work, eager_bytes):
    x = torch.empty(N, dtype=torch.bfloat16, device="meta")
    with hf_traffic._Counter() as counter:
        work(x)
    assert counter.eager_bytes == eager_bytes


@pytest.mark.parametrize(("text", "masked"), [("qwen3@0", False), ("gemma3_text@0", True), ("qwen3_moe@0", False)])
def test_traffic_grows_with_the_tokens(text, masked, config):
    short, long = (hf_traffic.traffic(layer(config, text, sequence=n)) for n in (256, 512))
    assert short.masked is long.masked is masked
    assert len(short.eager_bytes) == len(long.eager_bytes) and 1.8 < sum(long.eager_bytes) / sum(short.eager_bytes) <= 2


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_layer_with_another_attention_is_refused(kind, config):
    with pytest.raises(ValueError, match=r"layer 0 \(\w+\) does not use torch's attention"):
        hf_traffic.traffic(layer(config, f"{kind}@0"))


def test_layer_that_the_meta_device_cannot_run_is_refused(config, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x, inplace=False: x * x.sum().item())
    with pytest.raises(ValueError, match="cannot be run on the meta device: .*item"):
        hf_traffic.traffic(layer(config, "qwen3@0"))


def test_activation_of_many_operations_moves_more(config, monkeypatch):
    before = sum(hf_traffic.traffic(layer(config, "qwen3@0")).eager_bytes)
    real = torch.nn.functional.silu
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x, inplace=False: real(x.float() * 1).to(x.dtype))
    assert sum(hf_traffic.traffic(layer(config, "qwen3@0")).eager_bytes) > 1.1 * before


def test_an_eager_layer_takes_a_copy_of_its_bytes_and_unfused_casts():
    found = gpu.made()
    large, small = 10**9, 1
    plain = shapes.get("llama3-8b")
    work, recipe = EagerWorkload(plain.shape, 1, plain.sequence, (large, small)), registry.get("te-current")
    parts = step_time(found, work, recipe, Execution.NATIVE, block=True).parts
    assert parts["norms and activation"] == pytest.approx(large / found.bandwidth + found.launch)
    shares = quantized_shares(work, recipe, 1)
    assert parts["casts"] == pytest.approx(casts_alone(found, work, recipe, shares, joined=False))


def of_layers(file: str, records: str) -> dict[str, float]:
    """The logarithmic errors of layers without experts, by GPU, architecture and recipe."""
    found = held_out.errors(ROOT / "lab/benchmarks" / file, held_out.timings(ROOT / "lab/records" / records))
    return {f"{records} {k}": -math.log1p(e.speed_up) for k, e in found.items() if not held_out.has_experts(k)}


def test_interval_is_that_of_measured_layers():
    errors = of_layers("held_out_layers.json", "h100-held-out.zip")
    errors |= of_layers("held_out_layers_h200.json", "h200-held-out.zip")
    rms = math.sqrt(sum(e**2 for e in errors.values()) / len(errors))
    assert (OWN_LAYERS.n, OWN_LAYERS.models) == (len(errors), len({key.split()[-2] for key in errors}))
    assert OWN_LAYERS.sd == pytest.approx(rms, abs=5e-4)
    assert sum(abs(e) <= OWN_LAYERS.half for e in errors.values()) / len(errors) == pytest.approx(0.9, abs=0.05)


@pytest.fixture
def predicted(config, tmp_path, capsys) -> Callable[..., tuple[int, str, str]]:
    def run(kind: str, *more: str) -> tuple[int, str, str]:
        words = ("--gpu", "h100", "--layer", "0", "--json", str(tmp_path / "out.json"), *more)
        code = cli.main(["predict", str(config(kind)), *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_layer_of_its_own_class_is_predicted(predicted, tmp_path):
    code, out, err = predicted("gemma3_text")
    assert code == 0, err
    first, second, *_ = out.splitlines()
    assert "a mask" in first and "layer 0, eager" in second
    assert f"{OWN_LAYERS.n} measured layers of {OWN_LAYERS.models} architectures" in out
    found = json.loads(Path(tmp_path / "out.json").read_text())
    assert any("a mask" in text for text in found["left_out"])
    assert {row["recipe"] for row in found["predicted"]} == {"te-block", "te-current", "te-delayed"}
    assert {row["execution"] for row in found["predicted"]} == {"native"}
    assert "No measured layer of another model tests te-delayed native here" in out


def test_layers_that_a_recipe_compiles_are_refused(predicted):
    code, _, err = predicted("qwen3", "--recipe", "ao-*")
    assert code == 2 and "ao-tensorwise" in err and "compiled, and --layer predicts eager layers" in err


def test_layer_that_no_recipe_converts_is_refused(predicted, config):
    code, _, err = predicted("gpt2", "--sequence", "32")
    assert code == 2 and "attn.c_attn.weight is multiplied by Conv1D, which no recipe converts" in err
    with pytest.raises(ValueError, match="is multiplied by Conv1D"):
        _ = layer(config, "gpt2@0").outline


def test_a_preset_has_no_layer(capsys):
    assert cli.main(["predict", "llama3-8b", "--gpu", "h100", "--layer", "0"]) == 2
    assert "--layer is for a config.json" in capsys.readouterr().err


def test_layer_far_from_what_was_timed_has_no_interval(predicted, tmp_path):
    code, out, err = predicted("qwen3", "--sequence", "32768", "--recipe", "te-current")
    [row] = json.loads(Path(tmp_path / "out.json").read_text())["predicted"]
    assert (code, row["extrapolated"], row["low"], row["high"]) == (0, True, None, None), err
    assert "unknown" in out
