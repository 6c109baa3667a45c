"""Mutation testing of the deciding code: change one thing in a module, run the tests that judge this module, and see whether they notice.

    python benchmarks/mutants.py --sample 60 --seed 1 --write docs/mutation.md

The driver copies the working tree, so it can run beside other work. Each mutant runs in a process of its own with a time-out. A mutant is
*killed* if a test fails or the time-out ends, and it *survived* if all tests pass. Survivors that change no verdict, exit status or
sentence stand in ``mutants.toml`` with the reason.

This is no tool of others, because cosmic-ray starts a command and so an import of torch for each mutant, and mutmut first runs all tests to
learn which of them call a function. Here a table says which tests judge a module, and each process is forked from one that holds all
libraries.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mutations import Key, Mutant, mutants

ROOT = Path(__file__).parents[1]
PACKAGE = "fixtures/fp8parity"
TESTS = {
    "judging/gradients": "probe_faults probe_numbers first_step measured_numbers",
    "judging/quantities": "loss_windows judge",
    "judging/tolerances": "loss_windows",
    "judging/bounds": "complete_records judge_numerics policy measured_numbers first_step",
    "judging/calibration": "calibration_edges calibration",
    "judging/causes": "causes cause_edges",
    "judging/claims": "report_claims coverage",
    "judging/compare/__init__": "lost compare_loss compare compare_added compare_sentence compare_sets compare_numerics compare_speed",
    "judging/compare/change": "compare_loss compare compare_added compare_numerics compare_speed compare_beside",
    "judging/compare/gemms": "compare_gemms",
    "judging/compare/lost": "lost",
    "judging/compare/loss": "compare_loss compare compare_sets compare_beside compare_sessions",
    "judging/compare/numerics": "compare_numerics compare_gpus",
    "judging/compare/quantities": "compare_beside compare_loss",
    "judging/compare/speed": "compare_speed",
    "judging/completeness": "completeness made_good whole_shards references compare_added lost",
    "judging/coverage": "coverage",
    "judging/evaluate": "evaluate record_sets judge turned compare_sessions",
    "judging/gemm_entries": "gemm_goldens gemm_verdict",
    "judging/gemm_goldens": "gemm_goldens gemm_verdict",
    "judging/gemm_sums": "gemm_sums gemm_verdict gemm_command",
    "judging/gemms": "gemm_verdict gemm_sentences gemm_casts",
    "judging/history": "history lost",
    "judging/module_filter": "split linears",
    "judging/worth": "worth",
    "judging/golden_changes": "golden_changes golden_diff gemm_goldens",
    "judging/golden_diff": "golden_diff_edges golden_diff",
    "judging/golden_fields": "golden_fields",
    "judging/golden_runs": "golden_runs golden_fields loss_windows",
    "judging/golden_sessions": "throughput_goldens gemm_goldens gemm_casts",
    "judging/goldens": "overlay",
    "judging/identity": "identity inventories evaluate judge",
    "judging/inventories": "inventories",
    "judging/known_failures": "known_failures known_numbers",
    "judging/loss": "decide unfit_runs judge hardly_learnt loss_windows",
    "judging/unfit": "unfit_runs hardly_learnt loss_sentences judge",
    "judging/loss_goldens": "stale files golden_diff loss_windows evaluate golden_fields",
    "judging/loss_store": "stale files golden_diff",
    "judging/measured_numbers": "stored_numbers judge_numerics measured_numbers bad_input golden_diff",
    "judging/number_rows": "complete_records policy policy_rows judge_numerics measured_numbers trends policy_file",
    "judging/numerics": "judge_numerics trends policy",
    "judging/pair/__init__": "pair_moves pair_sentences pair_verdict",
    "judging/pair/aligned": "pair_aligned pair_verdict",
    "judging/pair/cost": "pair_cost pair_norms pair_shape",
    "judging/pair/finding": "pair_sentences pair_verdict",
    "judging/pair/noise": "pair_noise pair_verdict pair_shape",
    "judging/pair/norms": "pair_norms runs_norms",
    "judging/pair/shape": "pair_moves pair_norms pair_shape",
    "judging/policy": "complete_records overlay policy policy_rows policy_file coverage",
    "judging/published_gemms": "gemm_command",
    "judging/rows": "rows policy_file policy bad_input known_failures",
    "judging/speed": "speed_verdict throughput block_faults golden_fields alternation",
    "judging/speed_entries": "golden_fields speed_verdict throughput throughput_goldens alternation",
    "judging/speed_goldens": "speed_verdict throughput_goldens throughput golden_diff",
    "judging/speed_rows": "policy_rows policy_file gemm_verdict throughput",
    "judging/spreads": "spreads loss_windows",
    "judging/stats": "statistics loss_windows",
    "judging/tables": "bad_input golden_diff measured_numbers",
    "judging/verdict": "verdict report known_failures compare_sets gemm_verdict",
    "records/atomic": "atomic_edges atomic",
    "records/cell": "record_fields grouping cells record_sets files recipes",
    "records/files": "file_limits bad_input",
    "records/device": "record_fields cells device_profile",
    "records/gemms": "record_fields gemm_records prediction_casts",
    "records/history": "history",
    "records/inventory": "inventories",
    "records/timings": "record_fields block_records",
    "records/kernels": "kernel_names dispatch gemm_verdict",
    "records/locks": "lock_files golden_lock locks",
    "records/manifest": "record_fields set_files completeness compare_added",
    "records/probed": "record_fields probe_faults",
    "records/provenance": "record_fields resume record_sets",
    "records/schema": "record_fields set_files bad_input record_sets files",
    "records/sets": "grouping cells record_sets atomic turned compare_sessions",
    "records/storage": "set_files files record_sets bad_input",
    "records/watch": "record_fields gpu_monitor gemm_verdict",
    "report/sentence": "sentence report known_failures",
    "gate/selection": "selected_cells selection shared_gpus",
    "gate/tally": "tally",
}
"""The modules that decide, and the tests (tests/test_<name>.py) that judge each of them."""
IGNORED = shutil.ignore_patterns(".git", "__pycache__", ".parity*", ".*_cache", "*.egg-info", ".hypothesis")


class Result(NamedTuple):
    """What became of a mutant: "killed", "timeout" or "survived", and the seconds that it took."""

    mutant: Mutant
    outcome: str
    seconds: float


@dataclass(frozen=True)
class Workshop:
    """A copy of the working tree in which mutants are tried, one at a time."""

    root: Path
    timeout: float

    def judge(self, mutant: Mutant) -> Result:
        """Write the mutant, run the tests of its module, and write the module back."""
        path = self.root / PACKAGE / f"{mutant.module}.py"
        before, start = path.read_text(), time.monotonic()
        path.write_text(mutant.text)
        try:
            code = self.run([mutant.module], self.timeout)
        finally:
            path.write_text(before)
        outcome = "timeout" if code is None else "survived" if code == 0 else "killed"
        return Result(mutant, outcome, time.monotonic() - start)

    def run(self, modules: Iterable[str], timeout: float) -> int | None:
        """The exit status of the tests of these modules in a forked process, or None if they took longer than ``timeout`` seconds."""
        names = tests_of(modules)
        child = os.fork()
        if child == 0:
            os.setsid()
            os._exit(_tests(self.root, names))
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def load_libraries(self, modules: Iterable[str]) -> None:
        """Import here what the tests of these modules import from outside the tree, so that no forked process has to."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _tests(self.root, ["--collect-only", *tests_of(modules)], compiled=True)
            with os.fdopen(write, "w") as pipe:
                pipe.write("\n".join(n for n, m in sys.modules.items() if not _is_inside(self.root, m)))
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            names = pipe.read().split("\n")
        os.waitpid(child, 0)
        for name in names:
            with suppress(
                Exception
            ):  # a name that only its own package can import; the forked processes import it as before
                importlib.import_module(name)
        gc.freeze()


def tests_of(modules: Iterable[str]) -> list[str]:
    """The test files that judge these modules, each once."""
    return [
        f"tests/test_{name}.py" for name in dict.fromkeys(name for module in modules for name in TESTS[module].split())
    ]


def _is_inside(root: Path, module: object) -> bool:
    """Whether a module may depend on the tree: its file lies there, or it has none."""
    file = getattr(module, "__file__", None)
    return file is None or Path(file).is_relative_to(root)


def _tests(root: Path, names: Sequence[str], *, compiled: bool = False) -> int:
    """Run pytest in this process, in silence. It returns a status other than 0 for whatever goes wrong.

    With ``compiled`` it leaves the bytecode of all modules. A mutant never leaves its own, and its file has another time than the bytecode.
    """
    import pytest

    os.chdir(root)
    sys.path[:0] = [str(root / name) for name in ("fixtures", "tests", "benchmarks")]
    os.environ |= {"PYTHONPATH": str(root / "fixtures"), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = not compiled
    try:
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
            return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *names]))
    except BaseException:  # a mutant may raise anything, also while pytest starts; all of it is noticed
        return 70


def sample(every: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants by chance, in the order of the modules. Each module has its share."""
    return sorted(random.Random(seed).sample(list(every), min(count, len(every))), key=lambda m: (m.module, m.line))


Reasons = Mapping[Key, str]
"""Why mutants change nothing that decides, by ``Mutant.key``."""


def reasons() -> Reasons:
    """The reasons of ``mutants.toml``. A row is about the first of equal changes, or about those whose numbers ``nth`` lists."""
    rows = tomllib.loads((Path(__file__).with_suffix(".toml")).read_text())["equivalent"]
    return {(row["module"], row["code"], row["change"], n): row["why"] for row in rows for n in row.get("nth", [1])}


def report(results: Sequence[Result], total: int, command: str, why: Reasons) -> str:
    """The report as Markdown: one line a module, then every survivor."""
    lines = [
        "# Mutation testing of the deciding code",
        "",
        "One thing in a module is changed, and the tests that judge the module run. A mutant that no test notices has survived.",
        "`benchmarks/mutants.py` holds the table of modules and tests. `benchmarks/mutants.toml` holds the survivors that change no",
        "verdict, no exit status and no sentence, with the reason.",
        "",
        f"`{command}`: {len(results)} of {total} mutants, {sum(r.seconds for r in results):.0f} s.",
        "",
        "| module | tests | mutants | killed | of them by time-out | equivalent | survived |",
        "|---|---|---|---|---|---|---|",
    ]
    for module in dict.fromkeys(r.mutant.module for r in results):
        own = [r for r in results if r.mutant.module == module]
        lines.append(f"| {module} | {TESTS[module]} | {_counts(own, why)} |")
    lines += [f"| all | | {_counts(results, why)} |", "", "## Survivors", ""]
    left = [r.mutant for r in results if r.outcome == "survived"]
    rows = [f"| {m.module}:{m.line} | `{_cell(m.change)}` | {why.get(m.key, 'open')} |" for m in left]
    return (
        "\n".join(
            [*lines, *(["| place | change | equivalent because |", "|---|---|---|", *rows] if rows else ["None."])]
        )
        + "\n"
    )


def _counts(results: Sequence[Result], why: Reasons) -> str:
    survived = [r for r in results if r.outcome == "survived"]
    equal = sum(r.mutant.key in why for r in survived)
    late = sum(r.outcome == "timeout" for r in results)
    return " | ".join(map(str, (len(results), len(results) - len(survived), late, equal, len(survived) - equal)))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Try a sample of mutants. Return 0 if every survivor has a reason, otherwise 1, and 2 if the tests fail without a mutant."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--sample", type=int, default=0, help="the number of mutants (default: all)")
    made.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    made.add_argument(
        "--module", action="append", default=[], choices=list(TESTS), help="only this module (repeatable)"
    )
    made.add_argument("--timeout", type=float, default=300, help="seconds of one mutant (default: 300)")
    made.add_argument("--write", type=Path, help="write the report into this file")
    args = made.parse_args(argv)
    modules = args.module or list(TESTS)
    every = [m for name in modules for m in mutants(name, (ROOT / PACKAGE / f"{name}.py").read_text())]
    chosen = sample(every, args.sample or len(every), args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        tree = shutil.copytree(ROOT, Path(scratch) / "tree", ignore=IGNORED, symlinks=True)
        workshop = Workshop(tree, args.timeout)
        workshop.load_libraries({m.module for m in chosen})
        if workshop.run({m.module for m in chosen}, len(TESTS) * args.timeout) != 0:
            say("the tests fail without a mutant")
            return 2
        results = []
        for mutant in chosen:
            results.append(workshop.judge(mutant))
            say(
                f"{results[-1].outcome:<8} {results[-1].seconds:5.1f} s  {mutant.module}:{mutant.line}  {mutant.change}"
            )
    why = reasons()
    options = f" --sample {args.sample} --seed {args.seed}" if args.sample else ""
    text = report(results, len(every), f"python benchmarks/mutants.py{options}", why)
    if args.write:
        args.write.write_text(text)
    say(text)
    return int(any(r.outcome == "survived" and r.mutant.key not in why for r in results))


if __name__ == "__main__":
    raise SystemExit(main())
