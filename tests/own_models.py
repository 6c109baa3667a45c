"""The models of docs/examples as modules, the policy of docs/your-model.md, and short ways to train them."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from documents import blocks
from fp8parity import recipes
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Trajectory
from fp8parity.training import loop
from fp8parity.workload.own import OwnModel
from torch import Tensor, nn

PAGE = Path(__file__).parents[1] / "docs" / "your-model.md"
EXAMPLES = PAGE.parent / "examples"
FILES = {"my_models": "gpt2", "my_llama": "llama", "my_vit": "vit"}
"""Module -> its function that returns the model."""
SHORT = "Schedule(steps=12, rows=8, length=64, lr=2e-3, warmup=3, tail=4, validation_every=6, validation_rows=8)"
"""The schedule for tests of commands."""
CPU = torch.device("cpu")


def sources() -> dict[str, str]:
    """The text of each module."""
    return {name: (EXAMPLES / f"{name}.py").read_text() for name in FILES}


def policy() -> str:
    """The policy.toml of the page."""
    [found] = [b.text for b in blocks(PAGE) if b.language == "toml"]
    return found


def write(folder: Path, schedule: str) -> None:
    """Write the modules into a folder, with another schedule."""
    for name, text in sources().items():
        changed = re.sub(r"^SCHEDULE = .*$", f"SCHEDULE = {schedule}", text, flags=re.M)
        assert (changed == text) == (name != "my_models")
        (folder / f"{name}.py").write_text(changed)


@cache
def shown() -> dict[str, types.ModuleType]:
    """The modules of the page, under the names by which they import each other."""
    made = {}
    for name, text in sources().items():
        module = made[name] = types.ModuleType(name)
        with importable(made):
            exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return made


@contextmanager
def importable(modules: dict[str, types.ModuleType]) -> Iterator[None]:
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def own(module: str, steps: int = 6, **fields: object) -> OwnModel:
    """A model of the page by the name of its module, with fewer steps and any field replaced."""
    made: OwnModel = getattr(shown()[module], FILES[module])()
    short = replace(
        made.schedule, steps=steps, warmup=min(10, steps // 3), tail=max(2, steps // 3), validation_every=steps
    )
    return replace(made, **({"schedule": short} | fields))  # type: ignore[arg-type]  # any field


def trained(model: OwnModel, recipe: str = "bf16", seed: int = 0) -> Trajectory:
    """Train one seed on the CPU."""
    execution = Execution.NATIVE if recipe == "bf16" else Execution.EMULATED
    data = model.data(model.corpus)
    return loop.train(model, recipes.get(recipe), execution, model.schedule, data, seed, device=CPU)


class Pair(nn.Module):
    """Two linears behind an embedding. ``tied``: the second has the embedding's weight."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding, self.inner, self.unembed = (
            nn.Embedding(64, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 64, bias=False),
        )
        nn.init.normal_(self.embedding.weight, std=0.2)
        if tied:
            self.unembed.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.unembed(self.inner(self.embedding(ids)))


def ids(seed: int, step: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(64, (8, 17))
    return drawn[:, :-1], drawn[:, 1:]


def small(**fields: object) -> OwnModel:
    """``Pair`` on random ids, with any field replaced."""
    given: dict[str, object] = {"name": "pair", "factory": lambda seed: Pair(), "batches": ids}
    return own("my_models", steps=3, **(given | fields))
