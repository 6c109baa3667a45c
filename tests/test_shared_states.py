"""The trained state of a check is made by one process of a session, and read by the others."""

from __future__ import annotations

import torch
from fp8parity.checks import gradients


def test_the_first_process_makes_it_and_the_others_read_the_same(tmp_path):
    made = []

    def make() -> dict[str, torch.Tensor]:
        made.append(1)
        return {"w": torch.tensor([1.0, 2.0**-8], dtype=torch.bfloat16)}

    first, second = (gradients.made_once(tmp_path, "state", make) for _ in range(2))
    assert len(made) == 1
    assert first["w"].dtype == second["w"].dtype == torch.bfloat16
    assert first["w"].tolist() == second["w"].tolist() == [1.0, 2.0**-8]
    gradients.made_once(None, "state", make)
    assert len(made) == 2


def test_what_is_half_written_is_made_again(tmp_path):
    """Planted: a process dies while it writes. Its file has another name."""
    (tmp_path / ".state.pt.abcd.fp8parity").write_bytes(b"half")
    assert gradients.made_once(tmp_path, "state", lambda: {"w": torch.ones(1)})["w"].tolist() == [1.0]


def test_a_trained_state_depends_on_model_and_corpus_only(session, tmp_path, monkeypatch):
    calls = []

    def trained(config, corpus, device):
        calls.append(config.dim)
        return {"w": torch.full((1,), float(config.dim))}

    monkeypatch.setattr(gradients, "_trained", trained)
    model, device = session.subject("te-current").model, torch.device("cpu")
    for folder in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        gradients.trained_state.cache_clear()  # another process
        assert gradients.trained_state(model, "topics", device, folder)["w"].tolist() == [64.0]
    assert calls == [64] * 2
    gradients.trained_state.cache_clear()
