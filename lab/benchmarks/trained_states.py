"""Measure how the check ``gradients`` depends on one ulp of one initial weight.

    python lab/benchmarks/trained_states.py --model micro --replicas 15

For each recipe and metric at the trained state: the range over the plain state and its replicas, their standard
deviation, the measured number of golden/numerics, and the largest distance from it. The bands of the state "trained"
in golden/policy.toml rest on these. Recipes run emulated, on one thread of a CPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator

import torch
from fp8parity import recipes, shipped
from fp8parity.checks import gradients
from fp8parity.checks.protocol import RunSpec
from fp8parity.judging.references import numbers
from fp8parity.records.cell import DEFAULT_CORPUS, Execution
from fp8parity.training.variants import replica
from fp8parity.workload.presets import presets

RECIPES = (
    "te-current",
    "te-delayed",
    "te-block",
    "te-mxfp8",
    "te-nvfp4",
    "ao-tensorwise",
    "ao-rowwise",
    "ao-rowwise-gw-hp",
)
METRICS = ("total sqnr", "worst parameter sqnr", "worst row sqnr", "small half sqnr", "bias ratio")
STATE = "trained"


def measured(model: str, replicas: int) -> Iterator[tuple[str, str, float]]:
    """Yield recipe, metric and value at the plain state and at each replica's."""
    config, device = presets()[model].model, torch.device("cpu")
    for variant in (None, *map(replica, range(replicas))):
        weights = gradients._trained(config, DEFAULT_CORPUS, device, variant)
        gradients.trained_state = lambda *_, weights=weights: weights  # type: ignore[assignment]  # no cache of states
        for name in RECIPES:
            spec = RunSpec(recipes.get(name), Execution.EMULATED, device, config, gradients.TRAINING)
            for metric, value in gradients._at_state(spec, STATE)[0].items():
                yield name, metric, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="micro")
    parser.add_argument("--replicas", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for recipe, metric, value in measured(args.model, args.replicas):
        found[metric, recipe].append(value)
    stored = numbers.load(shipped.folder("golden")).tables[numbers.SHARED]
    print(f"torch {torch.__version__}, {args.model}, {args.replicas + 1} states")
    for metric in METRICS:
        for recipe in RECIPES:
            values = found[metric, recipe]
            keys = [numbers.NumberKey("gradients", metric, STATE, args.model, recipe, e) for e in numbers._STAND_INS]
            center = next(stored[key].value for key in keys if key in stored)
            away = max(abs(value - center) for value in values)
            print(
                f"{metric:20} {recipe:17} {values[0]:7.3f} [{min(values):7.3f}, {max(values):7.3f}] "
                f"sd {statistics.stdev(values):.3f}, at most {away:.2f} from {center:g}"
            )


if __name__ == "__main__":
    main()
