"""The files of a bias term without some of its annotators: arrays in, arrays out, no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

TENSORS = "bias.safetensors"
DESCRIPTION = "bias.json"
_PARTS = ("mean", "class_offset", "deviation")  # from the coarsest division of the annotators to the finest


def without_annotators(
    description: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], forgotten: Collection[str]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """A bias term's description and tensors with the rows of some annotators taken out.

    Theta of everyone else stays what it was. A part that after that divides the annotators exactly as a coarser one
    does is added to the coarser one, as a bias term never holds both.

    Parameters
    ----------
    description : mapping
        ``bias.json``.
    tensors : mapping of str to array
        ``bias.safetensors``.
    forgotten : collection of str
        Pseudonyms.

    Returns
    -------
    description, tensors, or None
        None when nobody is left. ``description["extra"]["annotators_forgotten"]`` counts who was taken out in all.

    Examples
    --------
    >>> description = {"annotators": ["ann_a", "ann_b", "ann_c"], "annotator_class": None, "parts": ["deviation"],
    ...     "extra": {}}
    >>> tensors = {"deviation": np.array([[1.0], [2.0], [3.0]]), "fixed": np.zeros((3, 1)), "mask": np.ones(3)}
    >>> left, values = without_annotators(description, tensors, {"ann_b"})
    >>> left["annotators"], values["deviation"].tolist()
    (['ann_a', 'ann_c'], [[1.0], [3.0]])
    """
    names = list(description["annotators"])
    kept = [i for i, name in enumerate(names) if name not in forgotten]
    if not kept:
        return None
    classes = description.get("annotator_class")
    left = {
        name: values[kept] for name, values in tensors.items() if len(values) == len(names) and values.ndim
    }
    values = dict(tensors) | {name: left[name] for name in ("deviation", "fixed", "mask") if name in left}
    remaining = None if classes is None else [classes[i] for i in kept]
    if classes is not None and remaining is not None and "class_offset" in values:
        old, new = list(dict.fromkeys(classes)), list(dict.fromkeys(remaining))
        values["class_offset"] = values["class_offset"][[old.index(label) for label in new]]
    parts = _merged(values, remaining, len(kept))
    extra = dict(description.get("extra") or {})
    extra["annotators_forgotten"] = extra.get("annotators_forgotten", 0) + len(names) - len(kept)
    changed = {
        "annotators": [names[i] for i in kept],
        "annotator_class": remaining,
        "parts": parts,
        "extra": extra,
    }
    if "gold_annotators" in description:
        changed["gold_annotators"] = [
            name for name in description["gold_annotators"] if name not in forgotten
        ]
    return {**description, **changed}, values


def _merged(values: dict[str, NDArray[Any]], classes: list[str] | None, n_annotators: int) -> list[str]:
    """Add parts that have become the same division to the coarser of the two; the parts that are left."""
    labels = list(dict.fromkeys(classes or ()))
    groups = {
        "mean": np.zeros(n_annotators, dtype=np.intp),
        "class_offset": np.array([labels.index(label) for label in classes or ()], dtype=np.intp),
        "deviation": np.arange(n_annotators),
    }
    parts: list[str] = []
    for part in _PARTS:
        if part not in values:
            continue
        n_groups = groups[part].max() + 1
        coarser = parts[-1] if parts else None
        if coarser is not None and n_groups == groups[coarser].max() + 1:
            finer = values.pop(part)
            total = np.atleast_2d(values[coarser]).copy()
            # one annotator of each group stands for it: within a group the finer part is the same
            _, first = np.unique(groups[coarser], return_index=True)
            total[groups[coarser][first]] += finer[groups[part][first]]
            values[coarser] = total.reshape(values[coarser].shape)
        else:
            parts.append(part)
    return parts
