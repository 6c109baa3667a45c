"""The spreads of the committed goldens follow from the committed record sets. An edited spread can be sealed again, but does not follow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.judging.references import store
from fp8parity.judging.references.loss import Golden
from fp8parity.records.storage import write_json
from sessions import GOLDEN

COMMANDS = (("h200", "h100"), ("micro-h100", "micro-h100-fresh", "micro-xeon"), ("micro-xeon-variants",))
"""The record sets of each ``fp8parity golden store`` in golden/README.md."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "golden", ignore=shutil.ignore_patterns("records"))
    return tmp_path / "golden"


def paths(names: tuple[str, ...]) -> list[Path]:
    return [GOLDEN / "records" / f"{name}.zip" for name in names]


def numbers(golden: Golden) -> list[dict[str, object]]:
    """What decides. ``seconds`` of micro was measured in runs of its own."""
    return sorted(
        (s.model_dump(exclude={"records", "provenance", "seconds"}) for s in golden.spreads),
        key=lambda s: str(s["recipes"]),
    )


@pytest.mark.slow
def test_a_band_that_was_widened_by_hand_is_shown(copied, capsys):
    """The edit of golden/loss/micro-topics.json that nobody saw: every window of the spread ten times as wide, with a new checksum."""
    path = copied / Golden.model_construct(model="micro", corpus="topics").path
    golden = store.read(path, Golden)
    wide = golden.spreads[0].model_copy(update={"loss": [10 * x for x in golden.spreads[0].loss]})
    write_json(path, golden.model_copy(update={"spreads": [wide, *golden.spreads[1:]]}))
    shown = []
    for folder in (GOLDEN, copied):
        main(["judge", str(GOLDEN / "records" / "micro-xeon.zip"), "--golden-dir", str(folder)])
        shown += [
            line for line in capsys.readouterr().out.splitlines() if line.startswith("step band") and "ao-mxfp8" in line
        ]
    assert shown == [
        "step band +-0.20% to +-0.22%: ao-mxfp8 emulated and 6 more on micro",
        "step band +-0.65% to +-2.17%: ao-mxfp8 emulated and 6 more on micro",
    ]
    assert (
        "spread of ao-mxfp8: loss 30 of 30 values, most at 16: 0.000423195 -> 0.00423195"
        in loss_store.changes(golden, store.read(path, Golden))[0]
    )
