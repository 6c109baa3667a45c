"""What may become a reference: the whole sentence of a refusal, and what the user may answer for."""

from __future__ import annotations

import pytest
from fp8parity.judging.completeness import doubts, refuse, unknown_selection
from fp8parity.records.manifest import Manifest
from sessions import cell

COMMITS = "abcdefabcdef0123", "0123456789abcdef"


@pytest.fixture
def runs(trajectory):
    """Two seeds of BF16: of one commit, and of two."""

    def made(*commits: str, dirty: bool = False):
        runs = [trajectory(seed=s) for s in range(len(commits))]
        changes = [{"commit": c, "dirty": dirty} for c in commits]
        return [
            r.model_copy(update={"provenance": r.provenance.model_copy(update=c)})
            for r, c in zip(runs, changes, strict=True)
        ]

    return made


def refusal(*asked, **options) -> str:
    with pytest.raises(ValueError, match="may not become a reference") as error:
        refuse("set.zip", *asked, **options)
    return str(error.value)


def test_records_of_several_commits_are_refused_unless_the_user_answers_for_them(runs):
    records = runs(*COMMITS)
    why = "the records are of 2 commits: abcdefabcdef (1 records), 0123456789ab (1 records)"
    assert doubts([], records) == [why]
    assert (
        refusal([], records)
        == f"set.zip: this set may not become a reference: {why}; if their code gives the same numbers, add --several-commits"
    )
    refuse("set.zip", [], records, several_commits=True)
    refuse("set.zip", [], runs(COMMITS[0], COMMITS[0]))


def test_a_refusal_counts_its_other_reasons(runs):
    dirty = "1 records are of a tree with uncommitted changes: bf16-nano-native-topics-seed0.json"
    assert refusal([], runs(COMMITS[0], dirty=True)) == f"set.zip: this set may not become a reference: {dirty}"
    both = runs(*COMMITS, dirty=True)
    assert "(1 records) (and 1 more reasons; fp8parity judge names them); if their code" in refusal([], both)
    alone = "2 records are of a tree with uncommitted changes: bf16-nano-native-topics-seed0.json, bf16-nano-native-topics-seed1.json"
    assert refusal([], both, several_commits=True) == f"set.zip: this set may not become a reference: {alone}"


def test_a_set_without_a_manifest_is_said_to_have_none(trajectory):
    """It also says if it holds no recipe. With a manifest, the session itself is red then."""
    bf16, recipe = trajectory(), trajectory(cell=cell("te-block", "native", "nano"))
    none = "this set has no manifest: what was selected is not known"
    assert unknown_selection([], [bf16, recipe]) == [none]
    assert unknown_selection([], [bf16]) == [f"{none}; only the BF16 control was checked and no recipe"]
    note = Manifest(
        session="s", options=[], started="a", ended="b", status="ok", provenance=bf16.provenance, selected=[]
    )
    assert unknown_selection([note], [bf16]) == []
