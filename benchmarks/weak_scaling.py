"""The tables of weak scaling from a record set, and what the model of communication predicts for other numbers of ranks.

    python benchmarks/weak_scaling.py golden/records/h100-x2.zip --ranks 2 8 256

For each model and recipe: a row for each number of ranks that was timed, and beside it the predicted rates. Above ``HOST`` ranks, messages
also pass the network between hosts. Nobody measured it here: ``--network`` is an assumption (50 GB/s a GPU, as 3200 Gb/s for 8 GPUs).
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

from fp8parity import recipes
from fp8parity.distributed.arms import ARMS
from fp8parity.distributed.scaling import arm_of
from fp8parity.judging import policy, references
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.verdict import LOSS, LossDetail
from fp8parity.prediction import weak_scaling
from fp8parity.prediction.communication import Link, Range, Traffic, shared_seconds, step, traffic
from fp8parity.prediction.weak_scaling import CHECK, Row
from fp8parity.records import sets
from fp8parity.records.cell import Cell
from fp8parity.records.device import DeviceProfile, Part
from fp8parity.records.schema import Measurements
from fp8parity.records.storage import gpu_slug
from fp8parity.workload.models import ModelConfig
from fp8parity.workload.presets import presets
from fp8parity.workload.schedule import SCALED

GOLDEN = Path(__file__).parents[1] / "golden"
PROFILES = GOLDEN / "prediction"
HOST = 8
TURN = 20e-6
"""Seconds of a turn of a ring between hosts: an assumption."""


def sent(config: ModelConfig, weight: int) -> Traffic:
    """What FSDP2 sends in a step of one microbatch. Converted weights have ``weight`` bytes; norms, embedding and head travel in BF16."""
    rest = config.dim + config.vocab * config.dim * (1 if config.tied else 2)
    block = (config.parameters - rest) / config.layers
    return traffic(config.layers, block, 1 - 2 * config.dim / block, rest, weight=weight)


def moved(device: str) -> float:
    """The bytes per second that a GPU reads and writes when it copies, from its profile in golden/prediction.

    Raises ``SystemExit`` if there is none.
    """
    path = PROFILES / f"{gpu_slug(device)}.zip"
    if not path.exists():
        raise SystemExit(f"{path}: no profile of {device}; `fp8parity profile --records DIR` measures one")
    [profile] = [r for r in sets.load([path]) if isinstance(r, DeviceProfile)]
    [copy] = profile.of(Part.COPY)
    return copy.sizes["bytes"] / copy.seconds


def predicted(alone: Range, shared: float, what: Traffic, host: Link, network: Link, ranks: int) -> Range:
    """Predict the seconds of a step: on one host with its link, on several with either."""
    return step(alone, shared, what, {"host": host} if ranks <= HOST else {"host": host, "network": network}, ranks)


def lines(cell: Cell, found: Sequence[Row], rate: float, host: Link, network: Link, ranks: Sequence[int]) -> list[str]:
    """A line for each number of ranks: the predicted rates of both sides, beside those that were measured. ``rate``: see ``moved``."""
    config = presets()[cell.model].model
    tokens, made = SCALED[config.name].tokens, []
    shared = shared_seconds(config.parameters, rate)
    [one] = [r for r in found if r.ranks == 1]
    for n in ranks:
        measured = next((r for r in found if r.ranks == n), None)
        parts = []
        for name, arm, rates, own in (
            ("BF16", ARMS[0], one.pairs[0], measured and measured.bf16),
            ("recipe", arm_of(recipes.get(cell.recipe)), one.pairs[1], measured and measured.recipe),
        ):
            alone = Range(tokens / max(rates), tokens / min(rates))
            seconds = predicted(alone, shared, sent(config, arm.weight_bytes), host, network, n)
            verdict = f", measured {own:,.0f} ({'inside' if seconds.holds(tokens / own) else 'OUTSIDE'})" if own else ""
            parts.append(f"{name} {tokens / seconds.high:,.0f} to {tokens / seconds.low:,.0f} tokens/s/rank{verdict}")
        made.append(f"{n} ranks: " + "; ".join(parts))
    return made


def losses(records: Path) -> dict[Cell, str]:
    """How much higher the loss of a cell is than BF16's, with its interval over seeds: the gap of its verdict on loss parity."""
    found = evaluate(sets.load([records]), references.load(GOLDEN), policy.load(GOLDEN, datetime.date.today()))
    details = {v.cell: v.detail for e in found for v in e.verdicts if v.check == LOSS}
    return {cell: d.gap.text for cell, d in details.items() if isinstance(d, LossDetail) and d.gap}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 256], help="numbers of ranks to predict")
    parser.add_argument("--losses", type=Path, help="a record set with trained runs of the same cells")
    parser.add_argument("--network", type=float, default=50e9, help="bytes per second and GPU between hosts")
    args = parser.parse_args()
    timed = [r for r in sets.load([args.records]) if isinstance(r, Measurements) and r.check == CHECK]
    higher = losses(args.losses) if args.losses else {}
    for cell, found in weak_scaling.rows(timed).items():
        print(
            f"\n{cell.model}, {cell.label}; loss higher than BF16's by {higher.get(cell, 'a share that nobody measured')}\n"
        )
        table = weak_scaling.table(found)
        print("\n".join("| " + " | ".join(line) + " |" for line in [table[0], ["---"] * len(table[0]), *table[1:]]))
        several = max((r for r in timed if r.cell.model_copy(update={"ranks": 1}) == cell), key=lambda r: r.cell.ranks)
        if several.cell.ranks > 1 and any(r.ranks == 1 for r in found):
            host = weak_scaling.measured_link(several)
            print(
                f"\nlink on {several.cell.ranks} ranks: {host.bandwidth / 1e9:.0f} GB/s, {host.seconds_per_turn * 1e6:.0f} us a turn"
            )
            print(
                "\n".join(
                    lines(cell, found, moved(several.provenance.device), host, Link(1 / args.network, TURN), args.ranks)
                )
            )


if __name__ == "__main__":
    main()
