"""The commands of docs/your-model.md in a user's project: record the golden of a model that is not ours, then judge recipes."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path

import own_models
import pytest
import torch
from fp8parity.gate.own_models import own_model
from fp8parity.records.cell import Cell, Execution
from fp8parity.runner import NOT_OURS
from fp8parity.workload.own import HELD_OUT, OwnModel
from own_models import Pair, ids, small, trained
from processes import Done, run
from projects import commit, complete
from torch import nn


def make(folder: Path) -> Path:
    """The files of the page with a short schedule, and our suites. There is no conftest.py."""
    own_models.write(folder, own_models.SHORT)
    policy = own_models.policy().replace("least_seeds = 3", "least_seeds = 2")
    return complete(folder, policy.replace("[[loss]]", "[[loss]]\nmin_loss_drop = 0.05"))


def start(project: Path, *args: str) -> Done:
    return run("pytest", "suites/convergence", "--model-factory", "my_models:gpt2", *args, cwd=project)


@pytest.mark.slow
def test_golden_is_recorded_then_judged(tmp_path):
    project = make(tmp_path)
    done = start(project, "--golden-update")
    assert done.returncode == 0, done.stdout
    assert "golden: my-gpt2 on chain: new, " in done.stdout
    golden = json.loads((project / "golden" / "loss" / "my-gpt2-chain.json").read_text())
    assert [len(s["replicas"]) for s in golden["seeds"]] == [1, 1] and golden["gradients"] == []
    commit(project)
    done = start(project, "--recipe", "te-current", "--recipe", "bf16")
    assert done.returncode == 0, done.stdout
    assert "Accept: all 2 checks are green" in done.stdout
    assert "for loss parity (first gradient norm); not judged" in done.stdout
    assert "first gradient of te-current" not in done.stdout
    assert run("fp8parity", "judge", ".parity", cwd=project).returncode == 0
    terms = ("--model-factory", "my_models:gpt2", "--recipe", "te-current", "--collect-only", "-q")
    done = run("pytest", "suites", *terms, cwd=project)
    assert "te-current-my-gpt2-native" in done.stdout and "te-current-my-gpt2-fused" not in done.stdout
    assert "micro" not in done.stdout and "[te-current-tiny" not in done.stdout


WRONG = {
    "made": "--model-factory takes MODULE:FUNCTION, not 'made'",
    "no_such_file:made": "--model-factory no_such_file:made: no module no_such_file in",
    "broken:made": "--model-factory broken:made: broken needs no_such_package, which is not installed",
    "own:mode": "has no function mode",
    "own:made": "--model-factory own:made: made() raised RuntimeError: no weights here",
    "own:dict": "--model-factory own:dict: dict() returned dict; return a fp8parity.workload.own.OwnModel",
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.items(), ids=WRONG)
def test_wrong_factory_is_one_sentence(text, sentence, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    (tmp_path / "own.py").write_text("dict = dict\n\n\ndef made():\n    raise RuntimeError('no weights here')\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own", raising=False)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        own_model(text, tmp_path)


@pytest.mark.slow
def test_own_model_with_a_name_of_this_project_is_wrong_usage(tmp_path):
    project = make(tmp_path)
    (project / "taken.py").write_text(
        "import dataclasses, my_models\n\n\ndef made():\n    return dataclasses.replace(my_models.gpt2(), name='tiny')\n"
    )
    done = run("pytest", "suites/convergence", "--model-factory", "taken:made", "--collect-only", cwd=project)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert "--model-factory: tiny is the name of one of this project's models; choose another name" in done.stderr


def test_hook_takes_an_own_model(tmp_path):
    """Its name may begin like those of Hugging Face architectures."""
    project, name = make(tmp_path), "hf-mine"
    rules = project / "golden" / "policy.toml"
    rules.write_text(rules.read_text().replace("my-gpt2", name))  # rows about other models alone are refused
    model = f"dataclasses.replace(my_models.gpt2(), name={name!r})"
    (project / "conftest.py").write_text(
        f"import dataclasses, my_models\n\n\ndef pytest_fp8parity_models():\n    return [{model}]\n"
    )
    done = run("pytest", "suites/convergence", "--model", name, "--collect-only", "-q", cwd=project)
    assert f"test_loss_parity[te-current-{name}-emulated]" in done.stdout, done.stdout


COUNT = itertools.count()
STREAM = torch.Generator().manual_seed(0)


def loss_of(module, tokens, targets):
    return nn.functional.cross_entropy(module(tokens).float().flatten(0, 1), targets.flatten())


def unseeded(seed):
    module = Pair()
    nn.init.normal_(module.inner.weight, generator=STREAM)
    return module


def constant(seed):
    torch.manual_seed(0)
    return Pair()


def untrained(seed):
    return Pair().requires_grad_(False)


class Dropped(Pair):
    def forward(self, tokens):
        return self.unembed(nn.functional.dropout(self.inner(self.embedding(tokens)), 0.1))


def floats(seed, step):
    return torch.randn(16, 32), torch.zeros(16)


def changed(change):
    """``loss`` with a change, as a field of a model."""
    return {"loss": lambda *args: change(loss_of(*args))}


def batch_of(make):
    """A batch of one tensor, as a field of a model."""
    return {"batches": lambda seed, step: (make(seed, step),)}


HELD = "held out, is the same batch as batches(0, 0)"
FLOATS = {"loss": lambda m, x, y: m.inner(x).float().sum() ** 2, "batches": floats}
INVALID = {
    "loss None": ({"loss": lambda *a: None}, "its loss returned NoneType; return the mean loss as a scalar tensor"),
    "loss by row": (changed(lambda x: x * torch.ones(8)), "its loss returned a tensor of shape [8]"),
    "loss in BF16": (changed(lambda x: x.bfloat16()), "its loss is torch.bfloat16"),
    "loss detached": (changed(lambda x: x.detach()), "its loss has no gradient"),
    "loss negative": (changed(lambda x: x - 9), "gaps are relative, so it must be positive and finite"),
    "loss NaN": (changed(lambda x: x * torch.nan), "its first loss is nan"),
    "dropout": (
        {"loss": loss_of, "factory": lambda seed: Dropped()},
        "on the same weights and batch; switch dropout off",
    ),
    "inputs in FP32": (FLOATS, "weights are BF16, so floating-point inputs must be BF16"),
    "no tuple": ({"batches": lambda *at: {"ids": ids(*at)[0]}}, "batches(0, 0) returned dict; return a tuple"),
    "a counter": (batch_of(lambda *at: torch.tensor(next(COUNT))), "batches(0, 0) returned another batch the second"),
    "one batch": (batch_of(lambda *at: torch.arange(8)), "batches(0, 1) is the same batch as batches(0, 0)"),
    "no seed": (batch_of(lambda seed, step: torch.tensor(step)), "batches(1, 0) is the same batch as"),
    "validation": (batch_of(lambda seed, step: torch.tensor([seed % HELD_OUT, step])), HELD),
    "no module": ({"factory": lambda seed: None}, "factory(0) returned NoneType; return an nn.Module"),
    "other weights": ({"factory": unseeded}, "factory(0) returned other weights the second time"),
    "equal weights": ({"factory": constant}, "factory(0) and factory(1) returned the same weights"),
    "nothing trained": ({"factory": untrained}, "no parameter of the module is trained"),
}


@pytest.fixture
def trajectory(session, tmp_path):
    def make(model: OwnModel, recipe: str = "bf16", corpus: str = ""):
        session.presets = {model.name: model}
        execution = Execution.NATIVE if recipe == "bf16" else Execution.EMULATED
        return session.trajectory(
            Cell(model=model.name, recipe=recipe, execution=execution, corpus=corpus or model.corpus), 0
        )

    yield make
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".lock"], "something was half-written"


@pytest.mark.parametrize(("fields", "sentence"), INVALID.values(), ids=INVALID)
def test_wrong_model_is_one_sentence_and_no_file(fields, sentence, trajectory):
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        trajectory(small(**fields))
    assert str(error.value).startswith("pair: ") and "\n" not in str(error.value)


class Attends(nn.Module):
    def __init__(self, size=32, heads=2):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(64, 32), nn.MultiheadAttention(size, heads, batch_first=True)
        self.unembed = nn.Linear(32, 64)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.unembed(self.attention(x, x, x, need_weights=False)[0])


def odd(seed):
    module = Pair(tied=False)
    module.inner, module.unembed = nn.Linear(32, 40), nn.Linear(40, 64)
    return module


def half_odd(seed):
    """Its first linear has no obstacle, and the second one has 40 outputs."""
    module = Pair(tied=False)
    module.unembed = nn.Linear(32, 40)
    return module


def short(seed, step):
    return tuple(t[:, :3] for t in ids(seed, step))


class WithoutLinears(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 64)

    def forward(self, tokens):
        return self.embedding(tokens)


UNFIT = {
    "dimensions": ({"factory": odd}, "inner.out_features = 40 is not divisible by 16"),
    "rows": ({"batches": short}, "inner sees 24 rows a microbatch, and they are not divisible by 16"),
    "not called": ({"factory": lambda seed: Attends()}, "attention.out_proj is not called as a module"),
    "nothing to convert": ({"factory": lambda seed: WithoutLinears()}, "converted no module"),
}


@pytest.mark.parametrize(("fields", "sentence"), UNFIT.values(), ids=UNFIT)
def test_unfit_model_is_refused_by_the_recipe(fields, sentence, trajectory, eager):
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        trajectory(small(**fields), "te-current")
    assert str(error.value).startswith("te-current") and "\n" not in str(error.value)


def test_module_kept_in_bf16_is_no_obstacle(eager):
    attends = small(factory=lambda seed: Attends(), keep=("attention",))
    assert [m.fqn for m in trained(attends, "te-current").inventory] == ["unembed"]
    uneven = small(factory=half_odd, batches=lambda *at: tuple(t % 40 for t in ids(*at)), keep=("unembed",))
    assert [m.fqn for m in trained(uneven, "te-current").inventory] == ["inner"]


def test_numerics_checks_need_a_model_of_this_project(session):
    session.presets = {"pair": small()}
    cell = Cell(model="pair", recipe="te-current", execution=Execution.EMULATED, corpus="chain")
    assert session.skip_reason("gradients", cell) == NOT_OURS.format("pair")
    for work in (lambda: session.measure("gradients", cell), lambda: session.spec(cell)):
        with pytest.raises(ValueError, match="pair is your own, and this check needs a model of this project"):
            work()
    assert session.gradients(cell.control) == []
