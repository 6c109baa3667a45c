"""``fp8parity predict``: its table, its files, and one line for what it cannot predict."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import made_up_gpu as gpu
import pytest
from documents import blocks, commands
from fp8parity import cli
from fp8parity.records import sets
from fp8parity.records.schema import Throughput
from fp8parity.records.storage import gpu_slug
from fp8parity.records.times import DeviceProfile
from fp8parity.workload import shapes
from fp8parity.workload.hf_config import read_config
from fp8parity.workload.shapes import ModelShape, Workload
from fp8parity_lab.cli import predict
from fp8parity_lab.prediction.basis import Basis, basis
from fp8parity_lab.prediction.calibration import held_out
from fp8parity_lab.prediction.residuals import Residual, residuals
from processes import ROOT
from test_gemm_command import HYBRID, model

CONFIG = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 16,
    "vocab_size": 128256, "model_type": "llama",
}  # fmt: skip
AT = "--gpu", "h100", "--records"
MODELS = ("small", "base", "llama3-8b", "llama3-70b")


@pytest.fixture(scope="module")
def measurements(tmp_path_factory) -> Path:
    """A record set of the made-up GPU, with steps that are 5% faster than the parts say."""
    path = tmp_path_factory.mktemp("sets") / "made-up.zip"
    works = [shapes.get(name) for name in ("small", "base", "1b")]
    steps = [gpu.timed(w, off=0.05 + e) for w, e in zip(works, gpu.noise(3, 0.01), strict=True)]
    sets.save(gpu.records(MODELS, steps), path)
    return path


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "llama-1b" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return path


def out(capsys, *arguments: str) -> str:
    assert cli.main(["predict", *arguments]) == 0, capsys.readouterr().err
    return str(capsys.readouterr().out)


def refused(capsys, *arguments: str) -> str:
    assert cli.main(["predict", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line.removeprefix("fp8parity: ")


def test_a_config_is_predicted(config, measurements, capsys):
    text = out(capsys, str(config), *AT, str(measurements), "--micro-batch", "4", "--recipe", "te-current")
    assert text.startswith("llama-1b, 4 x 4096 tokens, a training step of 16 layers, on NVIDIA H100 Made Up")
    [native] = [line for line in text.splitlines() if line.startswith("te-current") and " native " in line]
    ratio = float(native.split()[3].rstrip("x"))
    low, high = (float(x) for x in native.split("[")[1].split("]")[0].split(","))
    work = shapes.Workload(read_config(config), 4, 4096)
    true = gpu.step(work, "bf16") / gpu.step(work, "te-current") * 1.05
    assert low < ratio < high and ratio == pytest.approx(true, rel=0.05)
    assert "the spread of 3 measured cells of 3 other models" in text
    assert "roofline" in text
    assert "--layer 0 predicts one" in text
    assert "transformers" not in out(capsys, "1b", *AT, str(measurements))


def test_the_table_is_also_csv_and_json(measurements, tmp_path, capsys):
    files = ["--csv", str(tmp_path / "a.csv"), "--json", str(tmp_path / "a.json")]
    text = out(capsys, "1b", *AT, str(measurements), *files)
    data = json.loads((tmp_path / "a.json").read_text())
    assert (data["model"], data["micro_batch"], data["sequence"], data["gpu"]) == ("1b", 8, 2048, gpu.NAME)
    native, fused = data["predicted"]
    assert (native["execution"], fused["execution"]) == ("native", "fused")
    assert f"{native['speed_up']:.3f}x [{native['low']:.3f}, {native['high']:.3f}]" in text
    assert native["speed_up"] == pytest.approx(native["bf16_seconds"] / native["seconds"])
    first, _ = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert float(first["speed_up"]) == native["speed_up"] and float(first["GEMMs"]) == native["parts"]["GEMMs"]


def test_extrapolations_are_in_table_files_and_test(tmp_path, capsys):
    """te-current was timed at base, and te-block only at 8B. The step of 131,072 tokens is far from all."""
    far = replace(shapes.get("1b"), micro_batch=1, sequence=131_072)
    near = [gpu.timed(shapes.get(name)) for name in ("1b", "llama3-8b")]
    steps = [*near, gpu.timed(far).model_copy(update={"variant": "1x131072"})]
    large = gpu.gemm_times(shapes.get("llama3-8b"))
    other = large.model_copy(update={"cell": large.cell.model_copy(update={"recipe": "te-block"})})
    sets.save([*gpu.records(("base", "llama3-8b"), steps), other], tmp_path / "a.zip")
    lines = out(
        capsys, "small", *AT, str(tmp_path / "a.zip"), "--json", str(tmp_path / "a.json"), "--test"
    ).splitlines()
    assert [line.partition(": ")[0] for line in lines if "of the GEMM work of this model" in line] == ["te-block"]
    assert any(line.startswith("No measured step of another model tests te-block native") for line in lines)
    assert [line[:12] for line in lines if line.endswith("  extrapolated (tokens, sequence)")] == ["1b 1x131072 "]
    assert any(" of them are extrapolated: " in line for line in lines)
    rows = json.loads((tmp_path / "a.json").read_text())["predicted"]
    assert sorted(r["extrapolated"] for r in rows) == [False, False, True, True]


def test_shipped_sets_are_read_without_records(tmp_path, monkeypatch, capsys):
    """A golden folder of one's own without measurements leaves those that are shipped; with some, they count. A mistyped one is
    refused."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shipped" / predict.FOLDER
    folder.mkdir(parents=True)
    sets.save(gpu.records(MODELS), folder / "nvidia-h100-made-up.zip")
    monkeypatch.setattr(predict, "SHIPPED", tmp_path / "shipped")
    own = tmp_path / "own"
    assert refused(capsys, "1b", "--gpu", "h100", "--golden-dir", str(own)) == f"--golden-dir {own}: no such folder"
    own.mkdir()
    assert "on NVIDIA H100 Made Up" in out(capsys, "1b", "--gpu", "h100", "--golden-dir", str(own))
    (own / predict.FOLDER).mkdir()
    assert refused(capsys, "1b", "--gpu", "h100", "--golden-dir", str(tmp_path / "own")).startswith(
        "unknown GPU 'h100': no measurements are at hand"
    )


def test_a_gpu_without_a_profile_is_measured_now(monkeypatch, capsys):
    new = gpu.profile("NVIDIA New")
    gemms = [gpu.gemm_times(shapes.get(name)).model_copy(update={"provenance": new.provenance}) for name in MODELS]
    monkeypatch.setattr(predict, "_device", lambda: "NVIDIA New")
    monkeypatch.setattr(predict, "profiled", lambda folder: new)
    monkeypatch.setattr(predict, "_records", lambda args: gemms)
    assert "on NVIDIA New" in out(capsys, "1b")
    monkeypatch.setattr(predict, "_records", lambda args: [])
    assert refused(capsys, "1b").startswith("no GEMM was timed on NVIDIA New; run fp8parity gemm there")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["1b", "--gpu", "here"], "--gpu here: this machine has no GPU; name one whose measurements are at hand"),
        (["1b", "--gpu", "h300"], "unknown GPU 'h300': "),
        (["lama3-8b"], "unknown model 'lama3-8b': did you mean llama3-8b"),
        (["none/config.json"], "cannot be read"),
        (["1b", "--recipe", "te-curent"], "unknown recipe 'te-curent': did you mean te-current"),
        (["llama3-8b"], "llama3-8b: a step needs about "),
    ],
)
def test_a_request_that_cannot_be_predicted_is_refused(measurements, capsys, asked, words):
    assert words in refused(capsys, asked[0], *AT, str(measurements), *asked[1:])


def mixture(name: str, hidden: int, width: int) -> Workload:
    return Workload(ModelShape(name, hidden, width, hidden // 128, 8, 128, 16, 32_000, 8, 2), 1, 8192)


EXPERTS = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 16, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32_000,
}  # fmt: skip


class TestExperts:
    """A model with experts: grouped GEMMs take longer than their groups alone, so none is predicted from those."""

    @pytest.fixture
    def asked(self, tmp_path) -> tuple[str, ...]:
        pytest.importorskip("transformers")
        path = tmp_path / "mixtral" / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(EXPERTS))
        return str(path), "--block", "--sequence", "8192", *AT

    def measured(self, path: Path, *works: Workload) -> str:
        sets.save([*gpu.records(MODELS), *map(gpu.gemm_times, works)], path)
        return str(path)

    def test_without_grouped_gemms_it_is_refused(self, asked, tmp_path, measurements, capsys):
        said = refused(capsys, *asked, str(measurements))
        assert said.startswith("no grouped GEMM was timed on NVIDIA H100 Made Up; run fp8parity gemm with such a model")
        found = self.measured(tmp_path / "one.zip", mixture("a", 4096, 12_288))
        said = refused(capsys, *asked, found, "--recipe", "te-block")
        assert said.startswith("no grouped GEMM of te-block was timed on NVIDIA H100 Made Up (timed: te-current)")

    def test_it_is_predicted_from_grouped_gemms(self, asked, tmp_path, capsys):
        """What has no part is named before any number, and in the file."""
        works = mixture("a", 4096, 12_288), mixture("b", 3072, 14_336), mixture("c", 5120, 16_384)
        file = tmp_path / "found.json"
        said = out(capsys, *asked, self.measured(tmp_path / "three.zip", *works), "--json", str(file))
        assert said.index("left out, because nothing is measured for it: the router") < said.index("ms")
        assert "A grouped GEMM with te-current of 9 timed shapes, each predicted by the others" in said
        made = json.loads(file.read_text())
        [found] = [r for r in made["predicted"] if r["execution"] == "native"]
        work = mixture("mixtral", 4096, 14_336)
        plain, quantized = (gpu.step(work, name, block=True) for name in ("bf16", "te-current"))
        assert found["bf16_seconds"] == pytest.approx(plain, rel=0.02)
        assert (
            sum(found["parts"].values()) == pytest.approx(quantized, rel=0.02) and "the router" in made["left_out"][-1]
        )


def test_a_hybrid_model_has_no_block(tmp_path, capsys):
    pytest.importorskip("transformers")
    said = refused(capsys, model(tmp_path, **HYBRID, num_hidden_layers=4))
    assert ": its 4 layers are not all alike (mixer.in_proj runs 1x); only layers of one kind" in said


PAGE = ROOT / "lab/docs/predict.md"
SHOWN = [c for b in blocks(PAGE) if b.language == "sh" for c in commands(b) if c[1] == "predict" and "--gpu" in c]


@pytest.mark.parametrize("command", SHOWN, ids=" ".join)
def test_shown_commands_predict(config, monkeypatch, capsys, command):
    monkeypatch.chdir(config.parent)
    assert " on NVIDIA H" in out(capsys, *command[2:])


@pytest.mark.slow
def test_a_prediction_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; from fp8parity import cli; sys.exit(cli.main(sys.argv[1:]))"
    asked = [sys.executable, "-c", code, "predict", "1b", "--gpu", "h100"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("keys", "refuses"),
    [
        ({"sliding_window": 1024}, True),
        ({"sliding_window": 4096}, False),
        ({"sliding_window": None}, False),
        ({"sliding_window": 1024, "use_sliding_window": False}, False),
    ],
)
def test_window_shorter_than_the_sequence_is_refused(config, measurements, capsys, keys, refuses):
    config.write_text(json.dumps(CONFIG | keys))
    asked = (str(config), *AT, str(measurements), "--block", "--micro-batch", "4", "--sequence", "4096")
    if refuses:
        assert "attention sees 1024 of 4096 tokens (sliding_window)" in refused(capsys, *asked)
    else:
        assert out(capsys, *asked)


def test_width_that_no_recipe_divides_is_refused(config, measurements, capsys):
    config.write_text(json.dumps(CONFIG | {"intermediate_size": 8200}))
    line = refused(capsys, str(config), *AT, str(measurements))
    assert line.startswith("te-current: gate and up has 8200 output features (N)")


SETS = sorted((predict.SHIPPED / predict.FOLDER).glob("*.zip"))


@cache
def loaded(path: Path) -> tuple[Basis, list[Residual]]:
    records = sets.load([path])
    [profile] = [r for r in records if isinstance(r, DeviceProfile)]
    found = basis(records, profile.provenance.device)
    assert found is not None
    return found, residuals(found, [r for r in records if isinstance(r, Throughput)])


@pytest.mark.parametrize("path", SETS, ids=lambda p: p.stem)
def test_a_set_has_the_name_of_its_gpu_and_nothing_else(path):
    found, _ = loaded(path)
    assert path.stem == gpu_slug(found.gpu)
    assert {r.provenance.device for r in found.gemms} == {found.gpu}
    assert "te-current" in found.recipes


def test_the_interval_holds_nine_of_ten_cells():
    """Over all GPUs, as the command counts them."""
    rows = held_out([r for path in SETS for r in loaded(path)[1]])
    assert len(rows) >= 96 and not any(r.residual.extrapolated for r in rows)
    assert sum(abs(r.error) < 0.05 for r in rows) >= 94
    assert all(abs(r.error) < 0.07 for r in rows)
    assert sum(r.covered for r in rows) >= 0.9 * len(rows)


def test_bf16_has_no_gain_and_an_ambiguous_gpu_is_refused(capsys):
    assert cli.main(["predict", "1b", "--gpu", "h100", "--recipe", "bf16"]) == 0
    assert "1.000x [1.000, 1.000]" in capsys.readouterr().out
    for name, words in (("nvidia", "may be nvidia-h100-80gb-hbm3 or nvidia-h200"), ("", "unknown GPU ''")):
        assert cli.main(["predict", "1b", "--gpu", name]) == 2
        assert words in capsys.readouterr().err
