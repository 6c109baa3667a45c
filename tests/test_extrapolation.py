"""Predictions far from what was measured on the GPU, in features, tokens or sequence: they say so, and what to time."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import made_up_gpu as gpu
import pytest
from fp8parity import cli
from fp8parity.prediction import extrapolation
from fp8parity.prediction.calibration import Beyond, Calibration, Corrections, calibrate, held_out
from fp8parity.prediction.extrapolation import Size, excesses
from fp8parity.prediction.residuals import Group, residuals
from fp8parity.records import sets
from fp8parity.workload import shapes
from fp8parity.workload.shapes import GemmShape, ModelShape, Workload

ONE = shapes.get("1b")

GROUP = Group(gpu.NAME, False, "te-current native")


def smaller(found, work: Workload, recipe: str = "te-current") -> float:
    """The share of the GEMM work in linears with fewer features than all that were timed."""
    layer = work.shape.layer(work.tokens, joined=False)
    return extrapolation.share(extrapolation.far(layer, found.timed(recipe))[Size.FEATURES], layer)


def beyond(found, work: Workload, recipe: str = "te-current") -> list[str]:
    return [e.size for e in excesses(found, work, recipe)]


class TestFeatures:
    """A small GEMM is slower than its FLOPs say, and only a GEMM near its size tells by how much."""

    @pytest.mark.parametrize(
        ("name", "share"),
        [("small", 6656 / 8960), ("base", 8704 / 11776), ("1b", 0.0), ("llama3-8b", 0.0), ("llama3-405b", 0.0)],
    )
    def test_gemms_far_below_those_that_were_timed_are_counted(self, name, share):
        """The narrowest GEMM of Llama 3 8B is that of k and v, 4096 to 1024. It is near the last linear of an MLP."""
        assert smaller(gpu.made(("llama3-8b",)), shapes.get(name)) == pytest.approx(share)

    def test_a_part_of_the_gemms_may_be_small(self):
        """With heads of 64, k and v have 128 features on one side."""
        work = Workload(ModelShape("narrow", 2048, 6144, 32, 2, 64, 4), 4, 2048)
        found = gpu.made(("llama3-8b",))
        assert smaller(found, work) == pytest.approx(2 * 128 / (2 * 2048 + 2 * 128 + 3 * 6144))
        assert beyond(found, work) == []

    def test_a_gemm_near_them_is_enough(self):
        found = gpu.made(("small", "base", "llama3-8b"))
        assert smaller(found.alone("small"), shapes.get("small")) == smaller(found, shapes.get("small")) == 0

    def test_gemms_of_another_recipe_do_not_count(self):
        """The casts of a recipe are its own, and a small GEMM is slower than its FLOPs say in every recipe."""
        small = gpu.gemm_times(shapes.get("small"))
        large = gpu.made(("llama3-8b",))
        other = small.model_copy(update={"cell": small.cell.model_copy(update={"recipe": "te-block"})})
        found = replace(large, gemms=(*large.gemms, other))
        assert [beyond(found, shapes.get("small"), recipe) for recipe in ("te-current", "te-block")] == [
            [Size.FEATURES],
            [],
        ]

    def test_bf16_was_timed_beside_every_recipe(self):
        assert beyond(gpu.made(("1b",)), ONE, "bf16") == []

    def test_an_extrapolated_cell_says_nothing_of_others(self):
        steps = [
            gpu.timed(shapes.get(name), off=0.3 if name == "small" else 0.0)
            for name in ("small", "1b", "llama3-8b", "llama3-70b")
        ]
        found = residuals(gpu.made(("small", "1b", "llama3-8b", "llama3-70b")), steps)
        assert [r.measured.work.shape.name for r in found if r.extrapolated] == ["small"]
        others = [r for r in found if not r.extrapolated]
        whole = calibrate(found)
        assert replace(whole, beyond=None) == calibrate(others) and whole.n == 3
        assert [r.covered for r in held_out(found) if r.extrapolated] == [False]

    def test_its_errors_widen_the_interval_of_other_extrapolated_ones(self):
        """Both are 0.3 off in logarithms, and no other cell is off."""
        off = {"small": 0.3, "base": 0.3}
        steps = [
            gpu.timed(shapes.get(name), off=off.get(name, 0.0)) for name in ("small", "base", "llama3-8b", "llama3-70b")
        ]
        found = residuals(gpu.made(("llama3-8b", "llama3-70b")), steps)
        assert [r.measured.work.shape.name for r in found if r.extrapolated] == ["small", "base"]
        other = calibrate(found, "base")
        assert other.beyond is not None and other.sd < 0.05
        assert (other.beyond.n, other.beyond.models, other.beyond.sizes) == (1, 1, (Size.FEATURES,))
        assert other.beyond.sd == pytest.approx(0.3, rel=0.15)
        narrow, wide = (other.interval(1.2, GROUP, beyond) for beyond in (False, True))
        assert narrow[1] == wide[1]
        # Student's t at 90%: 2.920 with the 2 models that are near, 6.314 with the one that is not.
        assert math.log(narrow[2] / narrow[1]) == pytest.approx(2.920 * other.sd, rel=1e-3)
        assert math.log(wide[2] / wide[1]) == pytest.approx(6.314 * other.beyond.sd, rel=1e-3)
        assert math.log(wide[1] / wide[0]) == pytest.approx(math.log(wide[2] / wide[1]))
        assert all(r.covered for r in held_out(found))

    def test_small_errors_of_extrapolated_ones_narrow_nothing(self):
        other = Calibration(Corrections({}), sd=0.05, n=9, models=3, beyond=Beyond(0.01, 2, 2, (Size.FEATURES,)))
        assert other.interval(1.2, GROUP, True) == other.interval(1.2, GROUP, False)


class TestTokens:
    """The GEMMs of 1b are timed with 16,384 tokens, and attention over 512 to 32,768."""

    @pytest.mark.parametrize(
        ("rows", "length", "found"),
        [
            (1, 16, [Size.TOKENS, Size.SEQUENCE]),
            (15, 272, [Size.TOKENS]),
            (16, 256, []),
            (17, 240, [Size.TOKENS, Size.SEQUENCE]),
            (18, 240, [Size.SEQUENCE]),
            (64, 512, []),
            (65, 512, [Size.TOKENS]),
            (1, 65_536, [Size.TOKENS]),
            (1, 131_072, [Size.TOKENS, Size.SEQUENCE]),
        ],
    )
    def test_a_batch_far_from_those_that_were_timed(self, rows, length, found):
        assert beyond(gpu.made(("1b",)), Workload(ONE.shape, rows, length)) == found

    def test_a_length_beyond_the_longest_is_far_at_any_batch(self):
        work = Workload(ONE.shape, 1, 65_552)
        timed = gpu.made(("1b",))
        assert beyond(replace(timed, gemms=(*timed.gemms, gpu.gemm_times(work))), work) == [Size.SEQUENCE]

    def test_gemms_timed_at_this_batch_are_enough_and_fill_no_gap(self):
        """512 tokens lie between 16 and 16,384, and near none of both."""
        timed, few = gpu.made(("1b",)), Workload(ONE.shape, 1, 16)
        found = replace(timed, gemms=(*timed.gemms, gpu.gemm_times(few)))
        assert beyond(found, few) == [Size.SEQUENCE]
        assert beyond(found, Workload(ONE.shape, 1, 512)) == [Size.TOKENS]

    def test_only_gemms_of_such_features_tell_of_tokens(self):
        """Those of 405B were timed with few tokens. They say nothing of a small model."""
        found = gpu.made(("small",))
        large = gpu.gemm_times(Workload(shapes.get("llama3-405b").shape, 1, 512))
        assert beyond(replace(found, gemms=(*found.gemms, large)), Workload(shapes.get("small").shape, 1, 512)) == [
            Size.TOKENS
        ]

    def test_an_expert_has_its_share_of_the_tokens(self):
        """Two of 64 experts for each token: each has 1/32 of them."""
        work = Workload(ModelShape("experts", 2048, 6144, 32, 8, 64, 4, experts=64, experts_per_token=2), 8, 2048)
        [excess] = excesses(gpu.made(("1b",)), work, "te-current")
        assert excess.size == Size.TOKENS and " of this model is in GEMMs of 512 tokens, " in excess.text

    def test_small_gemms_and_those_with_few_tokens_are_told_apart(self):
        """Of the timed GEMMs, one is near "few" in features, and none is near "small"."""
        layer = [
            GemmShape("few", 64, 2048, 2048),
            GemmShape("small", 4096, 256, 256),
            GemmShape("near", 16_384, 96, 2048),
        ]
        found = extrapolation.far(layer, {(16_384, 2048, 2048), (16_384, 96, 2048)})
        assert {size: [g.name for g in some] for size, some in found.items()} == {
            "features": ["small"],
            "tokens": ["few"],
        }

    @pytest.mark.parametrize(
        ("small", "few", "near", "named"),
        [
            (6, 1, 3, {"features": 0.6}),
            (1, 6, 3, {"tokens": 0.6}),
            (3, 3, 4, {"features": 0.3, "tokens": 0.3}),
            (2, 3, 5, {}),
        ],
    )
    def test_what_makes_up_most_of_the_work_is_named(self, small, few, near, named):
        """Alone, or else together."""
        layer = [GemmShape(name, n, 16, 16) for name, n in (("small", small), ("few", few), ("near", near))]
        assert extrapolation.beyond(layer, {Size.FEATURES: layer[:1], Size.TOKENS: layer[1:2]}) == pytest.approx(named)


def out(capsys, *arguments: str) -> list[str]:
    assert cli.main(["predict", *arguments]) == 0, capsys.readouterr().err
    return str(capsys.readouterr().out).splitlines()


@pytest.mark.parametrize(
    ("timed", "noted"), [(("llama3-8b",), True), (("base", "llama3-8b"), False)], ids=["large", "near"]
)
def test_a_model_below_what_was_timed_is_an_extrapolation(tmp_path, capsys, timed, noted):
    path = tmp_path / "made-up.zip"
    sets.save(gpu.records(timed, [gpu.timed(shapes.get(name)) for name in ("small", "1b")]), path)
    lines = out(capsys, "small", "--gpu", "h100", "--records", str(path), "--test")
    note = (
        "te-current: 74% of the GEMM work of this model is in GEMMs smaller than all that were timed on this GPU. "
        "The interval may be too narrow. Time the GEMMs of this model there (fp8parity gemm), and give --records."
    )
    assert (note in lines) == noted
    assert [line.endswith("  extrapolated (features)") for line in lines if line.startswith("small 32x512")] == [noted]
    assert any(line.startswith("1 of them are extrapolated: ") for line in lines) == noted


@pytest.mark.parametrize("length", [16, 131_072])
def test_a_batch_far_from_what_was_timed_says_so_everywhere(tmp_path, capsys, length):
    """In the table, once for all recipes; in CSV and JSON; and in --test, where the step was measured."""
    far = replace(ONE, micro_batch=1, sequence=length)
    step = gpu.timed(far).model_copy(update={"variant": f"1x{length}"})
    sets.save(gpu.records(("base", "1b"), [gpu.timed(shapes.get("base")), gpu.timed(ONE), step]), tmp_path / "a.zip")
    files = ["--csv", str(tmp_path / "a.csv"), "--json", str(tmp_path / "a.json")]
    asked = [
        "1b",
        "--block",
        "--micro-batch",
        "1",
        "--sequence",
        str(length),
        "--gpu",
        "h100",
        "--records",
        str(tmp_path / "a.zip"),
    ]
    lines = out(capsys, *asked, *files, "--test")
    assert [line for line in lines if line.startswith("te-current: ")] == [
        f"te-current: 100% of the GEMM work of this model is in GEMMs of {length} tokens, far from those that were timed on this GPU "
        "(16384 tokens). The interval may be too narrow. Time the GEMMs of this model there at this batch (fp8parity gemm with "
        "--micro-batch and --sequence), and give --records.",
        f"te-current: attention is over sequences of {length} tokens, far from those that were measured on this GPU "
        "(512, 2048, 8192, 32768 tokens). The interval may be too narrow. Time a block of this length there (fp8parity block with "
        "--sequence).",
    ]
    assert [r["extrapolated"] for r in json.loads((tmp_path / "a.json").read_text())["predicted"]] == [True, True]
    assert [r["extrapolated"] for r in csv.DictReader((tmp_path / "a.csv").read_text().splitlines())] == [
        "True",
        "True",
    ]
    assert [line for line in lines if "extrapolated (" in line] == [
        line
        for line in lines
        if line.startswith(f"1b 1x{length} ") and line.endswith("  extrapolated (tokens, sequence)")
    ]


def test_a_batch_near_what_was_timed_says_nothing(tmp_path, capsys):
    sets.save(gpu.records(("1b",)), tmp_path / "a.zip")
    files = ["--csv", str(tmp_path / "a.csv"), "--json", str(tmp_path / "a.json")]
    lines = out(capsys, "1b", "--gpu", "h100", "--records", str(tmp_path / "a.zip"), *files)
    assert not [line for line in lines if line.startswith("te-current: ")]
    assert [r["extrapolated"] for r in json.loads((tmp_path / "a.json").read_text())["predicted"]] == [False, False]
    assert [r["extrapolated"] for r in csv.DictReader((tmp_path / "a.csv").read_text().splitlines())] == [
        "False",
        "False",
    ]


def test_each_recipe_says_what_its_own_gemms_show(tmp_path, capsys):
    """te-current was timed at base, too, and te-block not. No measured step tests te-block."""
    made = gpu.records(("base", "llama3-8b"), [gpu.timed(shapes.get(name)) for name in ("1b", "llama3-8b")])
    large = gpu.gemm_times(shapes.get("llama3-8b"))
    other = large.model_copy(update={"cell": large.cell.model_copy(update={"recipe": "te-block"})})
    path = tmp_path / "made-up.zip"
    sets.save([*made, other], path)
    lines = out(capsys, "small", "--gpu", "h100", "--records", str(path))
    assert [line.partition(": ")[0] for line in lines if "of the GEMM work of this model" in line] == ["te-block"]
    [said] = [line for line in lines if line.startswith("No measured step of another model tests ")]
    tests = "te-block native, te-block fused, te-current fused"
    assert said == f"No measured step of another model tests {tests} here: the interval is that of others."
