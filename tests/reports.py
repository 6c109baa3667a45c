"""Made-up sessions for the tests of reports: any number of recipes, models, seeds and steps, with chosen faults."""

from __future__ import annotations

import math
import random
from typing import Any

import sessions
from fp8parity.judging import loss, numerics
from fp8parity.judging.policy import LossRow
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import loss as loss_goldens
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.verdict import SpeedDetail, Verdict
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.provenance import Provenance
from fp8parity.records.schema import Measurement, Measurements, Module, NonFinite, Trajectory
from fp8parity.report import document
from fp8parity.report.blocks import Plot, Table, plain
from fp8parity.report.evidence import Evidence
from fp8parity.report.summary import Page, Report

RECIPES = (
    *("te-delayed", "te-current", "te-block", "te-mxfp8", "te-nvfp4"),
    *("ao-tensorwise", "ao-rowwise", "ao-rowwise-gw-hp", "ao-mxfp8"),
)
MODELS = ("tiny", "mini", "small", "base", "1b")
SNR = {
    "*": [("fprop", 32.0), ("dgrad", 22.0), ("gradient", 24.0)],
    "te-nvfp4": [("fprop", 19.0), ("dgrad", 8.0), ("gradient", 14.0)],
    "bf16": [("fprop", 51.0), ("dgrad", 40.0), ("gradient", 44.0)],
}
"""dB by GEMM and of the parameters' gradients, inside the bounds of golden/policy.toml."""
PARTS = ("attention.q", "attention.k", "attention.v", "attention.o", "mlp.gate", "mlp.up", "mlp.down")
LINEARS = [f"{i}.{part}_proj" for i in range(8) for part in PARTS]


ROW = LossRow(margin=0.005, why="the row of all made-up cells")


def provenance(**changes: object) -> Provenance:
    base = Provenance(
        packages={"torch": "2.11.0", "torchao": "0.18.0"}, device="NVIDIA H200", capability=[9, 0], driver="570", cuda="13.0", cpu="c",
        cpu_flags=["avx2"], threads=1, python="3.12", system="s", commit="abc", dirty=False, environment={"NVTE_X": "1 2"}, quantizer="-",
    )  # fmt: skip
    return base.model_copy(update=changes)


def run(model: str, recipe: str, seed: int, steps: int, gap: float = 0.0, **changes: object) -> Trajectory:
    """A curve that decays from 5.5 nats, with the noise of its seed and a little of its recipe; ``gap`` shifts its second half."""
    common, own = random.Random(f"{model}{seed}"), random.Random(f"{recipe}{model}{seed}")
    loss = []
    for s in range(steps):
        shift = 0.0 if recipe == "bf16" else own.gauss(0, 4e-4) + gap * (2 * s >= steps)
        loss.append((3.2 + 2.3 * math.exp(-9 * s / steps) + common.gauss(0, 0.02)) * (1 + shift))
    made = Trajectory(
        partial=True,
        cell=Cell(model=model, recipe=recipe, execution=Execution.NATIVE, corpus="topics"), seed=seed, spec_hash="s",
        schedule={"steps": steps, "tail": steps // 4}, parameters=1, fingerprint="f", floor=None,
        initial_weights=f"w{seed}", final_weights="w", loss=loss, grad_norm=[1.0] * steps, validation=[(steps - 1, loss[-1])],
        non_finite=None, inventory=[] if recipe == "bf16" else [Module(fqn="a", kind="b", config="c")], seconds=1.0, step_seconds=0.1,
        peak_memory=1, mode=Mode.EAGER, provenance=provenance(), session="s",
    )  # fmt: skip
    return made.model_copy(update=changes)


def layers(model: str, recipe: str) -> Measurements:
    rng = random.Random(f"{model}{recipe}")
    levels = SNR.get(recipe, SNR["*"])
    values = [
        Measurement(metric=f"{gemm} layer sqnr", where=w, value=level + rng.uniform(-2, 2))
        for w in LINEARS
        for gemm, level in levels[:2]
    ]
    parameters = [f"layers.{w}.weight" for w in LINEARS] + ["embedding.weight", "norm.weight", "lm_head.weight"]
    values += [
        Measurement(metric="gradient sqnr", where=p, value=levels[2][1] + rng.uniform(-2, 2)) for p in parameters
    ]
    cell = Cell(model=model, recipe=recipe, execution=Execution.NATIVE, corpus="topics")
    return Measurements(cell=cell, check="layers", values=values, provenance=provenance(), session="s")


def speed(model: str, recipe: str, ratio: float = 1.31) -> Verdict:
    cell = Cell(model=model, recipe=recipe, execution=Execution.NATIVE, corpus="topics")
    numbers = SpeedDetail(
        ratio=ratio, low=ratio - 0.02, high=ratio + 0.02, pairs=30, tokens_per_second=13100, bf16_tokens_per_second=10000, mfu=0.412,
        bf16_mfu=0.315, memory=21 * 2**30, bf16_memory=20 * 2**30, mode=Mode.COMPILED,
    )  # fmt: skip
    return Verdict(cell=cell, check="throughput", status="pass", headline="inside the golden's band", detail=numbers)


def session(
    recipes: tuple[str, ...] = RECIPES,
    models: tuple[str, ...] = ("tiny",),
    seeds: int = 3,
    steps: int = 160,
    gaps: dict[tuple[str, str], float] | None = None,
    stops: dict[tuple[str, str], int] | None = None,
    speeds: bool = False,
) -> tuple[list[Verdict], Evidence]:
    """Verdicts and evidence. ``gaps`` and ``stops`` are faults by (recipe, model): a shift of the loss, a non-finite step."""
    own, rows = sessions.stored()
    rules = rows.model_copy(update={"loss": (ROW,)})
    stored = Goldens(own.loss, numbers=MeasuredNumbers())  # made-up layers have no measured numbers
    verdicts: list[Verdict] = []
    records: list[Trajectory | Measurements] = []
    kept = {}
    for model in models:
        controls = [run(model, "bf16", s, steps) for s in range(seeds)]
        golden = loss_goldens.from_runs([run(model, "bf16", s, steps) for s in range(8)], [])
        kept[model, "topics"] = golden
        for recipe in ("bf16", *recipes):
            runs = [run(model, recipe, s, steps, (gaps or {}).get((recipe, model), 0.0)) for s in range(seeds)]
            stop = (stops or {}).get((recipe, model))
            if stop is not None:
                runs[0] = runs[0].model_copy(
                    update={"loss": [*runs[0].loss[:stop], math.nan], "non_finite": NonFinite(step=stop, where="loss")}
                )
            verdict = loss.judge(runs, controls if recipe != "bf16" else runs, golden, rules, stored.numbers)
            measured = layers(model, recipe)
            verdicts += [verdict, numerics.judge(measured, rules, stored.numbers)]
            verdicts += [speed(model, recipe)] if speeds and recipe != "bf16" else []
            records += [*runs, measured]
    return verdicts, Evidence(records=records, goldens=Goldens(loss=kept, numbers=stored.numbers), policy=rules)


def report(skipped: dict[str, str] | None = None, problems: tuple[str, ...] = (), **options: Any) -> Report:
    verdicts, evidence = session(**options)
    return Report(verdicts, skipped, problems, "h100 (sm_90)", evidence)


def plots(report: Report) -> dict[str, Plot]:
    """All plots of a report by name."""
    return {b.name: b for b in document(report, Page()).blocks if isinstance(b, Plot)}


def tables(report: Report) -> dict[str, Table]:
    """All tables of a report by title."""
    return {b.title: b for b in document(report, Page()).blocks if isinstance(b, Table)}


def texts(table: Table) -> list[list[str]]:
    """The rows of a table as plain text."""
    return [[plain(entry) for entry in row] for row in table.rows]
