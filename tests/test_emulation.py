"""The emulated linear: exact GEMMs, compiled equals eager, TE's state semantics."""

import pytest
import torch
from fp8parity.numerics import emulation, prng
from fp8parity.numerics.emulation import DelayedScale, EmulatedLinear, kernel, microbatch, prepare, recompute_contexts
from fp8parity.numerics.scaling import gemm_tiles, quantize, tile
from fp8parity.numerics.spec import Operand
from fp8parity.recipes import RECIPES
from narrowed import some
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

QUANTIZED = [r for r in RECIPES.values() if r.linear.quantized]


def linear(recipe: str, n: int = 96, k: int = 64) -> EmulatedLinear:
    module = nn.Linear(k, n, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        module.weight.copy_(prng.normal(3, n * k).view(n, k))
    return EmulatedLinear(module, RECIPES[recipe].linear, torch.Generator().manual_seed(0))


def delayed(layer: EmulatedLinear, tensor: str) -> DelayedScale:
    state = layer.states[tensor]
    assert isinstance(state, DelayedScale)
    return state


def inputs(rows: int = 64, cols: int = 64, stream: int = 1) -> torch.Tensor:
    return prng.normal(stream, rows * cols).view(rows, cols).bfloat16()


OPERANDS = sorted({op for r in QUANTIZED for _, op in r.linear if op.quantized}, key=str)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERANDS, ids=str)
def test_compiled_kernels_give_the_eager_bits(op):
    if not emulation.compiles():
        pytest.skip("no C++ compiler here: the emulation runs eager")
    for shape in ((64, 128), (96, 160)):
        tiles = tile(inputs(*shape), op)
        noise = torch.rand(tiles.shape, generator=torch.Generator().manual_seed(1)) if op.stochastic else None
        scale = torch.tensor(50.0) if op.history else None
        for a, b in zip(kernel(op)(tiles, scale, noise), gemm_tiles(tiles, op, scale, noise), strict=True):
            assert torch.equal(a.reshape(-1), b.reshape(-1))
    versions = counters["stats"]["unique_graphs"]
    kernel(op)(tile(inputs(192, 160)[:96], op), scale, noise)
    assert counters["stats"]["unique_graphs"] == versions, "rows of a larger matrix were compiled anew"


@pytest.mark.parametrize("recipe", [r.name for r in QUANTIZED if not any(op.stochastic for _, op in r.linear)])
def test_three_gemms_are_those_of_the_dequantized_operands(recipe, eager):
    """FP64 products of what the quantizer gives, compared with the layer: only accumulation and BF16 output differ."""
    layer, x, dy = linear(recipe), inputs(), inputs(64, 96, 2) * 1e-3
    w = layer.weight.detach()
    spec = RECIPES[recipe].linear
    cold = torch.tensor(1.0)

    def value(name: str, m: torch.Tensor) -> torch.Tensor:
        op: Operand = getattr(spec, name)
        if op.dequantized:
            forward = getattr(spec, {"dgrad_w": "fprop_w", "wgrad_x": "fprop_x"}[name])
            return quantize(m.T.contiguous(), forward).dequantize().bfloat16().double().T
        if not op.quantized:
            return m.double()
        return quantize(m.contiguous(), op, scale=cold if op.history else None).dequantize().double()

    a = x.clone().requires_grad_()
    y = layer(a)
    y.backward(dy)
    wanted = {
        "y": (y, value("fprop_x", x) @ value("fprop_w", w).T),
        "dx": (a.grad, value("dgrad_dy", dy) @ value("dgrad_w", w.T).T),
        "dw": (layer.weight.grad, value("wgrad_dy", dy.T) @ value("wgrad_x", x.T).T),
    }
    for name, (got, exact) in wanted.items():
        error = float((got.detach().double() - exact).norm() / exact.norm())
        assert error < 4e-3, f"{name}: {error}"  # two BF16 roundings: 2 x 2**-9 at most, half of it in the mean


def test_delayed_scale_follows_the_amax_of_earlier_steps():
    layer = linear("te-delayed")
    state = delayed(layer, "x")
    for step, factor in enumerate((1.0, 4.0, 2.0)):
        used = float(state.scale)
        x = inputs() * factor
        layer(x)
        largest = float(inputs().abs().max()) * max((1.0, 4.0, 2.0)[:step], default=0)
        assert used == pytest.approx(448 / largest if largest else 1.0, rel=1e-6)
    assert state.amax_history[0] == 0
    assert int((state.amax_history > 0).sum()) == 3


def test_a_spike_saturates_once_and_is_remembered():
    layer = linear("te-delayed")
    layer(inputs())
    before = float(delayed(layer, "x").scale)
    layer(inputs() * 64)
    assert float(delayed(layer, "x").scale) == pytest.approx(before / 64, rel=1e-6)


def test_recompute_uses_the_first_passes_scales_and_counts_once():
    plain, recomputed = linear("te-delayed"), linear("te-delayed")
    for step in range(3):
        x, dy = inputs(stream=step + 1), inputs(64, 96, step + 9)
        plain(x.clone().requires_grad_()).backward(dy)
        y = checkpoint(recomputed, x.clone().requires_grad_(), use_reentrant=False, context_fn=recompute_contexts)
        y.backward(dy)
        assert torch.equal(some(plain.weight.grad), some(recomputed.weight.grad))
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffer, recomputed.get_buffer(name)), name


def test_cached_weights_are_refreshed_by_the_first_microbatch_only():
    layer = linear("te-current")
    x = inputs()
    with microbatch(first=True):
        y = layer(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    with microbatch(first=False):
        assert torch.equal(layer(x), y)
    with microbatch(first=True):
        assert torch.equal(layer(x), y * 2)


def test_weights_of_a_delayed_layer_survive_a_checkpoint():
    layer = linear("te-delayed")
    layer(inputs() * 8)
    other = linear("te-delayed")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(delayed(other, "x").scale, delayed(layer, "x").scale)
    assert torch.equal(delayed(other, "w").amax_history, delayed(layer, "w").amax_history)


def test_fp32_scales_of_fine_tiles_run_in_fp32(eager):
    """``e4m3 1x128 te-block-fp32`` is compiled above, and takes the same way."""
    op = Operand("e4m3", (1, 32), "te-fp32")
    data, _, _ = prepare(inputs(), op)
    assert data.dtype is torch.float32
    assert torch.equal(data, quantize(inputs(), op).dequantize())


def test_an_exception_leaves_no_phase_behind():
    with pytest.raises(RuntimeError, match="inside"), microbatch(first=True):
        raise RuntimeError("inside")
    assert emulation._phase.first_microbatch is None
