"""``fp8parity claims``: published numbers next to those of record sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import reports
from documents import ROOT
from fp8parity import cli
from fp8parity.judging.evaluate import evaluate
from fp8parity.records import sets
from fp8parity.records.storage import name_of, write_json
from fp8parity.report.blocks import Plot
from fp8parity_lab import claims
from fp8parity_lab.published_gemms import MODEL, published
from gemm_records import made
from sessions import stored

BOTH = ["training", "kernel"]


@pytest.mark.parametrize(
    ("recipe", "hopper", "blackwell"),
    [
        ("te-current", BOTH, BOTH),
        ("te-delayed", ["training"], ["training"]),
        ("te-block", ["training"], []),
        ("te-mxfp8", [], BOTH),
        ("te-nvfp4", [], BOTH),
    ],
)
def test_published_rows_match_recipe_and_gpu(recipe, hopper, blackwell):
    cell = made().cell.model_copy(update={"recipe": recipe})
    for capability, gpu, modes in (([9, 0], "H200 NVL", hopper), ([10, 0], "B300", blackwell), ([8, 0], "none", [])):
        found = published(made(cell=cell, provenance=reports.provenance(capability=capability)))
        assert [(row.gpu, row.mode) for row, _ in found] == [(gpu, mode) for mode in modes]


@pytest.fixture
def records(tmp_path: Path) -> list[Path]:
    """Return a set of steps of an H200, and one of GEMMs of a made-up GPU."""
    write_json(tmp_path / name_of(gemms := made(MODEL)), gemms)
    return [ROOT / "golden/records/h200-throughput.zip", tmp_path]


def test_published_numbers_are_next_to_ours(records, tmp_path, capsys):
    out = tmp_path / "claims.json"
    assert cli.main(["claims", *map(str, records), "--report", str(out)]) == 0
    h200, made_up = json.loads(out.read_text())["sections"]
    assert [part["title"] for part in (h200, made_up)] == ["NVIDIA H200", "NVIDIA Made Up"]
    [delayed, _] = [row[4] for row in h200["blocks"][0]["rows"] if row[1:3] == ["te-delayed", "speed-up"]]
    assert delayed.startswith("1.32x [1.31, 1.34] (te-delayed, 1b, fused); 1.25x")
    here = {row[0]["text"]: row[4] for row in made_up["blocks"][0]["rows"] if row[1] == "te-current"}
    assert here["Transformer Engine, GEMM tool"] == f"kernel 1.90x, training 1.60x (te-current, {MODEL}, native)"
    assert here["NVIDIA NeMo, FP8 throughput"] == "not measured here"
    assert f"GEMMs of te-current on {MODEL}: published kernel, H200 NVL: 1.90x; here 1.90x" in capsys.readouterr().out


def test_page_draws_published_speed_ups_by_model_size(records):
    [e] = evaluate(sets.load(records[:1]), *stored())
    [plot] = [block for block in claims.section(claims.load(), e, 0).blocks if isinstance(block, Plot)]
    dotted = {trace["name"]: (trace["x"], trace["y"]) for trace in plot.data if trace["line"]["dash"] == "dot"}
    assert dotted["te-current (NVIDIA NeMo, FP8 throughput)"] == ([70, 405], [1.43, 1.53])
    assert {"te-current fused", "te-delayed fused"} <= {trace["name"] for trace in plot.data} - set(dotted)


def test_wrong_key_of_a_published_number_is_named(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text(claims.FILE.read_text().replace("hardware =", "hardwear =", 1))
    with pytest.raises(ValueError, match=r"claims.toml:4: .*hardwear"):
        claims.load(path)
