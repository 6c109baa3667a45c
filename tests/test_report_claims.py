"""Published claims in a report: each beside what was measured here."""

from __future__ import annotations

import pytest
from fp8parity.judging.policy import claims


class TestClaims:
    def test_the_table_is_read_and_ours_stands_beside(self, faulty):
        shown = {(c.claim.source, ", ".join(c.claim.recipe), c.claim.metric): c.ours for c in faulty.claims}
        assert len(shown) == 14
        assert shown["NVIDIA NeMo, FP8 throughput", "te-current", "speed-up"] == [
            "1.31x [1.29, 1.33] (te-current, tiny, native)", "1.31x [1.29, 1.33] (te-current, mini, native)",
        ]  # fmt: skip
        assert shown["NVIDIA NeMo, FP8 throughput", "te-mxfp8", "speed-up"] == []
        assert shown["Transformer Engine, GEMM tool", "te-current", "GEMM speed-up"] == []
        assert len(shown["DeepSeek-V3 (arXiv 2412.19437)", "te-block", "loss gap"]) == 2

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ('[[claim]]\nsource = "abc"', r"claims.toml:1: \[\[claim\]\] key url"),
            ('[[claims]]\nsource = "abc"', "unknown table 'claims'"),
            ("[[claim", "claims.toml: "),
        ],
    )
    def test_faults_are_named(self, tmp_path, text, fault):
        (tmp_path / "claims.toml").write_text(text)
        with pytest.raises(ValueError, match=fault):
            claims.load(tmp_path)

    @pytest.mark.parametrize(("differs", "count"), [("ten chars.", 1), ("too short", 0)])
    def test_what_differs_is_said_in_ten_characters_or_more(self, tmp_path, differs, count):
        given = (
            ("source", "abc"),
            ("url", "https://example.org"),
            ("metric", "loss gap"),
            ("model", "8B"),
            ("hardware", "B200"),
        )
        rows = [*given, ("recipe", "te-current"), ("published", "1%"), ("differs", differs)]
        (tmp_path / "claims.toml").write_text("[[claim]]\n" + "".join(f'{key} = "{value}"\n' for key, value in rows))
        if count:
            assert [c.differs for c in claims.load(tmp_path)] == [differs]
        else:
            with pytest.raises(ValueError, match=r"claims.toml:1: \[\[claim\]\] key differs"):
                claims.load(tmp_path)
