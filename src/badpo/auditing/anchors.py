"""Annotators known to lean nowhere: they fix the level that votes alone leave open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.auditing.design import Design
from badpo.auditing.options import Options
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, did_you_mean
from badpo.estimation.conditional import fit_conditional
from badpo.estimation.group_tests import equal_leans_test


def anchored_annotators(design: Design, options: Options) -> NDArray[np.bool_]:
    """Who is anchored, of shape (n_annotators,): the annotators named one by one, or everyone of a class."""
    if options.anchor_class is not None:
        return _of_class(design, options.anchor_class)
    return named_annotators(design.annotators, options.anchors, "anchors")


def named_annotators(annotators: ArrayLike, named: Sequence[object], key: str) -> NDArray[np.bool_]:
    """Who of the annotators is named, of shape (n_annotators,)."""
    wanted = pseudonyms(list(dict.fromkeys(str(name) for name in named)))
    known = np.asarray(annotators, dtype=object)
    missing = [name for name in wanted if name not in set(known)]
    if missing:
        raise ConfigError(
            f"{key}: {', '.join(missing)} cast no vote in this table (ids are shown as pseudonyms); write the id "
            "as the table has it, or the pseudonym that the report shows"
        )
    return np.isin(known, wanted)


def _of_class(design: Design, label: str) -> NDArray[np.bool_]:
    chosen = np.array([known == label for known in design.classes], dtype=bool)
    if not chosen.any():
        known_labels = sorted({known for known in design.classes if known is not None})
        raise ConfigError(
            f'anchor class: no annotator has the class "{label}".{did_you_mean(label, known_labels)} Classes: '
            f"{', '.join(known_labels) or 'none; give an annotator_class column'}"
        )
    return chosen


def anchor_check(design: Design, anchored: NDArray[np.bool_], options: Options) -> dict[str, Any] | None:
    """The part ``checks.anchors`` of audit.json; None without anchors.

    ``n_cross`` counts the anchors' cross-group judgments, by attribute, and ``equal_leans_p`` is of the test that the
    anchors do not differ among themselves: people who all lean nowhere lean alike. None where it cannot be tested.
    """
    if not anchored.any():
        return None
    n_cross = design.per_annotator(design.cross)[anchored].sum(axis=0)
    theirs = anchored[design.annotator]
    comparison, sign, annotator, delta = (each[theirs] for each in design.votes[:4])
    leans = fit_conditional(comparison, sign, annotator, delta, design.n_annotators)
    tests = equal_leans_test(comparison, sign, annotator, delta, leans)
    return {
        "n": int(anchored.sum()),
        "class": options.anchor_class,
        "annotators": sorted(design.annotators[anchored].tolist()),
        "n_cross": dict(zip(design.attributes, n_cross.tolist(), strict=True)),
        "equal_leans_p": {
            name: None if np.isnan(test.p_value) else test.p_value
            for name, test in zip(design.attributes, tests, strict=True)
        },
    }
