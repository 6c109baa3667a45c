"""Score tokens as a trainer does, and as an engine does: in chunks, with a KV cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from fp8parity.recipes import ConvertedModel, Recipe, apply
from fp8parity.records.cell import Execution
from fp8parity.workload import hf_model, models
from fp8parity.workload.config import ModelConfig
from torch import Tensor, nn

MULTIPLE = 32
"""The rows of each GEMM are a multiple, as FP8 kernels want it: a step that decodes has so many sequences or more."""
CALIBRATIONS = 3
"""Passes before the first score that update delayed scales, with gradients enabled as in training."""
Step = Callable[[Tensor], Tensor]
"""A pass with a KV cache: it maps the next ids [B, n] to logits [B, n, vocab]."""


def same(x: Tensor) -> Tensor:
    """Return what it gets."""
    return x


@dataclass(frozen=True)
class Engine:
    """How an engine computes.

    ``batch``: sequences at a time, in another order than the trainer's; 0: the trainer's batch.
    ``chunk``: tokens of a part of the prefill; 0: all. ``decodes``: after the prompt token by token.
    ``plain``: attention without a fused kernel, in FP32.
    ``store``, ``rope``, ``renumber``, ``temperature``: what it does to keys and values, rotations, ids, logits.
    """

    batch: int = MULTIPLE
    chunk: int = 16
    decodes: bool = True
    plain: bool = True
    store: Step = same
    rope: Step = same
    renumber: Step = same
    temperature: float = 1.0

    def spans(self, prompt: int, length: int) -> list[tuple[int, int]]:
        """Return the begin and end of each pass over ``length`` tokens."""
        prefill = prompt if self.decodes else length
        begins = [*range(0, prefill, self.chunk or prefill), *range(prefill, length), length]
        return list(pairwise(begins))


_TRAINER = Engine(batch=0, chunk=0, decodes=False, plain=False)
ENGINE = "engine"
VARIANTS = {
    ENGINE: Engine(),
    "batch": replace(_TRAINER, batch=MULTIPLE),
    "attention": replace(_TRAINER, plain=True),
    "chunks": replace(_TRAINER, chunk=16),
    "decode": replace(_TRAINER, chunk=16, decodes=True),
}
"""The engine, and engines with one of its differences each."""


class CachedAttention:
    """Attention over all keys and values so far; q, k, v [B, heads, n, head_dim], rotated."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.kept = engine, list[Tensor]()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        fresh = [self.engine.store(x) for x in (k, v)]
        self.kept = [torch.cat(pair, 2) for pair in zip(self.kept, fresh, strict=True)] if self.kept else fresh
        k, v = self.kept
        new, every, groups = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
        if new == every and not self.engine.plain:
            return models.attend(q, k, v)
        visible = torch.ones(new, every, dtype=torch.bool, device=q.device).tril(every - new)
        if not self.engine.plain:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=groups > 1)
        k, v = (x.float().repeat_interleave(groups, 1) for x in (k, v))
        logits = (q.float() @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
        return (logits.softmax(-1) @ v).to(q.dtype)


@dataclass(frozen=True)
class OwnSubject:
    """A model of this project with the weights of a checkpoint."""

    config: ModelConfig
    weights: dict[str, Tensor]
    device: torch.device

    @property
    def identity(self) -> str:
        """What names the model and its weights in a cache."""
        return f"{self.config!r} {models.weights_hash(self.weights)}"

    def build(self, recipe: Recipe, execution: Execution) -> ConvertedModel:
        """Return the checkpoint, converted."""
        model = models.build(self.config, 0, device=self.device)
        load(model, self.weights)
        return apply(model, recipe, execution, tokens=MULTIPLE)

    @contextmanager
    def engine(self, model: nn.Module, engine: Engine) -> Iterator[Step]:
        """Give each block a KV cache in place of its attention. All else is the model's own."""
        net: Any = model
        attentions, done = [layer.attention for layer in net.layers], 0

        def step(ids: Tensor) -> Tensor:
            nonlocal done
            begin, done = done, done + ids.shape[1]
            rope, x = engine.rope(net.rope(done, ids.device))[begin:], net.embedding(ids)
            for layer in net.layers:
                x = layer(x, rope)
            logits: Tensor = net.lm_head(net.norm(x))
            return logits

        for attention in attentions:
            attention.attend = CachedAttention(engine)
        try:
            yield step
        finally:
            for attention in attentions:
                attention.attend = models.attend


@dataclass(frozen=True)
class FolderSubject:
    """A causal language model of a Hugging Face folder, in BF16. Its engine is transformers' own cache."""

    folder: Path
    device: torch.device

    @property
    def identity(self) -> str:
        """What names the folder's content in a cache."""
        return repr([(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(self.folder.iterdir())])

    def build(self, recipe: Recipe, execution: Execution) -> ConvertedModel:
        """Load and convert it. Raises ``ValueError`` without a model, and for weights that no recipe reaches."""
        from transformers import AutoModelForCausalLM

        if not (self.folder / "config.json").is_file():
            raise ValueError(f"--hf {self.folder}: no config.json; give the folder of a saved model")
        options = {"dtype": torch.bfloat16, "attn_implementation": "sdpa", "local_files_only": True}
        model: Any = AutoModelForCausalLM.from_pretrained(self.folder, **options)
        model.to(self.device).eval()
        model.config.use_cache = False  # of a trainer; an engine asks for it
        head, known = model.get_output_embeddings(), hf_model.linears_of(model)
        stay = hf_model.in_bf16(known) | {name for name, m in known.items() if m is head}
        filters = (*recipe.filters, *sorted(stay - set(recipe.filters)))
        return apply(model, replace(recipe, filters=filters), execution, tokens=MULTIPLE)

    @contextmanager
    def engine(self, model: nn.Module, engine: Engine) -> Iterator[Step]:
        """Run with a cache of transformers, and with its eager attention if it is ``plain``."""
        from transformers import DynamicCache

        net: Any = model
        cache = DynamicCache(config=net.config)
        net.set_attn_implementation("eager" if engine.plain else "sdpa")
        try:
            yield lambda ids: net(input_ids=ids, past_key_values=cache, use_cache=True).logits
        finally:
            net.set_attn_implementation("sdpa")


Subject: TypeAlias = OwnSubject | FolderSubject


def load(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights into the parameters of their names."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def whole(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the logits of whole sequences [B, S, vocab], as a trainer computes them."""
    out: Any = model(ids)
    logits: Tensor = out if isinstance(out, Tensor) else out.logits
    return logits


def calibrated(converted: ConvertedModel, ids: Tensor) -> ConvertedModel:
    """Update delayed scales, which start at 1, by passes over these sequences."""
    for _ in range(CALIBRATIONS if converted.recipe.linear.delayed else 0):
        with torch.enable_grad(), converted.context():
            whole(converted.model, ids[:, :-1])
    return converted


def _read(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return log-probabilities of targets [B, n] and most likely tokens, FP64 [2, B, n] on the CPU."""
    found = []
    for row, ids in zip(logits, targets, strict=True):  # one at a time: a vocabulary may be large
        logprobs = (row.float() / temperature).log_softmax(-1)
        found.append(torch.stack((logprobs.gather(1, ids[:, None])[:, 0].double(), logprobs.argmax(-1).double())))
    return torch.stack(found, 1).cpu()


@torch.no_grad()
def trainer_scores(converted: ConvertedModel, ids: Tensor, prompt: int, temperature: float = 1.0) -> Tensor:
    """Return log-probabilities and most likely tokens after the prompt [2, B, n], all sequences in one batch."""
    with converted.context():
        logits = whole(converted.model, ids[:, :-1])
    return _read(logits[:, prompt - 1 :], ids[:, prompt:], temperature)


@torch.no_grad()
def engine_scores(subject: Subject, converted: ConvertedModel, ids: Tensor, prompt: int, engine: Engine) -> Tensor:
    """Return the same [2, B, n] as an engine computes it."""
    rows, length = ids.shape
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1)) if engine.batch else torch.arange(rows)
    own, parts = engine.renumber(ids), []
    for batch in order.to(ids.device).split(engine.batch or rows):
        with subject.engine(converted.model, engine) as step:
            found = []
            for begin, end in engine.spans(prompt, length - 1):
                with converted.context():
                    logits = step(own[batch, begin:end])
                found.append(_read(logits, own[batch, begin + 1 : end + 1], engine.temperature))
        parts.append(torch.cat(found, 2)[:, :, prompt - 1 :])
    return torch.cat(parts, 1)[:, order.argsort()]


@torch.no_grad()
def sampled(subject: Subject, converted: ConvertedModel, prompts: Tensor, length: int, seed: int) -> Tensor:
    """Return sequences [B, length] that begin with prompts [B, P], drawn by the engine at a temperature of 1."""
    generator, ids, fresh = torch.Generator().manual_seed(seed), prompts, prompts
    with subject.engine(converted.model, Engine()) as step:
        while ids.shape[1] < length:
            with converted.context():
                shares = step(fresh)[:, -1].float().softmax(-1).cpu()
            fresh = torch.multinomial(shares, 1, generator=generator).to(ids.device)
            ids = torch.cat((ids, fresh), 1)
    return ids
