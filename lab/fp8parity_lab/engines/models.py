"""Score tokens as a trainer does, and as an engine does: in chunks, with a KV cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

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

Store = Callable[[Tensor], Tensor]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Engine:
    """How an engine computes.

    ``batch``: sequences at a time, 0 for all of them; they are in another order than the trainer's.
    ``chunk``: tokens of a part of the prefill, 0 for whole sequences.
    ``decodes``: after the prompt token by token. ``plain``: attention without a fused kernel, in FP32.
    ``store``: what the KV cache keeps of keys and values. ``rope``: what the engine makes of the rotations.
    ``temperature``: divides the logits. ``shift``: added to each token id.
    """

    batch: int = MULTIPLE
    chunk: int = 16
    decodes: bool = True
    plain: bool = True
    store: Store = field(default=lambda x: x)
    rope: Store = field(default=lambda x: x)
    temperature: float = 1.0
    shift: int = 0

    def spans(self, prompt: int, length: int) -> list[tuple[int, int]]:
        """Return the begin and end of each pass over ``length`` tokens, ``prompt`` of them prefilled."""
        prefill = prompt if self.decodes else length
        chunk = self.chunk or prefill
        parts = [(at, min(at + chunk, prefill)) for at in range(0, prefill, chunk)]
        return parts + [(at, at + 1) for at in range(prefill, length)]


TRAINER = Engine(batch=0, chunk=0, decodes=False, plain=False)
"""What differs from the trainer only by the code that runs it: nothing."""
ENGINE = "engine"
VARIANTS = {
    ENGINE: Engine(),
    "batch": replace(TRAINER, batch=MULTIPLE),
    "attention": replace(TRAINER, plain=True),
    "chunks": replace(TRAINER, chunk=16),
    "decode": replace(TRAINER, chunk=16, decodes=True),
}
"""The engine, and engines with one of its differences each."""


class Pass(Protocol):
    """A forward pass with a KV cache: it maps the next ids [B, n] to logits [B, n, vocab]."""

    def __call__(self, ids: Tensor) -> Tensor: ...


class Subject(Protocol):
    """A model of which trainer and engine compute log-probabilities."""

    @property
    def name(self) -> str: ...

    @property
    def vocab(self) -> int: ...

    @property
    def identity(self) -> str:
        """What the weights are, for names of files."""

    def build(self, recipe: Recipe, execution: Execution) -> ConvertedModel:
        """Return the checkpoint, converted."""

    def trainer(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Return the logits of whole sequences [B, S, vocab]."""

    def engine(self, model: nn.Module, engine: Engine) -> Any:
        """Return the region that gives a ``Pass``."""


@dataclass(frozen=True)
class OwnSubject:
    """A model of this project with the weights of a checkpoint."""

    config: ModelConfig
    weights: Weights
    device: torch.device

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def vocab(self) -> int:
        return self.config.vocab

    @property
    def identity(self) -> str:
        return f"{self.config!r} {models.weights_hash(self.weights)}"

    def build(self, recipe: Recipe, execution: Execution) -> ConvertedModel:
        model = models.build(self.config, 0, device=self.device)
        load(model, self.weights)
        return apply(model, recipe, execution, tokens=MULTIPLE)

    def trainer(self, model: nn.Module, ids: Tensor) -> Tensor:
        return model(ids)  # type: ignore[no-any-return]  # nn.Module's results have no types

    @contextmanager
    def engine(self, model: nn.Module, engine: Engine) -> Iterator[Pass]:
        """Give each block a KV cache in place of its attention. Blocks and linears stay the model's own."""
        net: Any = model
        attentions = [layer.attention for layer in net.layers]
        before, done = [a.attend for a in attentions], 0

        def step(ids: Tensor) -> Tensor:
            nonlocal done
            end = done + ids.shape[1]
            rope, x = engine.rope(net.rope(end, ids.device))[done:end], net.embedding(ids)
            for layer in net.layers:
                x = layer(x, rope)
            done = end
            return net.lm_head(net.norm(x))  # type: ignore[no-any-return]  # as above

        for attention in attentions:
            attention.attend = CachedAttention(engine.plain, engine.store)
        try:
            yield step
        finally:
            for attention, attend in zip(attentions, before, strict=True):
                attention.attend = attend


class CachedAttention:
    """Attention over all keys and values so far; q, k, v [B, heads, n, head_dim], rotated."""

    def __init__(self, plain: bool, store: Store) -> None:
        self.plain, self.store = plain, store
        self.kept: tuple[Tensor, Tensor] | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = self.store(k), self.store(v)
        if self.kept is not None:
            k, v = torch.cat((self.kept[0], k), 2), torch.cat((self.kept[1], v), 2)
        self.kept = k, v
        if k.shape[2] == q.shape[2] and not self.plain:
            return models.attend(q, k, v)
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
        if not self.plain:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=q.shape[1] != k.shape[1])
        k, v = (x.float().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        logits = (q.float() @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
        return (logits.softmax(-1) @ v).to(q.dtype)


@dataclass(frozen=True)
class FolderSubject:
    """A causal language model of a Hugging Face folder, in BF16. Its engine is transformers' own cache."""

    folder: Path
    device: torch.device

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def vocab(self) -> int:
        return int(self._config().vocab_size)

    @property
    def identity(self) -> str:
        files = sorted(self.folder.iterdir())
        return f"{[(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]}"

    def _config(self) -> Any:
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self.folder, local_files_only=True).get_text_config(decoder=True)

    @property
    def first(self) -> int:
        """The token before the first one."""
        return int(getattr(self._config(), "bos_token_id", None) or 0)

    def build(self, recipe: Recipe, execution: Execution) -> ConvertedModel:
        """Load and convert it. Raises ``ValueError`` for a folder without such a model, and for unreachable weights."""
        from transformers import AutoModelForCausalLM

        if not (self.folder / "config.json").is_file():
            raise ValueError(f"--hf {self.folder}: no config.json; give the folder of a saved model")
        options = {"dtype": torch.bfloat16, "attn_implementation": "sdpa", "local_files_only": True}
        loaded: Any = AutoModelForCausalLM.from_pretrained(self.folder, **options)
        model: Any = loaded.to(self.device).eval()
        head, known = model.get_output_embeddings(), hf_model.linears_of(model)
        stay = hf_model.in_bf16(known) | {name for name, m in known.items() if m is head and "lm_head" not in name}
        return apply(model, replace(recipe, filters=(*recipe.filters, *stay)), execution, tokens=MULTIPLE)

    def trainer(self, model: nn.Module, ids: Tensor) -> Tensor:
        return model(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]  # as above

    @contextmanager
    def engine(self, model: nn.Module, engine: Engine) -> Iterator[Pass]:
        from transformers import DynamicCache

        net: Any = model
        cache = DynamicCache(config=net.config)
        net.set_attn_implementation("eager" if engine.plain else "sdpa")
        try:
            yield lambda ids: net(input_ids=ids, past_key_values=cache, use_cache=True).logits
        finally:
            net.set_attn_implementation("sdpa")


def load(model: nn.Module, weights: Weights) -> None:
    """Copy weights into the parameters of their names."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def calibrated(subject: Subject, converted: ConvertedModel, ids: Tensor) -> ConvertedModel:
    """Update the delayed scales of a model, which start at 1, by passes over these sequences."""
    if converted.recipe.linear.delayed:
        for _ in range(CALIBRATIONS):
            with torch.enable_grad(), converted.context():
                subject.trainer(converted.model, ids[:, :-1])
    return converted


def read(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target [B, n] in FP32, and the most likely token, on the CPU."""
    rows = []
    for row, ids in zip(logits, targets, strict=True):  # one at a time: a vocabulary may be large
        found = (row.float() / temperature).log_softmax(-1)
        rows.append((found.gather(1, ids[:, None])[:, 0], found.argmax(-1)))
    logprobs, top = zip(*rows, strict=True)
    return torch.stack(logprobs).cpu(), torch.stack(top).cpu()


@torch.no_grad()
def trainer_scores(
    subject: Subject, converted: ConvertedModel, ids: Tensor, prompt: int, temperature: float = 1.0
) -> dict[str, Tensor]:
    """Return log-probabilities and most likely tokens after the prompt, all sequences in one batch."""
    with converted.context():
        logits = subject.trainer(converted.model, ids[:, :-1])
    logprobs, top = read(logits[:, prompt - 1 :], ids[:, prompt:], temperature)
    return {"logprobs": logprobs, "top": top}


@torch.no_grad()
def engine_scores(
    subject: Subject, converted: ConvertedModel, ids: Tensor, prompt: int, engine: Engine
) -> dict[str, Tensor]:
    """Return the same as an engine computes it."""
    rows, length = ids.shape
    order = torch.arange(rows) if not engine.batch else torch.randperm(rows, generator=torch.Generator().manual_seed(1))
    own = (ids + engine.shift) % subject.vocab
    parts = []
    for batch in order.to(ids.device).split(engine.batch or rows):
        with subject.engine(converted.model, engine) as step:
            found = []
            for begin, end in engine.spans(prompt, length - 1):
                with converted.context():
                    logits = step(own[batch, begin:end])
                found.append(read(logits, own[batch, begin + 1 : end + 1], engine.temperature))
        parts.append([torch.cat(tensors, 1)[:, prompt - 1 :] for tensors in zip(*found, strict=True)])
    back = order.argsort()
    logprobs, top = (torch.cat(tensors)[back] for tensors in zip(*parts, strict=True))
    return {"logprobs": logprobs, "top": top}


@torch.no_grad()
def sampled(subject: Subject, converted: ConvertedModel, prompts: Tensor, length: int, seed: int) -> Tensor:
    """Return sequences [B, length] that begin with prompts [B, P], drawn at a temperature of 1."""
    generator, ids = torch.Generator().manual_seed(seed), prompts
    with subject.engine(converted.model, Engine()) as step:
        fresh = prompts
        while ids.shape[1] < length:
            with converted.context():
                logits = step(fresh)[:, -1]
            shares = logits.float().softmax(-1).cpu()
            fresh = torch.multinomial(shares, 1, generator=generator).to(ids.device)
            ids = torch.cat((ids, fresh), 1)
    return ids
