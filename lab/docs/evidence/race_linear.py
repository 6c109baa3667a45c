"""SwiGLU and one FP8 linear: all of Inductor's configurations compared with eager."""

import torch
import torch.nn.functional as F
from torch._inductor import config
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

config.emulate_precision_casts = True  # the roundings of eager, which rowwise scales need (pytorch/torchtitan#1056)
config.force_disable_caches = True
chosen, found, original = 0, {}, CachingAutotuner.run


def run(kernel, *args, **kwargs):
    """Launch the chosen configuration in place of the fastest."""
    if not kernel.launchers:
        kernel.precompile()
    known = found.setdefault(kernel, sorted(kernel.launchers, key=lambda launcher: str(launcher.config)))
    kernel.launchers, kernel._cached_launcher = [known[chosen % len(known)]], None
    return original(kernel, *args, **kwargs)


CachingAutotuner.run = run


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down = torch.nn.Linear(1152, 384, bias=False, dtype=torch.bfloat16, device="cuda")

    def forward(self, gate, up):
        return self.down(F.silu(gate) * up)


def step(module):
    inputs = [t.detach().requires_grad_() for t in (gate, up)]
    block.zero_grad()
    out = module(*inputs)
    out.float().square().mean().backward()
    return [t.clone() for t in (out.detach(), inputs[0].grad, inputs[1].grad, block.down.weight.grad)]


torch.manual_seed(0)
gate, up = (torch.randn(32, 128, 1152, dtype=torch.bfloat16, device="cuda") for _ in range(2))
block = Block()
convert_to_float8_training(block, config=Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp"))
exact, compiled = step(block), torch.compile(block)
step(compiled)
print(torch.__version__, torch.cuda.get_device_name())
for chosen in range(2):
    torch.cuda.empty_cache()
    nan = [torch.full((size // 4,), -1, dtype=torch.int32, device="cuda") for size in (2**29, *[2**19] * 64)]
    del nan
    forward = next(kernel for kernel in found if "silu" in kernel.fn.__name__)
    name = found[forward][chosen % len(found[forward])].config
    far = [
        f"{float((a - b).float().norm() / a.float().norm()):.3g}" for a, b in zip(exact, step(compiled), strict=True)
    ]
    print(name, "| output, gradients of gate, up, weight, from eager:", *far)
