"""Predict blocks before they are timed, time them, and print the errors.

    python lab/benchmarks/held_out.py configs DIR           # a config.json of each architecture (needs transformers)
    python lab/benchmarks/held_out.py predict DIR FILE.json # for an H100, without one: commit FILE before the next step
    python lab/benchmarks/held_out.py predict DIR FILE.json h200 layer      # with what its eager operations move
    python lab/benchmarks/held_out.py time DIR RECORDS [SET]    # on such a GPU: the blocks that SET does not have
    python lab/benchmarks/held_out.py table RECORDS FILE.json...

A block is layer 0 of the architecture's own class, with published sizes, in BF16 and in the recipe, as a CUDA graph.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from fp8parity.judging import speed
from fp8parity.records.schema import Throughput
from fp8parity.records.storage import load_records
from fp8parity_lab.cli.predict import SHIPPED
from gap_tables import markdown

GOLDEN = Path(__file__).parents[2] / "golden"
RECIPES = ("te-current", "te-block")


def _sizes(hidden: int, heads: int, kv: int, head_dim: int, mlp: int, layers: int, **more: Any) -> dict[str, Any]:
    named = {"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head_dim, "num_hidden_layers": layers}
    return {"hidden_size": hidden, "intermediate_size": mlp, **named, "vocab_size": 32_000, **more}


CONFIGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "apertus-8b": ("apertus", _sizes(4096, 32, 8, 128, 21504, 32)),
    "arcee-4.5b": ("arcee", _sizes(2560, 20, 4, 128, 18432, 36)),
    "gemma-3-12b": ("gemma3_text", _sizes(3840, 16, 8, 256, 15360, 48)),
    "mistral-small-24b": ("mistral", _sizes(5120, 32, 8, 128, 32768, 40, sliding_window=None)),
    "olmo-2-13b": ("olmo2", _sizes(5120, 40, 40, 128, 13824, 40)),
    "qwen2.5-14b": ("qwen2", _sizes(5120, 40, 8, 128, 13824, 48)),
    "qwen3-8b": ("qwen3", _sizes(4096, 32, 8, 128, 12288, 36)),
    "seed-oss-36b": ("seed_oss", _sizes(5120, 80, 8, 128, 27648, 64)),
    "mixtral-8x7b": (
        "mixtral",
        _sizes(4096, 32, 8, 128, 14336, 32, num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    ),
    "qwen3-30b-a3b": (
        "qwen3_moe",
        _sizes(2048, 32, 4, 128, 6144, 48, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8),
    ),
    "glm-4-9b": ("glm4", _sizes(4096, 32, 2, 128, 13696, 40, pad_token_id=0)),
    "granite-3-8b": ("granite", _sizes(4096, 32, 8, 128, 12800, 40)),
    "llama-3.1-8b": ("llama", _sizes(4096, 32, 8, 128, 14336, 32)),
    "phi-3-medium": ("phi3", _sizes(5120, 40, 10, 128, 17920, 40, pad_token_id=0)),
    "smollm3-3b": ("smollm3", _sizes(2048, 16, 4, 128, 11008, 36, pad_token_id=0)),
    "starcoder2-15b": ("starcoder2", _sizes(6144, 48, 4, 128, 24576, 40)),
    "command-r-35b": ("cohere", _sizes(8192, 64, 64, 128, 22528, 40)),
    "helium-2b": ("helium", _sizes(2560, 20, 20, 128, 7040, 24)),
    "hunyuan-7b": ("hunyuan_v1_dense", _sizes(4096, 32, 8, 128, 14336, 32, pad_token_id=0)),
    "olmo-7b": ("olmo", _sizes(4096, 32, 32, 128, 11008, 32)),
    "stablelm-2-12b": ("stablelm", _sizes(5120, 40, 8, 128, 13824, 40, use_parallel_residual=True, qk_layernorm=True)),
}
"""Model types of transformers and the sizes of a published model; the vocabulary is not part of a block."""


def configs(folder: Path) -> None:
    from transformers import AutoConfig

    for name, (kind, sizes) in CONFIGS.items():
        AutoConfig.for_model(kind, **sizes).save_pretrained(folder / name)


def fp8parity(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fp8parity", *map(str, words)]
    return subprocess.run(command, text=True, capture_output=True, check=False)


def predict(folder: Path, file: Path, gpu: str | Path = "h100", how: str | Path = "block") -> None:
    """Write the speed-up of each block that ``file`` lacks, with its 90% interval, or why there is none.

    ``how``: as "block" of this project's class, or as the "layer" of its own.
    """
    sets = [*sorted((SHIPPED / "prediction").glob("*.zip")), GOLDEN / "records" / "h100-experts-gemms.zip"]
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name, recipe in product(CONFIGS, RECIPES):
        if f"{name} {recipe}" in found:
            continue
        with TemporaryDirectory() as made:
            out = Path(made) / "rows.json"
            form = ("--layer", 0) if str(how) == "layer" else ("--block",)
            asked = (*form, "--gpu", gpu, "--recipe", recipe, "--json", out, "--records", *sets)
            done = fp8parity("predict", folder / name, *asked)
            rows = json.loads(out.read_text())["predicted"] if out.exists() else []
        row = next((r for r in rows if r["recipe"] == recipe and r["execution"] == "native"), None)
        keys = ("speed_up", "low", "high", "seconds")
        refused = {"refused": done.stderr.strip().rpartition("\n")[2]}
        found[f"{name} {recipe}"] = {k: row[k] for k in keys} if row else refused
    file.write_text(json.dumps(found, indent=1) + "\n")


def timings(folder: Path) -> dict[str, Throughput]:
    """Return the timings of a folder or a set by block and recipe."""
    return {f"{r.cell.model} {r.cell.recipe}": r for r in load_records(folder) if isinstance(r, Throughput)}


def time(folder: Path, records: Path, *timed: Path) -> None:
    done = {key for known in timed for key in timings(known)}
    for name, recipe in product(CONFIGS, RECIPES):
        if f"{name} {recipe}" not in done:
            asked = ("--recipe", recipe, "--layer", 0, "--mode", "graphed", "--records", records)
            said = fp8parity("block", folder / name, *asked)
            print(f"{name} {recipe}: {(said.stdout + said.stderr).strip()[-400:]}", flush=True)


@dataclass(frozen=True)
class Error:
    """The relative errors of a predicted speed-up and of BF16's time.

    ``inside``: the interval holds the measured speed-up.
    """

    speed_up: float
    bf16: float
    inside: bool


def errors(file: Path, timed: Mapping[str, Throughput]) -> dict[str, Error]:
    """Return by block and recipe the errors of what was predicted and timed."""
    found = {}
    for key, told in json.loads(file.read_text()).items():
        if "speed_up" in told and key in timed:
            measured = speed.measured(timed[key])
            inside = told["low"] is not None and told["low"] <= measured.ratio <= told["high"]
            bf16 = told["seconds"] * told["speed_up"] * measured.bf16_tokens_per_second / timed[key].tokens
            found[key] = Error(told["speed_up"] / measured.ratio - 1, bf16 - 1, inside)
    return found


def has_experts(key: str) -> bool:
    return any("experts" in name for name in CONFIGS[key.partition(" ")[0]][1])


def _interval(told: Mapping[str, float | None]) -> str:
    low, high = told["low"], told["high"]
    return f"{told['speed_up']:.3f}x {'unknown' if low is None else f'[{low:.3f}, {high:.3f}]'}"


def _summary(of: Sequence[Error]) -> str:
    off, bf16 = [abs(e.speed_up) for e in of], [e.bf16 for e in of]
    mean = f"{len(of)} blocks: mean error {fmean(off):.1%}, largest {max(off):.1%}"
    held = f"the interval holds {sum(e.inside for e in of)} of them"
    return f"{mean}; {held}; BF16's time is off by {min(bf16):+.1%} to {max(bf16):+.1%}"


def table(records: Path, *files: Path) -> None:
    """Print the measured speed-ups, and of each file of predictions its errors: at least one block was timed."""
    timed, told = timings(records), [json.loads(file.read_text()) for file in files]
    off, rows = [errors(file, timed) for file in files], []
    for key in (key for key in told[-1] if key in timed):
        row = [key, f"{speed.measured(timed[key]).ratio:.3f}x"]
        for predicted, wrong in zip(told, off, strict=True):
            p = predicted.get(key, {})
            row += [_interval(p) if "speed_up" in p else "refused" if p else "-"]
            row += [f"{wrong[key].speed_up:+.1%}" if key in wrong else "-"]
        rows.append(row)
    print("\n".join(markdown(["block and recipe", "measured", *["predicted [90%]", "error"] * len(files)], rows)))
    for file, wrong in zip(files, off, strict=True):
        print(f"\n{file.name}: {_summary([*wrong.values()])}.")
        plain = {key: e for key, e in wrong.items() if not has_experts(key)}
        print(f"Without experts: {_summary([*plain.values()])}.")
        if more := [e for key, e in plain.items() if key not in told[0]]:
            print(f"Of these, not in {files[0].name}: {_summary(more)}.")


if __name__ == "__main__":
    {f.__name__: f for f in (configs, predict, time, table)}[sys.argv[1]](*map(Path, sys.argv[2:]))
