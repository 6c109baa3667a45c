"""Add a recipe, a model and a corpus: copy it as the conftest.py at the root of your project (docs/extend.md)."""

from dataclasses import replace

from fp8parity import LinearSpec, ModelConfig, Operand, Preset, Recipe, Schedule, TokenStream, from_texts
from fp8parity.recipes import RECIPES

pytest_plugins = ("fp8parity.gate.plugin",)


def pytest_fp8parity_recipes():
    row = Operand("e4m3", tile=(1, 0), scale="te-fp32")
    yours = Recipe("my-rowwise", LinearSpec(row, row, row, row, row, row), source="our design note 12")
    # One of the catalogue, with the shorter history that your framework sets.
    delayed = RECIPES["te-delayed"]
    short = LinearSpec(**{name: replace(op, history=16) for name, op in delayed.linear})
    return [yours, replace(delayed, name="my-delayed", linear=short, options=(("amax_history_len", 16),))]


def pytest_fp8parity_models():
    model = ModelConfig("nano", dim=64, layers=1, heads=2, kv_heads=1, hidden=128, init_std=0.1)
    return [
        Preset(
            model,
            Schedule(
                steps=80, rows=16, length=64, lr=5e-3, warmup=10, tail=20, validation_every=40, validation_rows=16
            ),
        )
    ]


def pytest_fp8parity_corpora():
    def counting(argument: str) -> TokenStream:
        return from_texts(f"counting:{argument}", [" ".join(map(str, range(int(argument))))])

    return {"counting": counting}
