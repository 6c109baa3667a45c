"""Train many seeds of many recipes on CPU cores side by side, one process a core, into a records folder.

    python benchmarks/train_many.py --recipe 'te-*' --seeds 100-129 --workers 2 --records /tmp/fresh

Finished records are kept, so a killed run resumes. ``benchmarks/false_alarms.py`` and ``benchmarks/noise.py`` read them.
"""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from fp8parity import recipes
from fp8parity.recipes.matrix import executions
from fp8parity.records.cell import CONTROL_RECIPE, DEFAULT_MODEL, Cell
from fp8parity.records.storage import file_name, write_json
from fp8parity.workload.presets import presets


def one(job: tuple[int, str], *, model: str, threads: int, records: Path) -> str:
    """Train one (seed, recipe) unless it is on record."""
    import torch
    from fp8parity.training.loop import train
    from fp8parity.workload import corpus

    warnings.simplefilter("ignore")
    seed, name = job
    recipe = recipes.get(name)
    execution = executions(recipe)[-1]
    preset = presets()[model]
    path = records / file_name(Cell(model=model, recipe=name, execution=execution, corpus=preset.corpus), f"seed{seed}")
    if path.exists():
        return f"kept {path.name}"
    made = train(
        preset.model,
        recipe,
        execution,
        replace(preset.schedule, threads=threads),
        corpus.load(preset.corpus),
        seed,
        device=torch.device("cpu"),
        session="train_many",
    )
    write_json(path, made)
    return f"{path.name} {made.seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", action="append")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--seeds", default="0-7", help="first-last")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--records", type=Path, required=True)
    args = parser.parse_args()
    first, last = map(int, args.seeds.split("-"))
    names = [n for n in recipes.RECIPES if n == CONTROL_RECIPE or any(fnmatchcase(n, g) for g in args.recipe or ["*"])]
    jobs = [(seed, name) for seed in range(first, last + 1) for name in names]
    work = partial(one, model=args.model, threads=args.threads, records=args.records)
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for line in pool.map(work, jobs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
