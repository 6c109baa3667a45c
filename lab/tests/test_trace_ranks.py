"""Trace a step on two ranks: a fault of one rank is named with it, and sound steps have none."""

from __future__ import annotations

from pathlib import Path

import own_models
import pytest
import traced_ranks
from fp8parity import cli
from fp8parity.distributed.launch import launch
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Execution
from fp8parity_lab.tracing import ranks
from traced import MICRO, SCHEDULE


@pytest.fixture(scope="module")
def notes() -> dict[str, list[str]]:
    """The operations over their budget, by the name of a trace. The ranks start once: that takes half a minute of a processor."""
    work = RECIPES["te-current"], Execution.EMULATED, own_models.CPU, MICRO.model, SCHEDULE, MICRO.corpus
    spec = ranks.TraceSpec(*work, ranks=2, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        _, found = launch("traced_ranks:measure", spec, limit=ranks.LIMIT, patience=ranks.PATIENCE)
    return {name: over for name, *over in (note.split("|") for note in found)}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", traced_ranks.SOUND)
def test_sound_step_of_two_ranks_has_no_operation_over_its_budget(notes, recipe):
    assert notes[f"sound {recipe}"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), traced_ranks.FAULTS.items())
def test_fault_is_named_with_its_rank(notes, name, fault):
    first = [f"{fault.first} on rank {rank}" for rank in fault.ranks]
    assert notes[name][: len(first)] == first
    assert (
        fault.shared
        or fault.ranks == (0, 1)
        or not [o for o in notes[name] if not o.endswith("rank 1") and "reduced" not in o]
    )


@pytest.mark.slow
def test_command_traces_two_ranks(capsys):
    assert cli.main(["trace", "te-mxfp8", "--model", "micro", "--ranks", "2", "--device", "cpu"]) == 0
    first, output, *_, repeat = capsys.readouterr().out.splitlines()
    assert first == "te-mxfp8 (emulated, eager) on micro, 2 ranks, seed 0: 352 operations, none over its budget."
    assert output.startswith("The output of the model on rank 1 is 3")
    assert repeat == "repeat: fp8parity trace te-mxfp8 --model micro --seed 0 --mode eager --device cpu --ranks 2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "2", "--mode", "compiled"), "--ranks traces eager steps without fused layers"),
        (("--ranks", "0"), "--ranks 0: give 1 or more"),
        (("--ranks", "2", "--model", "hf:llama"), "hf-llama is not sharded here"),
        (("--execution", "fused"), "te-current fused needs a GPU of sm_90; this machine has none"),
    ],
)
def test_command_refuses_what_it_cannot_trace(words, message, capsys):
    assert cli.main(["trace", "te-current", *words, "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
