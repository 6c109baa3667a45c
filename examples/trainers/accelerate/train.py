"""Train a small Llama with accelerate's own loop, in BF16 or with its FP8 by torchao or Transformer Engine."""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import AORecipeKwargs, TERecipeKwargs, set_seed
from torchao.float8 import Float8LinearConfig
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

VOCABULARY, LENGTH, ROWS = 64, 64, 16


def texts(seed: int, size: int) -> torch.Tensor:
    """Return texts in which each token has four successors, int64 [size, LENGTH]."""
    successors = torch.randint(VOCABULARY, (VOCABULARY, 4), generator=torch.Generator().manual_seed(0))
    turns = torch.randint(4, (LENGTH, size), generator=torch.Generator().manual_seed(seed))
    ids = [torch.arange(size) % VOCABULARY]
    for turn in turns[1:]:
        ids.append(successors[ids[-1], turn])
    return torch.stack(ids, dim=1)


def accelerator(fp8: str | None) -> Accelerator:
    cpu = not torch.cuda.is_available()
    if fp8 is None:
        return Accelerator(mixed_precision="bf16", cpu=cpu)
    if fp8.startswith("te-"):
        recipe = TERecipeKwargs(fp8_format="HYBRID", amax_history_len=1024, amax_compute_algo="max")
    else:
        config = Float8LinearConfig.from_recipe_name(fp8)
        object.__setattr__(config, "emulate", cpu)
        recipe = AORecipeKwargs(config=config)
    return Accelerator(mixed_precision="fp8", kwargs_handlers=[recipe], cpu=cpu)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--fp8", choices=["tensorwise", "rowwise", "te-delayed"])
    args = parser.parse_args()

    set_seed(args.seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, initializer_range=0.05, **shape)
    run, model = accelerator(args.fp8), LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = get_cosine_schedule_with_warmup(optimizer, 10, args.max_steps)
    loader = torch.utils.data.DataLoader(texts(args.seed, args.max_steps * ROWS), batch_size=ROWS)
    model, optimizer, loader, schedule = run.prepare(model, optimizer, loader, schedule)
    with (args.out / "log.jsonl").open("w") as log:
        for step, batch in enumerate(loader, 1):
            rate = schedule.get_last_lr()[0]
            loss = model(input_ids=batch, labels=batch).loss
            run.backward(loss)
            norm = run.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            row = {"step": step, "loss": loss.item(), "grad_norm": norm.item(), "learning_rate": rate}
            log.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
