"""What goes wrong in a quantizer or a GEMM. Each function returns a plant: it changes attributes through pytest's monkeypatch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fp8parity.numerics import emulation, scaling
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.formats import Format
from fp8parity.numerics.scaling import SCALE_RULES, ScaleRule
from fp8parity.numerics.spec import Operand
from fp8parity.recipes import RECIPES
from fp8parity.training.variants import Parts, Variant
from torch import Tensor

Plant = Callable[[pytest.MonkeyPatch], object]
ROUND, TILE, TILES = scaling.round_to_grid, scaling.tile, scaling.quantize_tiles
GEMM, PREPARE = emulation.gemm, emulation.prepare


def rule(name: str, change: Callable[[ScaleRule], ScaleRule]) -> Plant:
    """Another scale rule under the same name."""
    return lambda patch: patch.setitem(SCALE_RULES, name, change(SCALE_RULES[name]))


def times(name: str, factor: float) -> Plant:
    """The scales of a rule, times a factor."""
    return rule(name, lambda f: lambda amax, fmt: factor * f(amax, fmt))


def operand(recipe: str, **operands: Operand) -> Plant:
    """A recipe with other operands."""
    r = RECIPES[recipe]
    return lambda patch: patch.setitem(RECIPES, recipe, replace(r, linear=replace(r.linear, **operands)))


def variant_of(recipe: str, name: str, **fields: Any) -> Plant:
    """A recipe with one operand that differs in some fields."""
    return operand(recipe, **{name: replace(getattr(RECIPES[recipe].linear, name), **fields)})


def method(cls: type, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Plant:
    return lambda patch: patch.setattr(cls, name, change(getattr(cls, name)))


def grid(to_grid: Callable[[Tensor, Format], Tensor], *, stochastic: bool = False) -> Plant:
    """A quantizer that rounds saturated values in this way. Stochastic operands are as before, or with ``stochastic`` they alone change."""

    def changed(x: Tensor, fmt: Format, *, noise: Tensor | None = None) -> Tensor:
        if (noise is not None) != stochastic:
            return ROUND(x, fmt, noise=noise)
        return to_grid(x, fmt)

    return lambda patch: patch.setattr(scaling, "round_to_grid", changed)


def rounding(integer: Callable[[Tensor], Tensor]) -> Plant:
    """A quantizer that turns values, in units of the last bit, into integers in this way."""

    def to_grid(x: Tensor, fmt: Format) -> Tensor:
        clamped = x.clamp(-fmt.max, fmt.max)
        exponent = torch.frexp(clamped).exponent - 1
        unit = torch.exp2((exponent.clamp(min=fmt.emin) - fmt.mantissa).float())
        return integer(clamped / unit) * unit

    return grid(to_grid)


def results(change: Callable[[Tensor], object]) -> Plant:
    """``change`` works in place on the result of every GEMM."""

    def gemm(a: Any, b: Any, *rest: Any) -> Tensor:
        y = GEMM(a, b, *rest)
        change(y)
        return y

    return lambda patch: patch.setattr(emulation, "gemm", gemm)


def cut(y: Tensor) -> None:
    """Results keep six bits after the leading one."""
    y.copy_((y.float().view(torch.int32) & ~0x1FFFF).view(torch.float32))


def flipped(y: Tensor) -> None:
    """One of 500 values has the wrong sign."""
    y.view(-1)[::500] *= -1


def decoded(name: str, factor: float) -> Plant:
    """The operand ``name`` is decoded this many times too large."""

    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        def operand(self: EmulatedLinear, which: str, x: Tensor) -> Any:
            data, outer = real(self, which, x)
            return data, outer * factor if which == name else outer

        return operand

    return method(EmulatedLinear, "operand", change)


def same_noise(count: int = 0, tensors: int = 1) -> Plant:
    """Each tensor gets one of ``count`` noises, in turns: a generator that is seeded too often.

    With a ``count`` of 0, as many ``tensors`` after each other share a new noise."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        uses = Counter[Operand]()

        def prepare(x: Tensor, op: Operand, scale: Any = None, generator: Any = None) -> Any:
            if op.stochastic:
                uses[op] += 1
                generator.manual_seed(uses[op] % count if count else (uses[op] - 1) // tensors)
            return PREPARE(x, op, scale, generator)

        patch.setattr(emulation, "prepare", prepare)

    return plant


def short_accumulator(bits: int) -> Plant:
    """One chain of sums that are truncated to ``bits`` fraction bits, in steps of 32 products."""

    def gemm(a: Any, b: Any, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        (x, sx), (w, sw) = a, b
        total = torch.zeros(x.shape[0], w.shape[0])
        for k in range(0, x.shape[1], 32):
            total += x[:, k : k + 32].float() @ w[:, k : k + 32].float().T
            unit = torch.exp2((torch.frexp(total).exponent - 1 - bits).float())
            total = (total / unit).trunc() * unit
        return (total * (sx * (sw.T if sw.ndim else sw))).to(dtype)

    return lambda patch: patch.setattr(emulation, "gemm", gemm)


def unquantized(patch: pytest.MonkeyPatch) -> None:
    """Silent BF16: the operand is handed on as it came."""
    patch.setattr(EmulatedLinear, "operand", lambda self, name, x: (x, torch.ones(())))


def lost_slice(y: Tensor) -> None:
    """The first rows of the weight gradient of the families' linear are zero."""
    if y.shape == (512, 384):
        y[:16] = 0


def prepared(where: Callable[[Operand], bool], change: Callable[[Tensor, Operand, Any], Any]) -> Plant:
    """Another ``prepare`` for some operands. ``change`` gets the matrix, the operand and the real function."""

    def prepare(x: Tensor, op: Operand, *a: Any, **k: Any) -> Any:
        return change(x, op, lambda m: PREPARE(m, op, *a, **k)) if where(op) else PREPARE(x, op, *a, **k)

    return lambda patch: patch.setattr(emulation, "prepare", prepare)


def transposed(x: Tensor, op: Operand, real: Callable[[Tensor], Any]) -> Any:
    """Row scales taken along the columns: what is left when a transpose does not flip the axis."""
    data, outer, amax = real(x.T.contiguous())
    return data.T.contiguous(), outer, amax


def without_tail(x: Tensor, op: Operand, real: Callable[[Tensor], Any]) -> Any:
    """Rows after the last whole block of 128 hold what was in memory before."""
    data, outer, amax = real(x)
    data = data.clone()
    data[x.shape[0] // 128 * 128 :] = 3.0
    return data, outer, amax


def padded_with(value: float) -> Plant:
    """Tiles are filled up with a value from memory, and it counts for their amax."""

    def tile(x: Tensor, op: Operand) -> Tensor:
        t0, t1 = scaling.tile_shape(op, x.shape)
        pad = (0, -x.shape[1] % t1, 0, -x.shape[0] % t0)
        return TILE(F.pad(x, pad, value=value) if any(pad) else x, op)

    def plant(patch: pytest.MonkeyPatch) -> None:
        for module in (scaling, emulation):
            patch.setattr(module, "tile", tile)

    return plant


def decoded_by(change: Callable[[Tensor], Tensor]) -> Plant:
    """Scales that are stored in a changed way, beside codes that are right."""

    def tiles(*a: Any) -> Any:
        values, scale, decode, *rest = TILES(*a)
        return values, scale, change(decode), *rest

    return lambda patch: patch.setattr(scaling, "quantize_tiles", tiles)


def amax_of_a_part(patch: pytest.MonkeyPatch) -> None:
    """Each of two ranks has half of a tensor, and nobody reduces the amax: both use that of the first half."""

    def tiles(x: Tensor, op: Operand, scale: Tensor | None, noise: Tensor | None) -> Any:
        if op.tile == (0, 0) and scale is None:
            half = x.float()[:, : x.shape[1] // 2].abs().amax(1, keepdim=True)
            scale = SCALE_RULES[op.scale](half, scaling.FORMATS[op.format]).reshape(())
        return TILES(x, op, scale, noise)

    patch.setattr(scaling, "quantize_tiles", tiles)


def racing(share: float) -> Plant:
    """A transposed store that is wrong in a share of the calls, at random: a tile of the matrix holds what was in memory before."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        draw = random.Random(0)
        real = EmulatedLinear.operand

        def operand(self: EmulatedLinear, name: str, x: Tensor) -> Any:
            data, outer = real(self, name, x)
            if name.startswith("wgrad") and draw.random() < share:
                data = data.clone()
                data[:16, :16] = 7.0
            return data, outer

        patch.setattr(EmulatedLinear, "operand", operand)

    return plant


def after(steps: int, change: Callable[[Parts], None]) -> Variant:
    """Return a variant that calls ``change(parts)`` once, after so many steps."""

    def plant(parts: Parts) -> Parts:
        take, taken = parts.optimizer.step, iter(range(1, parts.schedule.steps + 1))

        def counted(clip: float) -> Tensor:
            report = take(clip)
            if next(taken) == steps:
                change(parts)
            return report

        parts.optimizer.step = counted  # type: ignore[method-assign]  # a Variant can only change the optimizer that it is given
        return parts

    return Variant(f"changed after step {steps}", "something changes on the way", plant)
