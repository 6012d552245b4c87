"""Write the findings of an audit as sentences: pooled bias, certainty, unknowns and advice.

`audit_sentences.jinja` has the sentences; this module decides which of them apply.
"""

import math
from collections.abc import Sequence
from functools import partial

from badpo.data.files import Json
from badpo.data.privacy import FEWEST_ANNOTATORS
from badpo.results.formatting import Finding, attribute_label, built_in_of, count_text, sentence, shown

# A bias of less than 0.3 log-odds (odds of 57 to 43) has little effect on a policy.
RELEVANT_BIAS = 0.3
# Maximum length of a quoted reason, in characters.
_LONGEST_REASON = 400
_sentence = partial(sentence, "audit_sentences.jinja")


def attribute_findings(summary: Json) -> list[Finding]:
    """Return one finding for each attribute of an audit; attributes that the page withholds come last."""
    labels = audit_labels(summary)
    findings = [_write_finding(summary, row, labels[row["name"]]) for row in summary["attributes"]]
    for name in summary.get("withheld", ()):
        text = _sentence("withheld", label=labels[name], fewest=FEWEST_ANNOTATORS)
        findings.append(Finding(labels[name], text, ()))
    return findings


def audit_labels(summary: Json) -> dict[str, str]:
    """Return the display name of every attribute of an audit."""
    configs = {config["name"]: config for config in summary["settings"]["attributes"]}
    return {name: attribute_label(name, config) for name, config in configs.items()}


def is_sure(row: Json) -> bool:
    """Return whether the 95 % confidence interval of an attribute's bias excludes zero."""
    if "is_sure" in row:  # rows with rounded intervals contain this key
        return bool(row["is_sure"])
    return (row.get("ci_low") or 0) > 0 or (row.get("ci_high") or 0) < 0


def action(row: Json, pool: Json) -> str:
    """Return the advice for an attribute: "declare", "watch" or "nothing".

    The advice is "declare" if annotators differ, or if the pooled bias is significant both alone and after adjusting
    for the other attributes. The advice is "watch" if the bias is large but not significant, or if the bias is no
    longer significant after adjusting for the other attributes.
    """
    if (row["n_cross"] or 0) < 2:
        return "nothing"
    is_explained = _is_explained_by_others(row)
    if is_sure(row) and not is_explained or pool.get("recommendation") in ("shared_mean", "class"):
        return "declare"
    if row["interval"] == "too wide":
        return "nothing"
    is_large = row["log_odds"] is None or abs(row["log_odds"]) >= RELEVANT_BIAS
    return "watch" if is_explained or is_large else "nothing"


def _is_explained_by_others(row: Json) -> bool:
    """Return whether a significant bias is no longer significant after adjusting for the other declared attributes."""
    joint = row.get("joint") or {}
    return joint.get("log_odds") is not None and is_sure(row) and not is_sure(joint)


def is_unsplit(pool: Json) -> bool:
    """Return whether an attribute's figures are sums of bias and merit, because each comparison has only one vote."""
    return bool(pool.get("sum")) and not pool["absolute"]


def reliability_sentence(summary: Json) -> str:
    """Describe how reliable annotators are, and how a reliability flag differs from a bias flag."""
    reliability = summary["checks"]["reliability"]
    return _sentence("reliability", reliability=reliability) if reliability else ""


def impact_sentences(summary: Json) -> list[str]:
    """Return sentences that describe which labels and training pairs would change without the annotators' biases."""
    labels, pools, n = audit_labels(summary), summary["pool"], summary["data"]["n_judgments"]
    return [
        _sentence("impact", row=row, label=labels.get(name), pool=pools.get(name), n_judgments=n)
        for row in summary["flips"]
        for name in [row["attribute"]]
    ]


def model_sentence(row: Json, pool: Json) -> str:
    """Describe the bias of a model that cast votes as an annotator."""
    return _sentence("model", row=row, pool=pool)


def person_sentence(row: Json, label: str, name: str | None) -> str:
    """Describe one annotator's votes on one attribute."""
    is_sure = row["post_low"] > 0 or row["post_high"] < 0
    is_known = math.isfinite(row["shrunk"])
    return _sentence("person", row=row, label=label, name=name, is_known=is_known, is_sure=is_sure)


def _response_with_more(config: Json) -> str:
    """Return the words for the response that has more of the attribute."""
    is_length = built_in_of(config).is_length
    return "the longer response" if is_length else "the response with more of the attribute"


def pair_sentences(summary: Json, pairs: Sequence[Json]) -> dict[str, str]:
    """For each attribute, describe one example pair of responses and the votes on the pair."""
    configs = {config["name"]: config for config in summary["settings"]["attributes"]}
    labels, sentences = audit_labels(summary), {}
    for pair in pairs:
        name, way = pair["attribute"], "for" if pair["carries"] else "against"
        side = built_in_of(configs[name]).toward or _response_with_more(configs[name])
        chosen, other, prompt = (f"\u201c{pair[part]}\u201d" for part in ("chosen", "other", "prompt"))
        votes = f"{pair['n_chosen']} of {pair['n_votes']} votes were {way} {side}"
        asked = f"Asked {prompt}, " if pair["prompt"] else ""
        sentences[labels[name]] = f"{asked}{votes}: {chosen} over {other}"
    return sentences


def _write_finding(summary: Json, row: Json, label: str) -> Finding:
    """Write the finding of one attribute."""
    if (row["n_cross"] or 0) < 2:
        ever = {None: "hardly ever", 0: "never", 1: "only once"}[row["n_cross"]]
        text = f"The two responses {ever} differ in {label}, so the votes do not show a bias."
        advice = f"Collect comparisons whose responses differ in {label}, or leave out the attribute."
        return Finding(label, text, (("What to do", advice),))
    pool = summary["pool"].get(row["name"], {})
    certainty = _sentence("certainty", row=row, is_carried=_is_explained_by_others(row))
    sentences = [("What to do", _write_advice(row, pool, label)), ("How sure", certainty)]
    if row["ties"]:
        sentences.append(("Ties", _sentence("ties", row=row["ties"])))
    if not summary["data"]["has_annotators"]:
        unknown = "The table does not name the annotators, so it does not show how annotators differ."
        sentences.append(("Annotators", unknown))
    elif summary["data"]["n_annotators"] == 1:
        alone = (
            "One annotator cast all votes. The votes show the sum of the annotator's own bias and of the quality of "
            "responses with the attribute. Votes of other annotators on the same comparisons would separate bias from "
            "quality, except for the bias that all annotators share."
        )
        sentences.append(("Annotators", alone))
    elif pool:
        sentences += _write_pool_sentences(summary, pool)
    # for an attribute whose label names no side, this is a name for the side that wins more often
    configs = {config["name"]: config for config in summary["settings"]["attributes"]}
    toward = built_in_of(configs[row["name"]]).toward
    thresholds = [
        f"{key}={value:g}" for key, value in configs[row["name"]].items() if type(value) in (int, float)
    ]
    text = _sentence(
        "finding",
        row=row,
        label=(toward or label) + (f" ({', '.join(thresholds)})" if thresholds else ""),
        side="that side" if toward else _response_with_more(configs[row["name"]]),
        which="with a recorded order"
        if row["scope"] == "judgment" and toward
        else "whose responses differ",
        by=", by bias or by merit" * is_unsplit(pool),
        is_sure=is_sure(row),
        is_rounded="is_sure" in row,  # the figures on a shared page are rounded
    )
    return Finding(label, text, sentences)


def _write_pool_sentences(summary: Json, pool: Json) -> list[tuple[str, str]]:
    """Return what the votes show about the annotators' biases and, if known, the shared bias."""
    settings, reason = summary["settings"], shown(pool["recommendation_reason"], _LONGEST_REASON)
    spread = _sentence("spread", pool=pool, rho=settings["rho"], fdr=settings["fdr"], reason=reason)
    sentences = [("Sum", _sentence("sum", found=pool["sum"]))] if is_unsplit(pool) else []
    sentences.append(("Annotators", spread))
    if pool["shared_bias"] is None:
        why = shown(pool["absolute_why"], _LONGEST_REASON)
        sentences.append(("Not known", f"The bias that all annotators share is {why}."))
    else:
        sentences.append(("Shared bias", _sentence("shared_bias", pool=pool)))
    if pool["most_units"]:
        sentences.append(("Unit", _sentence("unit", pool=pool)))
    return sentences


def _write_advice(row: Json, pool: Json, label: str) -> str:
    """Write the advice about an attribute."""
    variant = pool.get("recommendation", "pooled")
    # if tau is not reported, the page's section on annotators gives the reason
    has_reason = pool.get("tau") is not None
    return _sentence(
        "advice",
        action=row.get("action") or action(row, pool),
        variant=variant and shown(variant, 20),
        label=label,
        scope=row["scope"],
        has_flags=bool(pool.get("n_flagged")),
        is_carried=_is_explained_by_others(row),
        needed=count_text(pool["sum"]["needed"]) if is_unsplit(pool) else "",
        reason=shown(pool["recommendation_reason"], _LONGEST_REASON) if has_reason else "",
    )
