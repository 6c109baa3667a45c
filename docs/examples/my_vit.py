"""A vision transformer. The head stays in BF16: no FP8 kernel can divide its ten classes."""

import torch
import torch.nn.functional as F
from fp8parity.workload.own import OwnModel
from my_models import SCHEDULE, Block
from torch import nn

PATTERNS = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class ViT(nn.Module):
    def __init__(self, dim=64, layers=2, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(16, dim))
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.head = nn.Linear(dim, classes)
        for block in self.blocks:
            block.causal = False

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def images(seed, step):
    labels = torch.randint(10, (32,))
    noise = 4 * torch.randn(32, 3, 16, 16)
    return (PATTERNS[labels] + noise).bfloat16(), labels


def classified(module, pixels, labels):
    return F.cross_entropy(module(pixels).float(), labels)


def vit():
    return OwnModel(
        "my-vit", lambda seed: ViT(), classified, images, SCHEDULE, corpus="patterns", keep=("head",), blocks="blocks"
    )
