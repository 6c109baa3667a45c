"""The checks for what needs a GPU, on the CPU: with sound arithmetic they are green, and each planted fault is found by its metric."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from faults.plants import short_accumulator
from fp8parity import checks
from fp8parity.checks import Check, accumulation, large, short_run, state
from fp8parity.numerics import emulation
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.operands import exact_operands, inexact_operand
from fp8parity.numerics.scaling import delayed_scale, quantize, tile
from fp8parity.numerics.spec import GEMMS
from fp8parity.recipes import RECIPES
from fp8parity.records.schema import Measurement
from sessions import cell, verdict

from conftest import measured, subject

QUANTIZED = [r.name for r in RECIPES.values() if r.linear.quantized]


def failing(verdict) -> set[str]:
    return {place for place, _ in verdict.lines if " @ " in place}


def test_check_has_one_thread_and_restores_the_count(session, monkeypatch):
    seen = []

    def measure(spec):
        seen.append(torch.get_num_threads())
        return [Measurement(metric="m", where="w", value=1.0)], []

    monkeypatch.setitem(checks.CHECKS, "gemm", Check("gemm", measure))
    torch.set_num_threads(3)
    record = session.measure("gemm", cell("te-current", "emulated"))
    assert (seen, record.provenance.threads, torch.get_num_threads()) == ([1], 1, 3)


# Accumulation


@pytest.mark.parametrize("recipe", QUANTIZED)
@pytest.mark.parametrize("signed", [False, True])
def test_operands_are_exact_unless_refused(recipe, signed):
    linear = RECIPES[recipe].linear
    exact = True
    for gemm in GEMMS:
        ops = exact_operands(gemm, 512, signed=signed)
        matrices = {
            "fprop_x": ops.x,
            "fprop_w": ops.w,
            "dgrad_dy": ops.dy,
            "dgrad_w": ops.w.T,
            "wgrad_dy": ops.dy.T,
            "wgrad_x": ops.x.T,
        }
        for name, op in linear:
            if op.quantized:
                matrix = matrices[name].contiguous()
                amax = matrix.abs().amax().float()
                scale = delayed_scale(amax, amax, emulation.FORMATS[op.format]) if op.history else None
                noise = torch.zeros(tile(matrix, op).shape) if op.stochastic else None
                exact &= torch.equal(quantize(matrix, op, scale=scale, noise=noise).dequantize(), matrix.float())
    assert exact == (inexact_operand(RECIPES[recipe].linear) is None) == (not recipe.startswith("te-nvfp4"))


def test_accumulation_in_fp32_has_no_bias(session, eager):
    """tests/test_faults.py has its verdict."""
    found = measured(accumulation.measure(subject(session, "te-current")))
    assert {v for k, v in found.items() if "bias" in k} == {0.0}
    assert all(55.2 < v < 55.9 for k, v in found.items() if "sqnr" in k)
    assert len(found) == 2 * 3 * 2


def test_short_accumulator_has_a_bias_that_grows_with_k(session, eager, monkeypatch):
    short_accumulator(13)(monkeypatch)  # of the fraction, as on Hopper
    record = session.measure("accumulation", cell("te-current", "emulated"))
    judged, found = verdict(record), measured((record.values, record.notes))
    assert judged.status == "fail"
    assert {f"{gemm} bias @ K={k}" for gemm in GEMMS for k in (512, 2048)} <= failing(judged)
    for gemm in GEMMS:
        assert -0.02 < found[f"{gemm} bias @ K=2048"] < 2 * found[f"{gemm} bias @ K=512"] < 0


# Large tensors


def test_equal_blocks_are_green(session, eager):
    verdict = session.numerics("large", cell("te-block", "emulated"))
    assert verdict.green, verdict.message()
    notes = large.measure(subject(session, "te-nvfp4"))[1]
    assert "dgrad: not measured, its operands are rounded stochastically" in notes
    assert "need a GPU" in session.skip_reason("large", cell("te-block", "emulated"))


@pytest.mark.parametrize(("which", "metric"), [(0, "fprop difference"), (1, "dgrad difference")])
def test_one_wrong_element_in_a_late_block_is_counted(which, metric, session, eager, monkeypatch):
    real, (tokens, _, count) = emulation.gemm, large.SIZES["cpu"]
    calls = iter(range(1000))

    def wrong(a, b, *rest):
        y = real(a, b, *rest)
        if y.shape[0] == tokens * count and next(calls) == which:
            y[3 * tokens + 5, 7] += 1
        return y

    monkeypatch.setattr(emulation, "gemm", wrong)
    found = measured(large.measure(subject(session, "te-block")))
    others = {"fprop difference", "dgrad difference"} - {metric}
    assert found[f"{metric} @ repeated block"] == 1
    assert found[f"{others.pop()} @ repeated block"] == 0


def test_nan_and_zero_blocks_are_not_equal_blocks(session, eager, monkeypatch):
    assert large.differing(torch.full((6, 2), float("nan")), 3) == 8 + 4  # the first block differs from itself
    real = emulation.gemm
    monkeypatch.setattr(emulation, "gemm", lambda a, b, *rest: real(a, b, *rest) * 0)
    verdict = session.numerics("large", cell("te-block", "emulated"))
    assert failing(verdict) == {f"{gemm} sqnr @ repeated block" for gemm in GEMMS}


# State


@pytest.mark.slow
@pytest.mark.parametrize(("leaks", "least", "most"), [(0, 0, 0), (1, 0.01, 1)])
def test_leak_after_a_raise_is_found(leaks, least, most, session, eager, monkeypatch):
    """A region that counts its depth, and quantizes at depth 1 alone, as a context manager without ``finally`` leaves it."""
    depth = [0]
    real_convert, real_operand = short_run.apply, EmulatedLinear.operand

    @contextmanager
    def region():
        depth[0] += 1
        try:
            yield
        except BaseException:
            depth[0] += leaks
            raise
        finally:
            depth[0] -= 1

    monkeypatch.setattr(short_run, "apply", lambda *a, **k: replace(real_convert(*a, **k), context=region))

    def operand(self, name, x):
        forward = name.startswith("fprop")
        return (x, torch.ones(())) if forward and depth[0] != 1 else real_operand(self, name, x)

    monkeypatch.setattr(EmulatedLinear, "operand", operand)
    one = subject(session, "te-current")
    assert least <= max(state._after_a_raise(one, short_run.ShortRun(one).run())) <= most
