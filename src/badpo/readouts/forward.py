"""What a causal language model takes, and rows that end together."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch


def forward_takes(model, keyword: str) -> bool:
    """Whether the forward of a causal language model names ``keyword``, looking through a PEFT wrapper."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return keyword in inspect.signature(type(inner).forward).parameters


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and 0/1 mask of rows that all end in the last column, int64 of shape (n_rows, longest).

    Padding is token 0: nothing attends to it, so its value is of no consequence.
    """
    width = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.as_tensor(row, dtype=torch.long)
        mask[i, width - len(row) :] = 1
    return ids.to(device), mask.to(device)
