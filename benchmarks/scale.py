"""How time and memory grow with the number of records: ``judge``, ``merge``, ``compare`` and the HTML report.

    python benchmarks/scale.py 1000 10000

Large sets are made from committed sets. Each copy of a record has a recipe name as plugins give them ("te-current-plugin3"). Each
command runs in a process of its own, so that its peak memory is its own. The table shows process time in seconds, peak memory in MiB,
and the size of the HTML report in MB.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fp8parity.cli import main as fp8parity
from fp8parity.records.schema import AnyRecord
from fp8parity.records.storage import load_records, name_of, write_json

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / "golden/records" / f"{name}.zip" for name in ("xeon", "micro-xeon")]
GOLDEN = str(ROOT / "golden")


class Used(NamedTuple):
    """The process time in seconds and the peak memory in MiB of one command."""

    seconds: float
    peak: float


def copies(source: Sequence[AnyRecord], count: int) -> Iterator[AnyRecord]:
    """``count`` records: those of ``source``, then copies of the recipes' records under plugin-like names. BF16 is not copied."""
    recipes = [r for r in source if not r.cell.is_control]
    plugins = (
        r.model_copy(update={"cell": r.cell.model_copy(update={"recipe": f"{r.cell.recipe}-plugin{i}"})})
        for i in itertools.count(1)
        for r in recipes
    )
    return itertools.islice(itertools.chain(source, plugins), count)


def generate(sources: Sequence[Path], count: int, folder: Path) -> Path:
    """Write a set of ``count`` records into ``folder`` and return it."""
    for record in copies(load_records(*sources), count):
        write_json(folder / name_of(record), record)
    return folder


def commands(folder: Path, scratch: Path) -> dict[str, list[str]]:
    """The arguments of each command, by its name in the table."""
    golden = ["--golden-dir", GOLDEN]
    return {
        "judge": ["judge", str(folder), *golden],
        "merge": ["merge", str(scratch / "merged.zip"), str(folder)],
        "compare": ["compare", str(folder), str(folder), *golden],
        "HTML": ["judge", str(folder), *golden, "--report", str(scratch / "report.html")],
    }


def _measured(run: Callable[[], object], send: multiprocessing.connection.Connection) -> None:
    start = time.process_time()
    run()
    send.send(Used(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def measure(arguments: Sequence[str]) -> Used:
    """Run one command in a process of its own. Its output is thrown away."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(_Quiet(tuple(arguments)), send))
    process.start()
    send.close()
    used = receive.recv()
    process.join()
    return used


class _Quiet(NamedTuple):
    """A command whose output is thrown away. It is a class, because another process must be able to load it."""

    arguments: tuple[str, ...]

    def __call__(self) -> int:
        import contextlib
        import os

        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            return fp8parity(self.arguments)


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("counts", type=int, nargs="*", default=[500, 2000], help="numbers of records (default: 500 2000)")
    made.add_argument(
        "--source",
        type=Path,
        nargs="+",
        default=SOURCES,
        help="the sets to copy (default: xeon.zip and micro-xeon.zip)",
    )
    args = made.parse_args()
    print(f"{'records':>8}  {'command':<8} {'seconds':>8} {'MiB':>6} {'MB':>6}")
    for count in args.counts:
        scratch = Path(tempfile.mkdtemp())
        try:
            folder = generate(args.source, count, scratch / "set")
            for name, arguments in commands(folder, scratch).items():
                used = measure(arguments)
                page = scratch / "report.html"
                size = f"{page.stat().st_size / 1e6:6.1f}" if page.exists() else "     -"
                print(f"{count:>8}  {name:<8} {used.seconds:>8.2f} {used.peak:>6.0f} {size}", flush=True)
        finally:
            shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
