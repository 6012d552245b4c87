"""Everything that an audit finds out about annotators, computed once and then laid out in tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.auditing.anchors import anchor_check, anchored_annotators
from badpo.auditing.annotators import annotator_table
from badpo.auditing.class_leans import ClassLeans, class_leans, p_value_or_none
from badpo.auditing.design import Design
from badpo.auditing.estimator import Choice, choose_quality, fit
from badpo.auditing.lean_summary import lean_summary
from badpo.auditing.options import Options
from badpo.auditing.shrinking import Posterior, posteriors_of
from badpo.data.judgments import Judgments
from badpo.estimation.assignment import AssignmentTest, assignment_test
from badpo.estimation.group_tests import equal_leans_test
from badpo.estimation.leans import Leans
from badpo.theory.identifiability import annotator_components

SIZES_SHOWN = 5


@dataclass(frozen=True, eq=False)
class People:
    """The annotators of an audit."""

    design: Design
    options: Options
    choice: Choice
    leans: Leans
    posteriors: tuple[Posterior, ...]
    classes: tuple[ClassLeans, ...]
    equal_leans_p: tuple[float | None, ...]
    anchored: NDArray[np.bool_]
    assignment: AssignmentTest | None

    def pool(self) -> dict[str, Any]:
        """The part ``pool`` of audit.json: an entry for each attribute."""
        return {
            name: lean_summary(
                j,
                self.design,
                self.leans,
                self.posteriors[j],
                self.classes[j],
                self.equal_leans_p[j],
                int(self.anchored.sum()),
            )
            for j, name in enumerate(self.design.attributes)
        }

    def checks(self) -> dict[str, Any]:
        """The part ``checks`` of audit.json."""
        leans = self.leans
        return {
            "assignment": self._assignment(),
            "estimator": {
                "quality": self.choice.quality,
                "why": self.choice.why,
                "gradient_norm": leans.gradient_norm,
                "n_newton": leans.n_newton,
                "n_cg": leans.n_cg,
                "log_likelihood": leans.log_likelihood,
                "u_scale": leans.u_scale,
                "quality_sd": leans.quality_sd,
            },
            "components": {
                "theorem": self._graph(self._theorem()),
                "informative": self._graph(leans.component),
            },
            "anchors": anchor_check(self.design, self.anchored, self.options),
        }

    def table(self, agreement: pd.DataFrame) -> pd.DataFrame:
        """One row for each annotator and attribute."""
        return annotator_table(self.design, self.leans, self.posteriors, agreement)

    def _assignment(self) -> dict[str, Any] | None:
        test = self.assignment
        if test is None:
            return None
        return {
            "p_value": test.p_value,
            "by_attribute": dict(zip(self.design.attributes, test.by_attribute, strict=True)),
            "statistic": test.statistic,
            "n_permutations": test.n_permutations,
        }

    def _theorem(self) -> NDArray[np.intp]:
        """The theorem's components: annotators who judged one cross-group comparison, whatever the votes."""
        return annotator_components(
            self.design.stratum, self.design.annotator, self.design.cross, self.design.n_annotators
        )

    def _graph(self, labels: NDArray[np.intp]) -> dict[str, Any]:
        """Number and sizes of the components of each attribute, and who stands outside of all of them."""
        voted = self.design.per_annotator(np.ones(len(self.design.annotator), dtype=bool)) > 0
        return {name: _sizes(labels[voted, j]) for j, name in enumerate(self.design.attributes)}


def people_of(judgments: Judgments, design: Design, options: Options) -> People:
    """Estimate the annotators' leans, and test what the estimate rests on."""
    anchored = anchored_annotators(design, options)
    assignment = assignment_test(*design.votes[:4]) if design.has_identities else None
    choice = choose_quality(design, options, None if assignment is None else assignment.p_value)
    leans = fit(choice, design, judgments, anchored, options)
    equal = equal_leans_test(*design.votes[:4], leans)
    return People(
        design=design,
        options=options,
        choice=choice,
        leans=leans,
        posteriors=posteriors_of(design, leans, options),
        classes=class_leans(design),
        equal_leans_p=tuple(p_value_or_none(test.p_value) for test in equal),
        anchored=anchored,
        assignment=assignment,
    )


def _sizes(labels: NDArray[np.intp]) -> dict[str, Any]:
    """Components from the largest down; only the first sizes are listed."""
    sizes = np.sort(np.unique(labels[labels >= 0], return_counts=True)[1])[::-1]
    return {
        "n": len(sizes),
        "sizes": sizes[:SIZES_SHOWN].tolist(),
        "outside": int((labels < 0).sum()),
    }
