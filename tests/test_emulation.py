"""The emulated linear: exact GEMMs, compiled equals eager, TE's state semantics."""

from dataclasses import replace

import pytest
import torch
from fp8parity.numerics import emulation, prng
from fp8parity.numerics.emulation import DelayedScale, EmulatedLinear, kernel, microbatch, prepare, recompute_contexts
from fp8parity.numerics.operands import sqnr, uneven
from fp8parity.numerics.scaling import gemm_tiles, quantize, tile
from fp8parity.numerics.spec import Operand
from fp8parity.recipes import RECIPES
from hypothesis import given, settings
from hypothesis import strategies as st
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


def one_of_each() -> list[Operand]:
    """Few operands that have between them every value of every field: a kernel takes seconds to compile."""
    kept, seen = list[Operand](), set[tuple[str, object]]()
    while new := max((set(vars(op).items()) - seen for op in OPERANDS), key=len):
        kept.append(next(op for op in OPERANDS if set(vars(op).items()) - seen == new))
        seen |= new
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("op", one_of_each(), ids=str)
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


def test_delayed_scale_follows_the_amax_of_earlier_steps(eager):
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


def test_evaluation_keeps_the_scale_and_its_amax_counts_in_the_next_update(eager):
    """As in TE 2.20.2: ``autocast_exit`` (pytorch/quantization.py) updates if ``torch.is_grad_enabled()``, a cast takes
    ``atomicMaxFloat`` of row 0, and only ``_update_amax_history`` clears that row."""
    layer = linear("te-delayed")
    state, largest = delayed(layer, "x"), float(inputs().abs().max())
    layer(inputs())
    used = state.scale.clone()
    with torch.no_grad():
        for factor in (8.0, 2.0):
            layer(inputs() * factor)
    assert torch.equal(state.scale, used)
    assert (float(state.amax_history[0]), int((state.amax_history > 0).sum())) == (8 * largest, 2)
    layer(inputs())
    assert float(state.scale) == pytest.approx(448 / (8 * largest), rel=1e-6)
    assert state.amax_history[0] == 0


def test_recompute_uses_the_first_passes_scales_and_counts_once(eager):
    plain, recomputed = linear("te-delayed"), linear("te-delayed")
    for step in range(3):
        x, dy = inputs(stream=step + 1), inputs(64, 96, step + 9)
        plain(x.clone().requires_grad_()).backward(dy)
        y = checkpoint(recomputed, x.clone().requires_grad_(), use_reentrant=False, context_fn=recompute_contexts)
        y.backward(dy)
        assert torch.equal(some(plain.weight.grad), some(recomputed.weight.grad))
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffer, recomputed.get_buffer(name)), name


def test_first_microbatch_refreshes_cached_weights(eager):
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


def test_weights_of_a_delayed_layer_survive_a_checkpoint(eager):
    layer = linear("te-delayed")
    layer(inputs() * 8)
    other = linear("te-delayed")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(delayed(other, "x").scale, delayed(layer, "x").scale)
    assert torch.equal(delayed(other, "w").amax_history, delayed(layer, "w").amax_history)


def test_fp32_scales_of_fine_tiles_run_in_fp32(eager):
    op = Operand("e4m3", (1, 32), "te-fp32")
    data, _, _ = prepare(inputs(), op)
    assert data.dtype is torch.float32
    assert torch.equal(data, quantize(inputs(), op).dequantize())


SIZES = st.sampled_from([1, 15, 16, 31, 48, 127, 128, 129, 144, 272])
"""Sizes around tiles of 32 and of 128, and sizes that no kernel takes: the emulation pads its tiles."""
SPECS = {
    r.linear: r.name for r in RECIPES.values() if r.linear.quantized and not any(op.stochastic for _, op in r.linear)
}
"""Recipes without chance, one for each spec."""
ROUNDING = 2**-7
"""A result is rounded to BF16, and once more where an FP32 scale of the whole tensor follows: each rounding is at most 2**-8."""


def worst_error(recipe: str, m: int, k: int, n: int, seed: int) -> dict[str, float]:
    """The largest error of each GEMM, divided by the largest result."""
    generator = torch.Generator().manual_seed(seed)
    x, w, dy = (torch.randn(s, generator=generator).bfloat16() for s in ((m, k), (n, k), (m, n)))
    linear = nn.Linear(k, n, bias=False, dtype=torch.bfloat16)
    linear.weight.data.copy_(w)
    spec = RECIPES[recipe].linear
    leaf = x.clone().requires_grad_()
    y = EmulatedLinear(linear, spec)(leaf)
    y.backward(dy)

    def value(name: str, t: torch.Tensor) -> torch.Tensor:
        """What an operand stands for, as rows of the inner dimension."""
        op = getattr(spec, name)
        if op.dequantized:  # BF16 of what fprop read of the same tensor
            return value("fprop_w" if name == "dgrad_w" else "fprop_x", t.T).bfloat16().float().T
        cold = torch.tensor(1.0) if op.history else None  # the scale of a first use
        return quantize(t.contiguous(), op, scale=cold).dequantize() if op.quantized else t.float()

    def product(a: str, left: torch.Tensor, b: str, right: torch.Tensor) -> torch.Tensor:
        return value(a, left).double() @ value(b, right).double().T

    wanted = {
        "fprop": product("fprop_x", x, "fprop_w", w),
        "dgrad": product("dgrad_dy", dy, "dgrad_w", w.T),
        "wgrad": product("wgrad_dy", dy.T, "wgrad_x", x.T),
    }
    found = {"fprop": y.detach(), "dgrad": some(leaf.grad), "wgrad": some(linear.weight.grad)}
    return {g: float((found[g].double() - wanted[g]).abs().max() / wanted[g].abs().max()) for g in wanted}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("recipe", SPECS.values())
@settings(max_examples=4, deadline=None)
@given(m=SIZES, k=SIZES, n=SIZES, seed=st.integers(0, 2**31))
def test_each_gemm_is_the_product_of_its_dequantized_operands(recipe, m, k, n, seed):
    assert max(worst_error(recipe, m, k, n, seed).values()) < ROUNDING


TILES = [(0, 0), (1, 0), (0, 1), *((a, b) for n in (16, 32, 64, 128) for a, b in ((1, n), (n, 1), (n, n)))]


@pytest.mark.parametrize("operand", OPERANDS, ids=str)
def test_uneven_operands_show_every_other_tile(operand):
    """Arithmetic: a tile of another shape flushes other values. The least difference is 14.7 dB, and equal codes have none."""
    operand = replace(operand, stochastic=False, hadamard=False, history=0)
    exponents = [uneven(n, 10 if operand.scale == "nvfp4" else 34) for n in (256, 384)]
    sizes = torch.exp2((exponents[0][:, None] + exponents[1]).double())
    x = (torch.randn(256, 384, generator=torch.Generator().manual_seed(0)) * sizes).bfloat16()

    def quantized(tile):
        return quantize(x, replace(operand, tile=tile)).dequantize() / sizes

    found = [sqnr(quantized(operand.tile), quantized(tile)) for tile in TILES if tile != operand.tile]
    assert max(found) < 15
