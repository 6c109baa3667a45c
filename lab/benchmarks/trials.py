"""Make trials from recorded runs: planted faults, which a rule should call red, and sound cells. No torch.

A trial has two or three seeds. Every rule judges the same runs, so rules are compared at equal compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from fp8parity.judging.evaluate import evaluate, stages
from fp8parity.judging.policy import Policy
from fp8parity.judging.policy.rows import window_of
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import loss as loss_goldens
from fp8parity.judging.references import noise as spreads
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.trainer_calibration import REPLICA
from fp8parity.judging.verdict import LOSS, Verdict
from fp8parity.records.cell import Cell
from fp8parity.records.schema import AnyRecord, Trajectory
from fp8parity.records.sets import Machine, machines

SEEDS = 3
"""The number of seeds of a trial: the first stage of the gate."""
GREEN = ("pass", "improved")
KINDS = ("fault in BF16", "fault in a recipe", "sound recipe", "BF16 replica", "own golden")
FRAMEWORK, RECIPE, SOUND, REPLICAS, DEVICES = KINDS
CARRIER = "te-current"
"""The recipe that carries the faults of a recipe, if it was recorded."""


@dataclass(frozen=True)
class Trial:
    """Runs of one cell to judge, seed by seed.

    ``references`` are what other projects' rules compare with. ``controls`` are the BF16 runs of the session (none for
    BF16 itself), and ``golden`` is what this project compares with. ``reserve`` holds more runs of the session with
    their controls: this project's gate takes them if its first seeds do not decide.
    """

    kind: str
    name: str
    runs: tuple[Trajectory, ...]
    references: tuple[Trajectory, ...]
    controls: tuple[Trajectory, ...]
    golden: Golden
    reserve: tuple[spreads.Pair, ...] = ()

    @property
    def should_be_red(self) -> bool:
        return self.kind in (FRAMEWORK, RECIPE)


@dataclass(frozen=True)
class Model:
    """All runs of one model, corpus and schedule; ``pairs`` holds the distinct runs of recipes with their BF16 runs."""

    title: str
    golden: Golden
    rules: Policy
    sessions: Sequence[Machine]
    pairs: Sequence[spreads.Pair]

    @property
    def planted(self) -> Iterator[tuple[Machine, str, list[Trajectory]]]:
        """Iterate over the runs with a planted change: (session, name, one run a seed)."""
        for session in self.sessions:
            groups: dict[str, list[Trajectory]] = {}
            for r in session.variants:
                if isinstance(r, Trajectory) and not r.non_finite:
                    groups.setdefault(r.variant, []).append(r)
            yield from ((session, name, sorted(runs, key=lambda r: r.seed)) for name, runs in groups.items())

    @property
    def faults(self) -> list[str]:
        return sorted({name for _, name, _ in self.planted if not name.startswith(REPLICA)})


def models(sets: Sequence[Sequence[AnyRecord]], stored: Goldens, rules: Policy) -> list[Model]:
    """Return the models of record sets that have a golden of their schedule, in the order of the sets."""
    found: dict[tuple[str, str, str], list[Machine]] = {}
    for records in sets:
        for machine in machines(r for r in records if isinstance(r, Trajectory)):
            parts: dict[tuple[str, str, str], list[AnyRecord]] = {}
            for r in (r for r in machine.records if isinstance(r, Trajectory)):
                parts.setdefault((r.cell.model, r.cell.corpus, r.spec_hash), []).append(r)
            for key, part in parts.items():
                found.setdefault(key, []).append(machines(part)[0])
    made = []
    for (name, corpus, spec), sessions in found.items():
        golden = stored.loss.get((name, corpus))
        if golden is not None and golden.spec_hash == spec:
            made.append(Model(f"{name} on {corpus}", golden, rules, sessions, _pairs(sessions)))
    return made


def _pairs(sessions: Sequence[Machine]) -> list[spreads.Pair]:
    """Return the distinct runs of recipes with their controls. Runs that are equal to the bit count once."""
    found: dict[tuple[object, ...], spreads.Pair] = {}
    for session in sessions:
        for cell, runs in session.runs.items():
            for run in runs:
                control = None if cell.is_control or run.non_finite else session.control(run)
                if control:
                    found.setdefault((cell, run.seed, *run.loss), (run, control))
    return list(found.values())


def with_spreads(golden: Golden, pairs: Sequence[spreads.Pair], rules: Policy) -> Golden:
    """Return the golden with the noise of these runs, one for each [[loss]] row with enough seeds, before its own."""
    kept = list(golden.noise)
    groups: dict[str, list[spreads.Pair]] = {}
    for run, control in pairs:
        groups.setdefault(rules.loss_row(run.cell).model_dump_json(), []).append((run, control))
    for found in groups.values():
        if len({run.seed for run, _ in found}) >= spreads.LEAST_SEEDS:
            made = spreads.measure_noise(found, golden, window_of(golden.steps))
            kept = [made, *kept]  # the first noise of a recipe counts
    return golden.model_copy(update={"noise": kept})


def verdict(trial: Trial, stored: Goldens, rules: Policy) -> Verdict:
    """Judge a trial as a gate does: the seeds of the first stage, and more while it is ``inconclusive``."""
    cell = trial.runs[0].cell
    goldens = Goldens({(cell.model, cell.corpus): trial.golden}, numbers=stored.numbers)
    pairs = [*((r, *(c for c in trial.controls if c.seed == r.seed)) for r in trial.runs), *trial.reserve]
    counts = stages(cell, goldens, rules)
    if len(pairs) < counts[0]:  # fewer seeds than a gate takes: judged as with --seeds
        rules = rules.with_seeds(len(pairs))
    for count in sorted({min(n, len(pairs)) for n in counts}):
        [found] = evaluate([r for pair in pairs[:count] for r in pair], goldens, rules)
        made = next(v for v in found.verdicts if v.cell == cell and v.check == LOSS)
        if made.status != "inconclusive":
            break
    return made


def of(model: Model, stored: Goldens) -> list[Trial]:
    """Return all trials of a model. The recipe that carries faults is one that is green without them."""
    sound = list(_sound(model))
    green = [t.runs[0].cell for t in sound if verdict(t, stored, model.rules).status in GREEN]
    carriers = sorted(set(green), key=lambda c: (c.recipe != CARRIER, c.id))
    return [*_faults(model, carriers), *sound, *_devices(model)]


def _faults(model: Model, carriers: Sequence[Cell]) -> Iterator[Trial]:
    """Iterate over planted changes in BF16, and the same gaps in one recipe, in addition to its own."""
    for session, name, changed in model.planted:
        plain = {r.seed: control for r in changed if (control := session.control(r))}
        runs = [r.model_copy(update={"variant": ""}) for r in changed if r.seed in plain]
        if len(runs) < 2 or any(model.golden.seed(r.seed) is None for r in runs):
            continue
        own = tuple(plain[r.seed] for r in runs)
        sound = name.startswith(REPLICA)
        yield Trial(REPLICAS if sound else FRAMEWORK, name, tuple(runs), own, (), model.golden)
        cell = next((c for c in carriers if c in session.runs), None)
        carrier = session.seeds(cell) if cell else {}
        if not sound and all(r.seed in carrier for r in runs):
            both = tuple(combined(carrier[r.seed], r, plain[r.seed]) for r in runs)
            yield Trial(RECIPE, name, both, own, own, model.golden)


def combined(run: Trajectory, fault: Trajectory, plain: Trajectory) -> Trajectory:
    """Return the run with the relative gaps of ``fault`` to ``plain`` in addition to its own."""

    def times(a: Sequence[float], b: Sequence[float], c: Sequence[float]) -> list[float]:
        return [x * y / z for x, y, z in zip(a, b, c, strict=True)]

    known = fault.first_gradients.keys() & plain.first_gradients.keys()
    ratio = {k: fault.first_gradients[k] / plain.first_gradients[k] for k in known if plain.first_gradients[k] > 0}
    last = run.validation[-1][1] * fault.validation[-1][1] / plain.validation[-1][1]
    changes = {
        "loss": times(run.loss, fault.loss, plain.loss),
        "grad_norm": times(run.grad_norm, fault.grad_norm, plain.grad_norm),
        "first_gradients": {k: v * ratio.get(k, 1.0) for k, v in run.first_gradients.items()},
        "validation": [*run.validation[:-1], (run.validation[-1][0], last)],
    }
    return run.model_copy(update=changes)


def _sound(model: Model) -> Iterator[Trial]:
    """Iterate over distinct sound runs of recipes. Their bands rest on other seeds, where enough were recorded."""
    cells: dict[Cell, list[spreads.Pair]] = {}
    for pair in model.pairs:
        cells.setdefault(pair[0].cell, []).append(pair)
    for cell, found in cells.items():
        row = model.rules.loss_row(cell)
        for first, reserve in _groups(found, row.seeds[-1]):
            taken = [*first, *reserve]
            runs, controls = zip(*first, strict=True)
            seeds = {r.seed for r, _ in taken}
            own = loss_goldens.from_runs([c for _, c in taken], []).model_copy(update={"noise": model.golden.noise})
            others = [p for p in model.pairs if p[0].seed not in seeds and model.rules.loss_row(p[0].cell) == row]
            golden = with_spreads(model.golden if all(map(model.golden.seed, seeds)) else own, others, model.rules)
            name = f"{cell.recipe} {cell.execution.value}, seeds {', '.join(str(r.seed) for r in runs)}"
            yield Trial(SOUND, name, runs, controls, controls, golden, tuple(reserve))


def _groups(found: Sequence[spreads.Pair], most: int) -> Iterator[tuple[list[spreads.Pair], list[spreads.Pair]]]:
    """Iterate over groups of ``SEEDS`` seeds, each with the session's next seeds.

    They are up to ``most`` in all.
    """
    sessions: dict[tuple[str, str], list[spreads.Pair]] = {}
    for pair in found:
        sessions.setdefault((pair[0].provenance.device, pair[0].session), []).append(pair)
    for pairs in sessions.values():
        ordered = sorted({p[0].seed: p for p in pairs}.values(), key=lambda p: p[0].seed)
        size = min(SEEDS, len(ordered))
        for i in range(0, len(ordered) - size + 1, size) if size > 1 else ():
            yield ordered[i : i + size], [*ordered[i + size :], *ordered[:i]][: most - size]


def _devices(model: Model) -> Iterator[Trial]:
    """Iterate over sound cells and the same cell of another session or device.

    The latter takes the place of their golden.
    """
    for old, new in combinations(model.sessions, 2):
        for cell in [c for c in new.runs if c in old.runs]:
            before, after = old.seeds(cell), new.seeds(cell)
            both_have = [s for s in before if s in after and before[s].session != after[s].session]
            shared = sorted(s for s in both_have if model.golden.seed(s))[:SEEDS]
            controls = [new.control(after[s]) for s in shared]
            if len(shared) < 2 or None in controls:
                continue
            runs, references = (tuple(part[s] for s in shared) for part in (after, before))
            both = () if cell.is_control else tuple(c for c in controls if c)
            name = f"{cell.recipe} {cell.execution.value}, {old.environment.device} then {new.environment.device}"
            yield Trial(DEVICES, name, runs, references, both, model.golden)
