"""Texts in which each token has four successors, with the keys of NeMo AutoModel's collater."""

from typing import Any

import torch

PADDING = {"input_ids": 0, "labels": -100, "attention_mask": 0}


def texts(seed: int, size: int, vocabulary: int = 64, length: int = 64) -> list[dict[str, Any]]:
    """Return ``size`` rows of ``length`` tokens and their successors."""
    successors = torch.randint(vocabulary, (vocabulary, 4), generator=torch.Generator().manual_seed(0))
    turns = torch.randint(4, (length, size), generator=torch.Generator().manual_seed(seed))
    ids = [torch.arange(size) % vocabulary]
    for turn in turns:
        ids.append(successors[ids[-1], turn])
    tokens = torch.stack(ids, dim=1).tolist()
    more: dict[str, Any] = {"attention_mask": [1] * length, "___PAD_TOKEN_IDS___": PADDING}
    return [{"input_ids": row[:-1], "labels": row[1:], **more} for row in tokens]
