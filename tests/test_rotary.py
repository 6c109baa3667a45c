"""Rotary position embeddings: against complex numbers, and to the bit against the formula of Llama with autograd's gradient."""

import pytest
import torch
from fp8parity.workload.models import RMSNorm
from fp8parity.workload.rotary import angles, plain, rotate, rotations

BASE, HEADS, WIDTH, LENGTH = 10_000.0, 3, 16, 32


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Heads [B, S, heads, head_dim], and the gradient of the rotated ones."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(2, LENGTH, HEADS, WIDTH, generator=generator).to(dtype) for _ in range(2))
    return x.requires_grad_(), grad


def table(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return rotations(BASE, WIDTH, LENGTH, torch.device("cpu")).to(dtype)


def differentiated(of, inputs, grad):
    """The value and the gradients of a function of ``inputs``."""
    y = of(*inputs)
    return y, *torch.autograd.grad(y, inputs, grad)


def same(found, wanted) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rotation_equals_the_plain_formula_to_the_bit(dtype):
    """In a compiled block, too, which runs the plain formula."""
    x, grad = operands(dtype)
    angle = angles(BASE, WIDTH, LENGTH)
    cos, sin = (t.float()[:, None] for t in (angle.cos(), angle.sin()))

    def plain(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(dtype)

    wanted = differentiated(plain, [x], grad)
    for rotated in (rotate, torch.compile(rotate, backend="aot_eager")):
        assert same(differentiated(lambda x, rotated=rotated: rotated(x, table()), [x], grad), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: its kernel does not run")
@pytest.mark.parametrize("width", [32, 64, 96, 256])
@pytest.mark.parametrize("by_head", [False, True], ids=["positions first", "heads first"])
def test_gpu_kernel_equals_the_formula_to_the_bit(width, by_head):
    """For the layouts of projections and of attention's gradients, and for widths that are no power of two."""
    generator = torch.Generator("cuda").manual_seed(0)
    x, grad = torch.randn(2, 3, 70, 5, width, generator=generator, device="cuda").bfloat16()
    if by_head:
        x, grad = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, grad))
    rotation = rotations(BASE, width, 70, x.device)
    found = differentiated(lambda x: rotate(x, rotation), [x.requires_grad_()], grad)
    wanted = differentiated(lambda x: plain(x, rotation), [x], grad)
    assert same(found, wanted) and found[0].is_contiguous()


@pytest.mark.parametrize("dim", [64, 1000])
def test_norm_in_bf16_computes_in_fp32(dim):
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(dim, 1e-5).bfloat16()
    norm.weight.data += torch.randn(dim, generator=generator).bfloat16() / 8
    x, grad = (torch.randn(4, 7, dim, generator=generator).bfloat16() for _ in range(2))
    inputs = [x.requires_grad_(), norm.weight]

    def plain(x, weight):
        return torch.nn.functional.rms_norm(x.float(), (dim,), weight.float(), norm.eps).bfloat16()

    wanted = differentiated(plain, inputs, grad)
    for normed in (norm, torch.compile(norm, backend="aot_eager")):
        assert same(differentiated(lambda x, _, normed=normed: normed(x), inputs, grad), wanted)


def test_torch_func_takes_gradients_of_a_rotation():
    x, _ = operands(torch.float32)
    rotation = table()
    of_all = torch.func.vmap(torch.func.grad(lambda one: rotate(one[None], rotation).square().sum()))(x.detach())
    assert torch.allclose(of_all, 2 * x, atol=1e-5), "a rotation keeps the length of a vector"
