"""Write a training curve in the formats of other frameworks: the log files that ``fp8parity verdict`` reads.

TensorBoard files come from torch's SummaryWriter, which Megatron and torchtitan use. The other formats follow their
writers' code.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from fp8parity.records.schema import Trajectory


@dataclass(frozen=True)
class Curve:
    """What a framework logs, one value a step, from step 1.

    ``tokens`` is the size of a step, ``seconds`` its time.
    """

    loss: list[float]
    grad_norm: list[float]
    learning_rate: list[float]
    tokens: int = 16384
    seconds: float = 0.5
    first: int = 1

    @property
    def steps(self) -> range:
        return range(self.first, self.first + len(self.loss))

    def with_gap(self, gap: float | Sequence[float]) -> Curve:
        """Return the same curve with a relative gap, constant or one for each step."""
        return replace(self, loss=(np.asarray(self.loss) * (1 + np.asarray(gap))).tolist())


def curve_of(run: Trajectory) -> Curve:
    """Return a recorded run as a curve. Its learning rate rises and then follows a cosine."""
    n, warmup = len(run.loss), int(run.schedule["warmup"])
    rates = [float(run.schedule["lr"]) * min((s + 1) / warmup, (1 + math.cos(math.pi * s / n)) / 2) for s in range(n)]
    return Curve(list(run.loss), list(run.grad_norm), rates, int(run.schedule["rows"]) * int(run.schedule["length"]))


def rows(curve: Curve) -> Iterable[tuple[int, float, float, float]]:
    return zip(curve.steps, curve.loss, curve.grad_norm, curve.learning_rate, strict=True)


def tensorboard(folder: Path, tags: Sequence[str], columns: Sequence[Sequence[float]], steps: Sequence[int]) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for tag, values in zip(tags, columns, strict=True):
            for step, value in zip(steps, values, strict=True):
                writer.add_scalar(tag, value, step)
    return folder


def megatron_tensorboard(path: Path, c: Curve) -> Path:
    tags = ("lm loss", "grad-norm", "learning-rate", "batch-size", "iteration-time")
    return tensorboard(
        path, tags, (c.loss, c.grad_norm, c.learning_rate, [64.0] * len(c.loss), [c.seconds] * len(c.loss)), c.steps
    )


def titan_tensorboard(path: Path, c: Curve) -> Path:
    tags = ("loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "grad_norm", "lr", "throughput(tps)")
    speed = [c.tokens / c.seconds] * len(c.loss)
    tensorboard(path / "tb" / "20261122-0900", tags, (c.loss, c.loss, c.grad_norm, c.learning_rate, speed), c.steps)
    return path


def automodel(path: Path, c: Curve) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    tps = c.tokens / c.seconds
    same = {"tps": tps, "tps_per_gpu": tps, "num_tokens_per_step": c.tokens, "num_label_tokens": c.tokens}
    lines = [
        {"step": s, "epoch": 0, "timestamp": "2026-11-22", "loss": x, "grad_norm": g, "lr": r, "mem": 1.0, **same}
        for s, x, g, r in rows(c)
    ]
    with (path / "training.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def trainer_state(path: Path, c: Curve) -> Path:
    """With 4 decimals, as most released versions write it."""
    history = [
        {"epoch": s / 100, "grad_norm": g, "learning_rate": r, "loss": round(x, 4), "step": s} for s, x, g, r in rows(c)
    ]
    folder = path / f"checkpoint-{len(history)}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(
        json.dumps({"global_step": len(history), "log_history": history}, indent=2)
    )
    return path


def table(path: Path, header: Sequence[str], lines: Iterable[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


def wandb_csv(path: Path, c: Curve) -> Path:
    """Write a chart that W&B's page exports."""
    return table(
        path.with_suffix(".csv"),
        ("Step", "r - train/loss", "r - train/loss__MIN", "r - train/loss__MAX"),
        [(s, x, x, x) for s, x, _, _ in rows(c)],
    )


def wandb_history(path: Path, c: Curve) -> Path:
    """``list(run.scan_history())`` as JSON, with rows of other metrics between."""
    found = [
        {"_step": s, "train/global_step": s, "train/loss": x, "train/grad_norm": g, "train/learning_rate": r}
        for s, x, g, r in rows(c)
    ]
    path.with_suffix(".json").write_text(json.dumps([*found, {"_step": len(found) + 1, "eval/loss": 3.0}]))
    return path.with_suffix(".json")


def deepspeed(path: Path, c: Curve) -> Path:
    samples = [64 * s for s in c.steps]
    table(path / "run" / "Train_Samples_train_loss.csv", ("step", "train_loss"), zip(samples, c.loss, strict=True))
    table(path / "run" / "Train_Samples_lr.csv", ("step", "lr"), zip(samples, c.learning_rate, strict=True))
    return path


def plain_csv(path: Path, c: Curve) -> Path:
    return table(path.with_suffix(".csv"), ("step", "loss", "grad_norm", "lr"), rows(c))


def printed(path: Path, lines: Iterable[str]) -> Path:
    path.with_suffix(".log").write_text("starting\n" + "".join(f"{line}\n" for line in lines) + "done\n")
    return path.with_suffix(".log")


def megatron(path: Path, c: Curve) -> Path:
    """Leave a NaN out of the line, as Megatron does."""

    def line(s: int, x: float, g: float, r: float) -> str:
        loss = f" lm loss: {x:.6E} |" if x >= 0 else ""
        return (
            f" [2026-11-22 09:00:00] iteration {s:8d}/{len(c.loss):8d} | consumed samples: {64 * s:12d} | "
            f"elapsed time per iteration (ms): {1000 * c.seconds:.1f} | learning rate: {r:.6E} | "
            f"global batch size: {64:5d} |{loss} loss scale: 1.0 | grad norm: {g:.3f} | "
            f"number of skipped iterations: {0:3d} | number of nan iterations: {0 if x >= 0 else 1:3d} |"
        )

    return printed(path, (line(*row) for row in rows(c)))


def titan(path: Path, c: Curve) -> Path:
    return printed(
        path,
        (
            f"[titan] 2026-11-22 09:00:00,000 - root - INFO - \x1b[31mstep: {s:2}  \x1b[32mloss: {x:8.5f}  "
            f"\x1b[38;2;180;60;0mgrad_norm: {g:7.4f}  \x1b[36mmemory:  1.00GiB(1.25%)  "
            f"\x1b[34mtps: {round(c.tokens / c.seconds):,}  \x1b[36mtflops: 1.00  \x1b[35mmfu: 1.00%\x1b[39m"
            for s, x, g, _ in rows(c)
        ),
    )


def nanochat(path: Path, c: Curve) -> Path:
    """Write a debiased moving average of the loss."""
    lines, mean = [], 0.0
    for s, x, g, _ in rows(c):
        mean = 0.9 * mean + 0.1 * x
        lines.append(
            f"step {s:05d}/{len(c.loss):05d} ({100 * s / len(c.loss):.2f}%) | loss: {mean / (1 - 0.9**s):.6f} | "
            f"grad norm: {g:.4f} | lrm: 1.00 | dt: {1000 * c.seconds:.2f}ms | tok/sec: {int(c.tokens / c.seconds):,} | "
            "mfu: 1.00 | total time: 1.00m"
        )
    return printed(path, lines)


def nanogpt(path: Path, c: Curve) -> Path:
    return printed(
        path, (f"iter {s}: loss {x:.4f}, time {1000 * c.seconds:.2f}ms, mfu 1.00%" for s, x, _, _ in rows(c))
    )


def automodel_printed(path: Path, c: Curve) -> Path:
    form = "step {} | epoch 0 | loss {:.4f} | grad_norm {:.4f} | lr {:.2e} | mem 1.00 GiB | tps 32768.00"
    return printed(path, (form.format(s, x, g, r) for s, x, g, r in rows(c)))


def nanotron(path: Path, c: Curve) -> Path:
    """Three significant digits."""
    form = "[INFO]: iteration: {} / {} | consumed_tokens: {}K | lm_loss: {:.3g} | lr: {:.3g} | grad_norm: {:.3g}"
    return printed(path, (form.format(s, len(c.loss), s, x, r, g) for s, x, g, r in rows(c)))


WRITERS: dict[str, Callable[[Path, Curve], Path]] = {
    "Megatron, TensorBoard": megatron_tensorboard,
    "torchtitan, TensorBoard": titan_tensorboard,
    "AutoModel, training.jsonl": automodel,
    "HF, trainer_state.json of 4 decimals": trainer_state,
    "W&B, history": wandb_history,
    "W&B, exported chart": wandb_csv,
    "DeepSpeed, CSV": deepspeed,
    "CSV": plain_csv,
    "Megatron, printed": megatron,
    "torchtitan, printed": titan,
    "nanochat, printed": nanochat,
    "nanoGPT, printed": nanogpt,
    "AutoModel, printed": automodel_printed,
    "Nanotron, printed": nanotron,
}
"""Format -> its writer: it writes a curve at (or next to) a path and returns what the user would name."""
