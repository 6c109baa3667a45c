"""The corpus topics: its bytes never change, its entropy is exact, and corpora know how far a bigram model gets."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from fp8parity.workload import corpus, topics


def test_the_bytes_never_change():
    text = topics.tokens(2**16, "train")
    assert (
        hashlib.sha256(text.tobytes()).hexdigest() == "45d5b993c43e38ea723162518005221b7fcc868e9e43ebdf276f798a7b510864"
    )
    assert not np.array_equal(text, topics.tokens(2**16, "validation"))


def test_a_paragraph_has_one_topic_and_each_segment_starts_with_its_marker():
    text = topics.tokens(132 * 100, "train").reshape(100, 4, 33)
    markers = text[:, :, 0]
    assert (markers == markers[:, :1]).all()
    assert sorted(set(markers.ravel())) == [64, 65, 66, 67]
    assert text[:, :, 1:].max() < 64


def test_the_entropy_rate_is_that_of_the_text():
    """The mean information of 250,000 bytes is within 0.5% of the exact rate."""
    text = topics.tokens(132 * 2000, "train").reshape(2000, 4, 33).astype(int)
    p = topics.weights() / topics.weights().sum(2, keepdims=True)
    before = np.concatenate([np.zeros((2000, 4, 1), int), text[:, :, 1:-1]], axis=2)
    information = -np.log(p[text[:, :, :1] - 64, before, text[:, :, 1:]]).sum() + 2000 * np.log(4)
    assert information / text.size == pytest.approx(topics.entropy_rate(), rel=0.005)


def test_context_is_worth_a_tenth_of_the_loss_and_the_topic_as_much_again():
    """The signal of the corpus: the loss falls from unigram to bigram, and from bigram to the entropy rate."""
    stream = corpus.load("topics")
    assert stream.unigram == pytest.approx(4.084, abs=0.001)
    assert stream.bigram == pytest.approx(3.647, abs=0.001)
    assert stream.floor == pytest.approx(3.2993, abs=0.0001)


def test_unigram_and_bigram_entropy_of_a_text_that_is_known():
    """Two symbols that take turns: one nat-bit of frequency, and nothing left after the symbol before."""
    turns = torch.tensor([0, 1] * 4096, dtype=torch.uint8)
    stream = corpus.TokenStream("turns", turns, turns, "print")
    assert stream.unigram == pytest.approx(np.log(2), abs=1e-6)
    assert stream.bigram == pytest.approx(0, abs=1e-6)
