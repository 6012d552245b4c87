r"""The annotators' bias term: a few parameters that are trained along with the policy and saved next to it.

.. math:: \theta_k = m_k \left(\bar\theta + \delta_{c(k)} + \varepsilon_k\right) + f_k

The mean, the class offset and the deviation are optional parameters. The mask m and the fixed part f are constants.
Every variant of BA-DPO, and DPO itself, uses some of these parts.
"""

# mypy does not read torch's source code, so torch's classes are untyped
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from itertools import compress, zip_longest
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from badpo.data.files import DESCRIPTION_FILE, TENSORS_FILE, Json, write_atomically
from badpo.data.problems import ConfigError, did_you_mean
from badpo.theory.likelihood import bias_logit

# Parts of theta, ordered from the coarsest grouping of annotators to the finest.
PARTS = ("mean", "class_offset", "deviation")

VARIANTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "pooled": ("mean",),
    "per_annotator": ("deviation",),
    "shared_mean": ("mean", "deviation"),
    "class": ("mean", "class_offset", "deviation"),
}


class BiasSummary(TypedDict):
    """Return type of `BiasTerm.summary`. The inner keys of each dict are names of attributes, classes or annotators."""

    parameters: dict[str, dict[str, float] | dict[str, dict[str, float]]]
    theta: dict[str, dict[str, float]]
    theta_mean: dict[str, float]
    centred_deviations: dict[str, dict[str, float]]


class BiasFileError(ConfigError):
    """The files of a bias term are missing or damaged, or they do not belong together."""


class BiasTerm(torch.nn.Module):
    r"""Bias of every annotator toward every declared attribute.

    Parameters
    ----------
    attributes : sequence of str
        Names, in the order of the columns of ``delta``.
    annotators : sequence of str
        Pseudonyms, in the order of the annotator indices.
    parts : sequence of str
        Some or all of "mean", "class_offset" and "deviation". Without parts, the bias term learns nothing; if ``fixed``
        is also None, training with it is DPO. `VARIANTS` contains the names of the usual combinations.
    annotator_class : sequence of str, or None
        Class of each annotator; required by "class_offset".
    fixed : Tensor of shape (n_attributes,) or (n_annotators, n_attributes), or None
        Constant that is added to theta: the alpha of R-DPO for continuous length, or an offset for a target rate. The
        default is zero.
    mask : Tensor of shape (n_annotators,), or None
        1 if the annotator's theta is learned. 0 keeps the learned part at zero, for annotators who are known to have no
        bias: their votes identify the shared bias of all other annotators. The default is 1 for all annotators.

    Attributes
    ----------
    parts : tuple of str
        Names of the parts in use. A part that groups the annotators exactly like a coarser part is dropped, because
        theta would otherwise take every step twice: with one annotator, {mean, deviation} becomes {mean}. Annotators
        whose mask is 0 do not count.
    mean, class_offset, deviation : Parameter or None
        One row for each class or annotator, float32, initially zero. Training does not constrain them: the deviations
        need not sum to zero.
    extra : dict
        Further entries that `load` found in the files.

    References
    ----------
    BA-DPO, Section `variants`. Prop. `rate` shows that the parts differ in speed and not in the thetas they can
    express.

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
        self.attributes = _require_distinct(attributes, "attribute")
        self.annotators = _require_distinct(annotators, "annotator")
        if not self.annotators:
            raise ConfigError(
                "a bias term needs at least one annotator; if none is known, use one annotator for all votes"
            )
        if unknown := next((part for part in parts if part not in PARTS), None):
            hint = did_you_mean(unknown, PARTS)
            raise ConfigError(
                f'unknown part "{unknown}" of the bias term.{hint} Choose from {", ".join(PARTS)}'
            )
        self.annotator_class = tuple(annotator_class) if annotator_class is not None else None
        labels = self.annotator_class or ()
        if "class_offset" in parts:
            require_classes(self.annotators, labels)
        self.classes = tuple(dict.fromkeys(labels))
        m, q = len(self.annotators), len(self.attributes)
        mask = _check_mask(mask, m)
        n_groups = {
            "mean": 1,
            "class_offset": len(set(compress(labels, mask.tolist()))),
            "deviation": int(mask.sum()),
        }
        # each part subdivides the groups of the previous part
        # if two parts have the same number of groups, only the coarser part is kept
        coarsest = {n_groups[part]: part for part in reversed(PARTS) if part in parts}
        self.parts = tuple(reversed(coarsest.values()))
        shapes = {"mean": (q,), "class_offset": (len(self.classes), q), "deviation": (m, q)}
        for part in PARTS:
            zeros = torch.zeros(shapes[part])
            self.register_parameter(part, torch.nn.Parameter(zeros) if part in self.parts else None)
        class_index = torch.tensor([self.classes.index(name) for name in labels], dtype=torch.long)
        self.register_buffer("_class_index", class_index, persistent=False)
        self.register_buffer("fixed", _expand_fixed(fixed, (m, q)))
        self.register_buffer("mask", mask)
        self.extra: Json = {}

    @property
    def variant(self) -> str:
        """Name of this combination of parts in `VARIANTS`, or the parts joined by plus signs if it has no name."""
        names = (name for name, parts in VARIANTS.items() if parts == self.parts)
        return next(names, " + ".join(self.parts))

    @property
    def gold_annotators(self) -> tuple[str, ...]:
        """Pseudonyms of the annotators whose mask is 0, in the order of the annotator indices."""
        return tuple(compress(self.annotators, (self.mask == 0).tolist()))

    @property
    def learned_annotators(self) -> tuple[str, ...]:
        """Pseudonyms of the annotators whose theta is learned."""
        return tuple(compress(self.annotators, self.mask.tolist()))

    def theta(self) -> Tensor:
        """Return every annotator's theta in log-odds per unit, as float64 of shape (n_annotators, n_attributes)."""
        learned = torch.zeros_like(self.fixed, dtype=torch.float64)
        for part in self.parts:
            values = getattr(self, part).double()
            learned = learned + (values[self._class_index] if part == "class_offset" else values)
        return self.mask.double()[:, None] * learned + self.fixed.double()

    def forward(self, annotator: Tensor, delta: Tensor) -> Tensor:
        """Compute the bias logit of response a over b for each judgment, in the precision of ``delta``.

        The result has the shape (n_judgments,). ``annotator`` contains the index of each judgment's annotator. An
        unknown annotator has the index -1 and gets the mean theta of the pool.
        """
        theta = self.theta()
        with_unknown = torch.cat([theta, theta.mean(dim=0, keepdim=True)])
        # index -1 selects the last row, which is the mean theta of the pool
        logits = bias_logit(with_unknown[annotator], delta)
        return logits.to(torch.promote_types(delta.dtype, torch.float32))

    def warm_start(self, shared_bias: Tensor) -> None:
        """Set every annotator's theta to ``shared_bias``, of shape (n_attributes,), using the first learned part."""
        shared_bias = self._check_start(shared_bias, self.fixed.shape[1:])
        with torch.no_grad():
            getattr(self, self.parts[0]).copy_(shared_bias)

    def start_at(self, theta: Tensor) -> None:
        """Set the parts so that theta equals a given array of shape (n_annotators, n_attributes).

        The method first sets the pool mean, then the class offsets, and then the annotators' deviations. Each parameter
        is the average, over the annotators whose theta is learned, of ``theta`` minus the parameters that are already
        set. Without deviations, the bias term may match ``theta`` only approximately. The method ignores the rows of
        annotators whose mask is 0.

        Examples
        --------
        >>> bias = BiasTerm(["length"], ["ann_a", "ann_b", "ann_c"], VARIANTS["shared_mean"],
        ...     mask=torch.tensor([1, 1, 0]))
        >>> bias.start_at(torch.tensor([[1.0], [2.0], [9.0]]))
        >>> bias.mean.tolist(), bias.theta().flatten().tolist()
        ([1.5], [1.0, 2.0, 0.0])
        """
        free = self.mask.bool()
        remainder = self._check_start(theta, self.fixed.shape, free)
        everyone = torch.arange(len(remainder), device=remainder.device)
        groups = {
            "mean": torch.zeros_like(everyone),
            "class_offset": self._class_index,
            "deviation": everyone,
        }
        for part in self.parts:
            values = torch.atleast_2d(getattr(self, part).detach())  # shares the memory of the parameter
            for group in range(len(values)):
                inside = free & (groups[part] == group)
                values[group] = remainder[inside].mean(dim=0) if inside.any() else 0.0
            remainder = remainder - values[groups[part]]

    def _check_start(self, values: Tensor, shape: torch.Size, read: Tensor | None = None) -> Tensor:
        """Return ``values`` as float32; raise `ConfigError` if they have another shape or a used row is not finite."""
        values = torch.as_tensor(values, dtype=torch.float32).to(self.fixed.device)
        if values.shape != shape:
            raise ConfigError(
                f"the initial theta of {self.attributes} needs the shape {tuple(shape)}; got {tuple(values.shape)}"
            )
        rows = torch.atleast_2d(values if read is None else values[read])
        if unknown := list(compress(self.attributes, (~torch.isfinite(rows)).any(dim=0).tolist())):
            raise ConfigError(
                f"the initial theta of {', '.join(unknown)} is not finite; start at zero, or shrink the estimate"
            )
        if not self.parts:
            raise ConfigError(
                "warm_start sets the initial value of theta, but this bias term learns no theta; use warm_start: zero"
            )
        return values

    def summary(self) -> BiasSummary:
        """Parameters, theta, mean of theta and deviations from this mean, by name.

        The split of theta into ``parameters`` depends on the path that training took. The anchor determines
        ``theta_mean``, which the votes do not identify. In a connected pool, the votes identify ``centred_deviations``.
        The parameter ``deviation`` itself need not have a mean of zero. Estimates of individual annotators are personal
        data.

        Examples
        --------
        >>> bias = BiasTerm(["length"], ["ann_a", "ann_b"], ["deviation"])
        >>> bias.deviation.data = torch.tensor([[1.0], [0.0]])
        >>> bias.summary()["centred_deviations"]
        {'ann_a': {'length': 0.5}, 'ann_b': {'length': -0.5}}
        """
        rows = {"class_offset": self.classes, "deviation": self.annotators}
        theta = self.theta().detach()
        mean = theta.mean(dim=0)

        def name_values(values: Tensor) -> dict[str, float]:
            return dict(zip(self.attributes, values.tolist(), strict=True))

        def name_rows(values: Tensor, names: Sequence[str]) -> dict[str, dict[str, float]]:
            return {name: name_values(row) for name, row in zip(names, values, strict=True)}

        return {
            "parameters": {
                part: name_rows(getattr(self, part), rows[part])
                if part in rows
                else name_values(getattr(self, part))
                for part in self.parts
            },
            "theta": name_rows(theta, self.annotators),
            "theta_mean": name_values(mean),
            "centred_deviations": name_rows(theta - mean, self.annotators),
        }

    def save(self, folder: str | os.PathLike[str], extra: Json | None = None) -> None:
        """Write ``bias.safetensors``, and then ``bias.json``, which holds a checksum, the row names and ``extra``."""
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
    def load(cls, folder: str | os.PathLike[str]) -> BiasTerm:
        """Read the files that `save` wrote, without rounding; raise `BiasFileError` if a file is missing or damaged."""
        folder = Path(folder)
        try:
            content = (folder / TENSORS_FILE).read_bytes()
            description = json.loads((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
            if hashlib.sha256(content).hexdigest() != description["sha256"]:
                raise ValueError("the checksum differs")
            names = (description[name] for name in ("attributes", "annotators", "parts"))
            bias = cls(*names, annotator_class=description["annotator_class"])
            tensors = tensors_from_bytes(content)
            bias.to(tensors["fixed"].dtype).load_state_dict(tensors)
            bias.extra = description["extra"]
        except OSError as error:
            raise BiasFileError(
                f"{error.filename or folder} does not exist; give the folder of a finished run or of a checkpoint"
            ) from error
        except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise BiasFileError(
                f"{folder / TENSORS_FILE} does not agree with {DESCRIPTION_FILE} ({error}). Restore both files from "
                "one checkpoint, or train the policy again"
            ) from error
        return bias


def _require_distinct(names: Sequence[str], what: str) -> tuple[str, ...]:
    if repeated := [name for name, n in Counter(names).items() if n > 1]:
        raise ConfigError(f'the {what} "{repeated[0]}" occurs twice; give every {what} a different name')
    return tuple(names)


def require_classes(annotators: Sequence[str], labels: Sequence[object]) -> None:
    """Raise `ConfigError` unless every annotator has a class label."""
    rows = zip_longest(annotators, labels)
    unlabelled = [name for name, label in rows if name is None or not isinstance(label, str)]
    if unlabelled:
        raise ConfigError(
            f"every annotator needs a class, but {len(unlabelled)} of {len(annotators)} have none "
            f"(first: {unlabelled[0] or 'one class too many'}). Map the column of the classes with columns: "
            "{annotator_class: NAME} and fill it, or use a setting without classes: bias: shared_mean, or groups: "
            "annotator"
        )


def _expand_fixed(fixed: Tensor | None, shape: tuple[int, int]) -> Tensor:
    if fixed is None:
        return torch.zeros(shape)
    fixed = torch.as_tensor(fixed, dtype=torch.float32)
    if fixed.shape not in (shape, shape[1:]):
        raise ConfigError(
            f"the fixed part of theta must have the shape {shape[1:]} or {shape}; got {tuple(fixed.shape)}"
        )
    return fixed.expand(shape).clone()


def _check_mask(mask: Tensor | None, n_annotators: int) -> Tensor:
    if mask is None:
        return torch.ones(n_annotators)
    mask = torch.as_tensor(mask, dtype=torch.float32)
    if mask.shape != (n_annotators,) or not torch.isin(mask, torch.tensor([0.0, 1.0])).all():
        raise ConfigError(f"the mask must contain 0 or 1 for each of the {n_annotators} annotators")
    return mask.clone()
