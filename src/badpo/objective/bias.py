r"""The annotators' bias: a few numbers beside the policy, with their own files.

.. math:: \theta_k = m_k \left(\bar\theta + \delta_{c(k)} + \varepsilon_k\right) + f_k

The mean, the class offset and the deviation are parameters, each there or not; the mask m and the fixed part f are
constants. Every variant of the method, and DPO itself, is one choice of parts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from itertools import compress, zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from badpo.data.files import DESCRIPTION_FILE, TENSORS_FILE, Json, write_atomically
from badpo.data.problems import ConfigError, did_you_mean
from badpo.theory.likelihood import bias_logit

# From the coarsest division of the annotators to the finest.
PARTS = ("mean", "class_offset", "deviation")

VARIANTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "pooled": ("mean",),
    "per_annotator": ("deviation",),
    "shared_mean": ("mean", "deviation"),
    "class": ("mean", "class_offset", "deviation"),
}


class BiasFileError(ConfigError):
    """The files of a bias term are missing, damaged, or do not belong together."""


class BiasTerm(torch.nn.Module):
    r"""Bias of every annotator toward every declared attribute.

    Parameters
    ----------
    attributes : sequence of str
        Names, in the order of the columns of ``delta``.
    annotators : sequence of str
        Pseudonyms, in the order of the annotator indices.
    parts : sequence of str
        Any of "mean", "class_offset" and "deviation"; empty for no learned bias, which is DPO when nothing is fixed.
        `VARIANTS` names the usual choices.
    annotator_class : sequence of str, or None
        Class of each annotator; needed by "class_offset".
    fixed : Tensor of shape (n_attributes,) or (n_annotators, n_attributes), or None
        Added to theta and never trained: the alpha of R-DPO on continuous length, or an offset that sets a target
        rate. None: zero.
    mask : Tensor of shape (n_annotators,), or None
        0 holds the learned part of an annotator at zero (one known to have no bias, whose votes then fix the level
        that the others' votes leave open); 1 lets it be learned. None: all 1.

    Attributes
    ----------
    parts : tuple of str
        A part that divides the annotators exactly as a coarser one does is left out, since the two would take every
        step twice: with one annotator {mean, deviation} is {mean}. Annotators whom the mask holds at zero do not count.
    mean, class_offset, deviation : Parameter or None
        A row for each class or annotator, float32, zero at the start. In training they move freely: deviations do not
        have to add up to zero.
    extra : dict
        What `load` found beside the parameters.

    References
    ----------
    BA-DPO, Section `variants`; Prop. `rate` for why the parts differ in speed and not in what they can express.

    Examples
    --------
    >>> bias = BiasTerm(["length"], ["ann_a", "ann_b"], VARIANTS["shared_mean"])
    >>> bias.warm_start(torch.tensor([0.5]))
    >>> bias(annotator=torch.tensor([0, 1, -1]), delta=torch.tensor([[1.0], [-1.0], [0.0]])).tolist()
    [0.5, -0.5, 0.0]
    """

    def __init__(
        self,
        attributes: Sequence[str],
        annotators: Sequence[str],
        parts: Sequence[str],
        *,
        annotator_class: Sequence[str] | None = None,
        fixed: Tensor | None = None,
        mask: Tensor | None = None,
    ):
        super().__init__()
        self.fixed: Tensor
        self.mask: Tensor
        self._class_index: Tensor
        self.attributes = _distinct(attributes, "attribute")
        self.annotators = _distinct(annotators, "annotator")
        if not self.annotators:
            raise ConfigError(
                "a bias term needs at least one annotator; without identities name one, for everyone"
            )
        if unknown := next((part for part in parts if part not in PARTS), None):
            hint = did_you_mean(unknown, PARTS)
            raise ConfigError(
                f'unknown part "{unknown}" of the bias.{hint} The parts are {", ".join(PARTS)}'
            )
        self.annotator_class = tuple(annotator_class) if annotator_class is not None else None
        labels = self.annotator_class or ()
        if "class_offset" in parts:
            require_classes(self.annotators, labels)
        self.classes = tuple(dict.fromkeys(labels))
        m, q = len(self.annotators), len(self.attributes)
        mask = _checked_mask(mask, m)
        n_groups = {
            "mean": 1,
            "class_offset": len(set(compress(labels, mask.tolist()))),
            "deviation": int(mask.sum()),
        }
        # every part divides the groups of the one before: where two have as many groups the coarser one stays
        coarsest = {n_groups[part]: part for part in reversed(PARTS) if part in parts}
        self.parts = tuple(reversed(coarsest.values()))
        shapes = {"mean": (q,), "class_offset": (len(self.classes), q), "deviation": (m, q)}
        for part in PARTS:
            zeros = torch.zeros(shapes[part])
            self.register_parameter(part, torch.nn.Parameter(zeros) if part in self.parts else None)
        class_index = torch.tensor([self.classes.index(name) for name in labels], dtype=torch.long)
        self.register_buffer("_class_index", class_index, persistent=False)
        self.register_buffer("fixed", _expanded(fixed, (m, q)))
        self.register_buffer("mask", mask)
        self.extra: dict = {}

    @property
    def variant(self) -> str:
        """The name in `VARIANTS` of its parts; the parts themselves where they have none."""
        names = (name for name, parts in VARIANTS.items() if parts == self.parts)
        return next(names, " + ".join(self.parts))

    @property
    def gold_annotators(self) -> tuple[str, ...]:
        """Pseudonyms of those whom the mask holds at zero, in the order of the annotator indices."""
        return tuple(compress(self.annotators, (self.mask == 0).tolist()))

    @property
    def learned_annotators(self) -> tuple[str, ...]:
        """Pseudonyms of the others, whose theta is learned."""
        return tuple(compress(self.annotators, self.mask.tolist()))

    def theta(self) -> Tensor:
        """Composed bias of every annotator, shape (n_annotators, n_attributes), float64, in log-odds per unit."""
        learned = torch.zeros_like(self.fixed, dtype=torch.float64)
        for part in self.parts:
            values = getattr(self, part).double()
            learned = learned + (values[self._class_index] if part == "class_offset" else values)
        return self.mask.double()[:, None] * learned + self.fixed.double()

    def forward(self, annotator: Tensor, delta: Tensor) -> Tensor:
        """Bias logit of each judgment, a over b, (n_judgments,), computed in float64, in the precision of ``delta``.

        ``annotator`` has the index of each judgment's annotator; -1 for an unknown one, who is given the pool mean of
        theta.
        """
        theta = self.theta()
        with_unknown = torch.cat([theta, theta.mean(dim=0, keepdim=True)])
        # the mean stands last, where the index -1 points
        logits = bias_logit(with_unknown[annotator], delta)
        return logits.to(torch.promote_types(delta.dtype, torch.float32))

    @torch.no_grad()
    def warm_start(self, level: Tensor) -> None:
        """Start at a common level (n_attributes,): the mean if there is one, else every class offset or deviation."""
        level = self._checked_start(level, self.fixed.shape[1:])
        getattr(self, self.parts[0]).copy_(level)

    @torch.no_grad()
    def start_at(self, theta: Tensor) -> None:
        """Start at a theta (n_annotators, n_attributes), divided over the parts from the coarsest to the finest.

        Each part takes the mean, over those of its annotators who are free, of what the coarser ones leave; what the
        finest leaves, as the mean alone does, is not started at. Rows of those held at zero are not read.

        Examples
        --------
        >>> bias = BiasTerm(["length"], ["ann_a", "ann_b", "ann_c"], VARIANTS["shared_mean"],
        ...     mask=torch.tensor([1, 1, 0]))
        >>> bias.start_at(torch.tensor([[1.0], [2.0], [9.0]]))
        >>> bias.mean.tolist(), bias.theta().flatten().tolist()
        ([1.5], [1.0, 2.0, 0.0])
        """
        free = self.mask.bool()
        left = self._checked_start(theta, self.fixed.shape, free)
        everyone = torch.arange(len(left), device=left.device)
        groups = {
            "mean": torch.zeros_like(everyone),
            "class_offset": self._class_index,
            "deviation": everyone,
        }
        for part in self.parts:
            parameter = torch.atleast_2d(getattr(self, part))
            for group in range(len(parameter)):
                inside = free & (groups[part] == group)
                parameter[group] = left[inside].mean(dim=0) if inside.any() else 0.0
            left = left - parameter[groups[part]]

    def _checked_start(self, values: Tensor, shape: torch.Size, read: Tensor | None = None) -> Tensor:
        values = torch.as_tensor(values, dtype=torch.float32).to(self.fixed.device)
        if values.shape != shape:
            raise ConfigError(
                f"a start for {self.attributes} needs the shape {tuple(shape)}; got {tuple(values.shape)}"
            )
        rows = torch.atleast_2d(values if read is None else values[read])
        if unknown := list(compress(self.attributes, (~torch.isfinite(rows)).any(dim=0).tolist())):
            raise ConfigError(
                f"the level of {', '.join(unknown)} is not finite; start at zero, or cap or shrink the estimate"
            )
        if not self.parts:
            raise ConfigError("a bias term without learned parts has nothing to warm-start")
        return values

    @torch.no_grad()
    def summary(self) -> dict:
        """Raw parameters, composed theta and centred deviations, each under its own key and by name.

        The split of ``parameters`` between the parts depends on the path of training, and ``theta_mean`` is fixed by
        the anchor, not by the votes. ``centred_deviations`` from it are what the votes identify in a connected pool:
        nothing holds the mean of the parameter ``deviation`` at zero. Estimates of single annotators are personal data.

        Examples
        --------
        >>> bias = BiasTerm(["length"], ["ann_a", "ann_b"], ["deviation"])
        >>> bias.deviation.data = torch.tensor([[1.0], [0.0]])
        >>> bias.summary()["centred_deviations"]
        {'ann_a': {'length': 0.5}, 'ann_b': {'length': -0.5}}
        """
        rows = {"class_offset": self.classes, "deviation": self.annotators}
        theta = self.theta()
        mean = theta.mean(dim=0)
        return {
            "parameters": {
                part: self._named(getattr(self, part), rows.get(part)) for part in self.parts
            },
            "theta": self._named(theta, self.annotators),
            "theta_mean": self._named(mean),
            "centred_deviations": self._named(theta - mean, self.annotators),
        }

    def _named(self, values: Tensor, rows: Sequence[str] | None = None) -> Json:
        if rows is None:
            return dict(zip(self.attributes, values.tolist(), strict=True))
        return {name: self._named(row) for name, row in zip(rows, values, strict=True)}

    def save(self, folder: str | os.PathLike, extra: Json | None = None) -> None:
        """Write ``bias.safetensors``, then ``bias.json``: its checksum and, as ``extra``, whose the numbers are."""
        folder = Path(folder)
        state = self.state_dict().items()
        content = tensors_to_bytes({name: tensor.cpu().contiguous() for name, tensor in state})
        description = {
            "attributes": self.attributes,
            "parts": self.parts,
            "annotators": self.annotators,
            "annotator_class": self.annotator_class,
            "gold_annotators": self.gold_annotators,
            "sha256": hashlib.sha256(content).hexdigest(),
            "extra": dict(extra or {}),
        }
        text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / TENSORS_FILE, content, private=True)
        write_atomically(folder / DESCRIPTION_FILE, text.encode(), private=True)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> BiasTerm:
        """Read what `save` wrote, to the bit; a `BiasFileError` where the files are not there or not whole."""
        folder = Path(folder)
        try:
            content = (folder / TENSORS_FILE).read_bytes()
            description = json.loads((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
            if hashlib.sha256(content).hexdigest() != description["sha256"]:
                raise ValueError("another checksum")
            names = (description[name] for name in ("attributes", "annotators", "parts"))
            bias = cls(*names, annotator_class=description["annotator_class"])
            tensors = tensors_from_bytes(content)
            bias.to(tensors["fixed"].dtype).load_state_dict(tensors)
            bias.extra = description["extra"]
        except OSError as error:
            raise BiasFileError(
                f"{error.filename or folder} is not there; name the folder of a finished run or a checkpoint"
            ) from error
        except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise BiasFileError(
                f"{folder / TENSORS_FILE} is not what {DESCRIPTION_FILE} describes ({error}). Restore both files from "
                "one checkpoint, or train again"
            ) from error
        return bias


def _distinct(names: Sequence[str], what: str) -> tuple[str, ...]:
    if repeated := [name for name, n in Counter(names).items() if n > 1]:
        raise ConfigError(
            f'the {what} "{repeated[0]}" is named twice; every {what} needs a name of its own'
        )
    return tuple(names)


def require_classes(annotators: Sequence[str], labels: Sequence[Any]) -> None:
    """Raise `ConfigError` unless every annotator has the label of a class."""
    people = zip_longest(annotators, labels)
    without = [name for name, label in people if name is None or not isinstance(label, str)]
    if without:
        raise ConfigError(
            f"every annotator needs a class, and {len(without)} of {len(annotators)} have none "
            f"(first: {without[0] or 'a class too many'}). Map a column with columns: {{annotator_class: NAME}} and "
            "fill it, or use what needs no classes: bias: shared_mean, or groups: annotator"
        )


def _expanded(fixed: Tensor | None, shape: tuple[int, int]) -> Tensor:
    if fixed is None:
        return torch.zeros(shape)
    fixed = torch.as_tensor(fixed, dtype=torch.float32)
    if fixed.shape not in (shape, shape[1:]):
        raise ConfigError(
            f"the fixed part needs the shape {shape[1:]} or {shape}; got {tuple(fixed.shape)}"
        )
    return fixed.expand(shape).clone()


def _checked_mask(mask: Tensor | None, n_annotators: int) -> Tensor:
    if mask is None:
        return torch.ones(n_annotators)
    mask = torch.as_tensor(mask, dtype=torch.float32)
    if mask.shape != (n_annotators,) or not torch.isin(mask, torch.tensor([0.0, 1.0])).all():
        raise ConfigError(f"the mask needs a 0 or a 1 for each of {n_annotators} annotators")
    return mask.clone()
