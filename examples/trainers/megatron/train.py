"""Train a small GPT with megatron-core's model, optimizer and schedule, in BF16 or with Transformer Engine's FP8."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.enums import AttnBackend

VOCABULARY, LENGTH, ROWS, MICROBATCHES = 64, 64, 16, 2


def texts(seed: int, size: int) -> torch.Tensor:
    """Return texts in which each token has four successors, int64 [size, LENGTH + 1]."""
    successors = torch.randint(VOCABULARY, (VOCABULARY, 4), generator=torch.Generator().manual_seed(0))
    turns = torch.randint(4, (LENGTH, size), generator=torch.Generator().manual_seed(seed))
    ids = [torch.arange(size) % VOCABULARY]
    for turn in turns:
        ids.append(successors[ids[-1], turn])
    return torch.stack(ids, dim=1)


def forward_step(batches: Iterator[torch.Tensor], model: torch.nn.Module) -> tuple[torch.Tensor, Callable]:
    """Return the loss of each token and the function that averages them, as Megatron's schedule calls it."""
    rows = next(batches).cuda()
    positions = torch.arange(LENGTH, device="cuda").expand(ROWS, LENGTH)
    losses = model(rows[:, :-1].contiguous(), positions, None, labels=rows[:, 1:].contiguous())
    return losses, lambda values: (values.mean(), {"loss": values.mean().detach()})


def built(fp8: str | None, grad_reduce_in_fp32: bool) -> DistributedDataParallel:
    chosen = {"fp8": "hybrid" if fp8 != "blockwise" else "e4m3", "fp8_recipe": fp8} if fp8 else {}
    config = TransformerConfig(
        num_layers=4, hidden_size=256, ffn_hidden_size=512, num_attention_heads=4, normalization="RMSNorm",
        add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu, init_method_std=0.05,
        attention_dropout=0.0, hidden_dropout=0.0, attention_backend=AttnBackend.unfused, bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, **chosen,
    )  # fmt: skip
    spec = get_gpt_layer_with_transformer_engine_spec()
    model = GPTModel(config, spec, VOCABULARY, LENGTH, position_embedding_type="rope").cuda().bfloat16()
    config.finalize_model_grads_func = finalize_model_grads
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=grad_reduce_in_fp32)
    return DistributedDataParallel(config, ddp, model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--fp8", choices=["delayed", "tensorwise", "blockwise"])
    parser.add_argument("--bf16-gradients", action="store_true", help="accumulate gradients in BF16")
    args = parser.parse_args()

    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    torch.manual_seed(args.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(args.seed)
    model = built(args.fp8, grad_reduce_in_fp32=not args.bf16_gradients)
    options = {"min_lr": 0.0, "adam_beta2": 0.95, "weight_decay": 0.1, "clip_grad": 1.0}
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=args.lr, bf16=True, params_dtype=torch.bfloat16, **options), [model]
    )
    rates = {"init_lr": 0.0, "max_lr": args.lr, "min_lr": 0.0, "lr_warmup_steps": 20, "lr_decay_steps": args.max_steps}
    decay = {"start_wd": 0.1, "end_wd": 0.1, "wd_incr_steps": args.max_steps, "wd_incr_style": "constant"}
    schedule = OptimizerParamScheduler(optimizer, lr_decay_style="cosine", **rates, **decay)
    batches = iter(texts(args.seed, args.max_steps * MICROBATCHES * ROWS).split(ROWS))
    train = get_forward_backward_func()
    schedule.step(1)  # the first rate is not 0
    with (args.out / "log.jsonl").open("w") as log:
        for step in range(1, args.max_steps + 1):
            model.zero_grad_buffer()
            optimizer.zero_grad()
            losses = train(
                forward_step_func=forward_step, data_iterator=batches, model=[model],
                num_microbatches=MICROBATCHES, seq_length=LENGTH, micro_batch_size=ROWS,
            )  # fmt: skip
            rate = optimizer.param_groups[0]["lr"]
            _, norm, _ = optimizer.step()
            schedule.step(1)
            loss = torch.stack([part["loss"] for part in losses]).mean()
            row = {"step": step, "loss": loss.item(), "grad_norm": float(norm), "learning_rate": rate}
            log.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
