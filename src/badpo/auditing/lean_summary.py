"""What is known of the annotators' leans together: their spread, their classes, their level."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from badpo.auditing.class_leans import ClassLeans
from badpo.auditing.design import Design
from badpo.auditing.shrinking import Posterior
from badpo.estimation.heterogeneity import recommend
from badpo.estimation.leans import Leans

_Z = float(ndtri(0.975))

NOT_IDENTIFIED = (
    "not known: if everyone leaned more toward it, and the responses without it were better by as much, the votes "
    "would be the same; naming annotators who are known to lean nowhere (anchors) would tell"
)
OUT_OF_REACH = (
    "not known: the votes do not compare everyone with the annotators declared to lean nowhere (anchors); "
    "requests.parquet lists comparisons that would"
)
ANCHORED = "known because {n} are declared to lean nowhere (anchors); it stands and falls with that"
VARIES = (
    "known because votes on one comparison differ in this attribute, so that no quality can stand in for it"
)
NO_INFORMATION = "not known: no vote tells annotators apart"


def lean_summary(
    j: int,
    design: Design,
    leans: Leans,
    posterior: Posterior,
    classes: ClassLeans,
    equal_leans_p: float | None,
    n_anchors: int,
) -> dict[str, Any]:
    """The entry of one attribute in the part ``pool`` of audit.json."""
    spread = posterior.spread
    voted = design.per_annotator(np.ones(len(design.annotator), dtype=bool)) > 0
    status = leans.status[voted, j].astype(str)
    n_groups = len(np.unique(leans.component[leans.component[:, j] >= 0, j]))
    n_cross = int(design.cross[:, j].sum())
    advice = recommend(spread, np.nan if equal_leans_p is None else equal_leans_p, classes.p_value)
    return {
        "tau": spread.tau,
        "tau_ci": [None, None] if np.isnan(spread.tau) else [spread.tau_low, spread.tau_high],
        "reliability": spread.reliability,
        "components": n_groups,
        "is_divided": n_groups > 1,
        "informative_share": int(design.informative[:, j].sum()) / n_cross if n_cross else None,
        "n_estimated": int((status == "ok").sum()),
        "n_insufficient": int((status == "insufficient").sum()),
        "n_no_information": int(np.isin(status, ("no_cross", "no_information")).sum()),
        "n_separated": int(np.char.startswith(status, "separated").sum()),
        "n_flagged": int(posterior.flag.sum()),
        "equal_leans_p": equal_leans_p,
        "classes": classes.rows,
        "class_test_p": classes.p_value,
        "recommendation": advice.variant,
        "recommendation_reason": advice.reason,
        **_level(j, leans),
        "absolute": bool(leans.absolute[j]),
        "absolute_why": _why(j, leans, n_anchors),
    }


def _level(j: int, leans: Leans) -> dict[str, Any]:
    """The mean lean of those who have one, for these annotators on other comparisons and for annotators like them."""
    if not leans.absolute[j]:
        return {"level": None, "level_ci": None, "level_ci_beyond": None, "n_level": 0}
    n, level = int((leans.se[:, j] > 0).sum()), float(leans.level[j])
    reaches = _Z * leans.level_se[j], stdtrit(n - 1, 0.975) * leans.level_se_beyond[j] if n > 1 else np.nan
    ends = [[level - reach, level + reach] if np.isfinite(reach) else None for reach in reaches]
    return {"level": level, "level_ci": ends[0], "level_ci_beyond": ends[1], "n_level": n}


def _why(j: int, leans: Leans, n_anchors: int) -> str:
    if not leans.absolute[j]:
        if not (leans.component[:, j] >= 0).any():
            return NO_INFORMATION
        return OUT_OF_REACH if n_anchors else NOT_IDENTIFIED
    anchored = (leans.status[:, j] == "anchored").any()
    return (
        ANCHORED.format(n=f"{n_anchors:,} annotators" if n_anchors != 1 else "1 annotator")
        if anchored
        else VARIES
    )
