"""Train a small Llama with Hugging Face's Trainer, in BF16 or with torchao's FP8."""

import argparse

import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

VOCABULARY, LENGTH = 64, 64


class Chain(torch.utils.data.Dataset):
    """Texts in which each token has four successors: other texts for each seed."""

    def __init__(self, seed: int, size: int) -> None:
        successors = torch.randint(VOCABULARY, (VOCABULARY, 4), generator=torch.Generator().manual_seed(0))
        turns = torch.randint(4, (LENGTH, size), generator=torch.Generator().manual_seed(seed))
        ids = [torch.arange(size) % VOCABULARY]
        for turn in turns[1:]:
            ids.append(successors[ids[-1], turn])
        self.texts = torch.stack(ids, dim=1)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.texts[index], "labels": self.texts[index]}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in {"seed": 0, "data-seed": 0, "max-steps": 100, "accumulate": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", required=True)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--fp8", choices=["tensorwise", "rowwise"])
    parser.add_argument("--keep", nargs="*", default=["lm_head"], help="parts of names of linears that stay in BF16")
    args = parser.parse_args()

    set_seed(args.seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, initializer_range=0.05, **shape)
    model = LlamaForCausalLM(config)
    model.config.use_cache = False
    if args.fp8:
        fp8 = Float8LinearConfig.from_recipe_name(args.fp8)
        object.__setattr__(fp8, "emulate", not torch.cuda.is_available())
        convert_to_float8_training(
            model, config=fp8, module_filter_fn=lambda module, name: not any(part in name for part in args.keep)
        )
    rows = 16
    trainer = Trainer(
        model=model,
        train_dataset=Chain(args.seed + args.data_seed, args.max_steps * rows),
        args=TrainingArguments(
            output_dir=args.out,
            max_steps=args.max_steps,
            per_device_train_batch_size=rows // args.accumulate,
            gradient_accumulation_steps=args.accumulate,
            learning_rate=args.lr,
            warmup_steps=10,
            lr_scheduler_type="cosine",
            bf16=True,
            use_cpu=not torch.cuda.is_available(),
            logging_steps=1,
            logging_first_step=True,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to=[],
            seed=args.seed,
            data_seed=args.seed,
            disable_tqdm=True,
        ),
    )
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    main()
