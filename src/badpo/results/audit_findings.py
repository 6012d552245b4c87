"""Write the findings of an audit as sentences: pooled bias, certainty, unknowns and advice.

The template `audit_sentences.jinja` contains the sentences. This module decides which sentences apply to the audit.
"""

import math
from collections.abc import Sequence
from functools import partial

import pandas as pd

from badpo.data.attributes import Config
from badpo.data.privacy import FEWEST_ANNOTATORS
from badpo.results import audit_json
from badpo.results.formatting import Finding, attribute_label, built_in_of, count_text, sentence, shown

# Threshold for advice: a bias of less than 0.3 log-odds (odds of 57 to 43) has little effect on a policy.
RELEVANT_BIAS = 0.3
# Maximum length of a quoted reason, in characters.
_LONGEST_REASON = 400
_sentence = partial(sentence, "audit_sentences.jinja")


def attribute_findings(summary: audit_json.AuditedBiases) -> list[Finding]:
    """Return one finding for each attribute of an audit; attributes that the page omits come last."""
    labels = audit_labels(summary)
    findings = [_write_finding(summary, row, labels[row["name"]]) for row in summary["attributes"]]
    for name in summary.get("withheld", ()):
        text = _sentence("withheld", label=labels[name], fewest=FEWEST_ANNOTATORS)
        findings.append(Finding(labels[name], text, ()))
    return findings


def _attribute_configs(summary: audit_json.AuditedBiases) -> dict[str, Config]:
    """Return the configuration of every audited attribute, by name."""
    return {config["name"]: config for config in summary["settings"]["attributes"]}


def audit_labels(summary: audit_json.AuditedBiases) -> dict[str, str]:
    """Return the display name of every audited attribute, by name."""
    return {name: attribute_label(name, config) for name, config in _attribute_configs(summary).items()}


def is_sure(row: audit_json.LogOddsRow) -> bool:
    """Return whether the 95 % confidence interval of an attribute's bias excludes zero."""
    return (row["ci_low"] or 0) > 0 or (row["ci_high"] or 0) < 0


def decide(row: audit_json.AttributeRow, pool: audit_json.PoolRow | None) -> audit_json.Decision:
    """Decide whether the bias toward an attribute is significant, and what to advise.

    The other declared attributes explain a significant bias if the bias is no longer significant after adjusting for
    them. The advice is "declare" if annotators differ, or if the pooled bias is significant and not explained. The
    advice is "watch" if the bias is large but not significant, or if the bias is explained.
    """
    is_significant, is_large = (
        is_sure(row),
        row["log_odds"] is None or abs(row["log_odds"]) >= RELEVANT_BIAS,
    )
    is_explained = is_significant and row["joint"]["log_odds"] is not None and not is_sure(row["joint"])
    decision: audit_json.Decision = {
        "is_sure": is_significant,
        "is_explained": is_explained,
        "advice": "nothing",
    }
    differ = pool is not None and pool["recommendation"] in ("shared_mean", "class")
    if (row["n_cross"] or 0) < 2:
        return decision
    if is_significant and not is_explained or differ:
        decision["advice"] = "declare"
    elif row["interval"] != "too wide" and (is_explained or is_large):
        decision["advice"] = "watch"
    return decision


def is_unsplit(pool: audit_json.PoolRow | None) -> bool:
    """Return whether each comparison has only one vote, so that the attribute's figures are sums of bias and merit."""
    return pool is not None and pool["sum"] is not None and not pool["absolute"]


def reliability_sentence(summary: audit_json.AuditSummary | audit_json.AuditPage) -> str:
    """Describe how reliable the annotators are, and what a flag for low reliability means."""
    reliability = summary["checks"]["reliability"]
    return _sentence("reliability", reliability=reliability) if reliability else ""


def impact_sentences(summary: audit_json.AuditSummary | audit_json.AuditPage) -> list[str]:
    """Return sentences that say how many labels and training pairs would change without the annotators' biases."""
    labels, pools, n = audit_labels(summary), summary["pool"], summary["data"]["n_judgments"]
    sentences = []
    for row in summary["flips"]:
        label, pool = (each.get(row["attribute"] or "") for each in (labels, pools))
        sentences.append(_sentence("impact", row=row, label=label, pool=pool, n_judgments=n))
    return sentences


def model_sentence(row: audit_json.ModelRow, pool: audit_json.PoolRow) -> str:
    """Describe the bias of a model that cast votes as an annotator."""
    return _sentence("model", row=row, pool=pool)


def person_sentence(row: pd.Series, label: str, name: str | None) -> str:
    """Describe one annotator's votes on one attribute."""
    is_sure = row["post_low"] > 0 or row["post_high"] < 0
    is_known = math.isfinite(row["shrunk"])
    return _sentence("person", row=row, label=label, name=name, is_known=is_known, is_sure=is_sure)


def _response_with_more(config: Config) -> str:
    """Return a noun phrase for the response that has more of the attribute."""
    is_length = built_in_of(config).is_length
    return "the longer response" if is_length else "the response with more of the attribute"


def pair_sentences(
    summary: audit_json.AuditedBiases, pairs: Sequence[audit_json.ExamplePair]
) -> dict[str, str]:
    """For each attribute, describe one example pair of responses and the votes on the pair."""
    configs, labels, sentences = _attribute_configs(summary), audit_labels(summary), {}
    for pair in pairs:
        name, way = pair["attribute"], "for" if pair["carries"] else "against"
        side = built_in_of(configs[name]).toward or _response_with_more(configs[name])
        asked = f"Asked \u201c{pair['prompt']}\u201d, " if pair["prompt"] else ""
        votes = f"{pair['n_chosen']} of {pair['n_votes']} votes were {way} {side}"
        answers = f"\u201c{pair['chosen']}\u201d over \u201c{pair['other']}\u201d"
        sentences[labels[name]] = f"{asked}{votes}: {answers}"
    return sentences


def _write_finding(
    summary: audit_json.AuditedBiases, row: audit_json.AttributeRow, label: str
) -> Finding:
    """Write the finding of one attribute."""
    if (row["n_cross"] or 0) < 2:
        ever = {None: "hardly ever", 0: "never", 1: "only once"}[row["n_cross"]]
        text = f"The two responses {ever} differ in {label}, so the votes do not show a bias."
        advice = f"Collect comparisons whose responses differ in {label}, or leave out the attribute."
        return Finding(label, text, (("What to do", advice),))
    pool, decisions = summary["pool"].get(row["name"]), summary.get("decisions")
    decision = decisions[row["name"]] if decisions else decide(row, pool)
    certainty = _sentence("certainty", row=row, is_carried=decision["is_explained"])
    sentences = [("What to do", _write_advice(row, pool, decision, label)), ("How sure", certainty)]
    if row["ties"]:
        sentences.append(("Ties", _sentence("ties", row=row["ties"])))
    if not summary["data"]["has_annotators"]:
        unknown = "The table does not name the annotators, so it does not show how annotators differ."
        sentences.append(("Annotators", unknown))
    elif summary["data"]["n_annotators"] == 1:
        sentences.append(("Annotators", _sentence("one_annotator")))
    elif pool:
        sentences += _write_pool_sentences(summary["settings"], pool)
    config = _attribute_configs(summary)[row["name"]]
    # if the label of an attribute names no side, `toward` is the name of one side
    toward = built_in_of(config).toward
    thresholds = [f"{key}={value:g}" for key, value in config.items() if type(value) in (int, float)]
    text = _sentence(
        "finding",
        row=row,
        label=(toward or label) + (f" ({', '.join(thresholds)})" if thresholds else ""),
        side="that side" if toward else _response_with_more(config),
        which="with a recorded order"
        if row["scope"] == "judgment" and toward
        else "whose responses differ",
        by=", by bias or by merit" * is_unsplit(pool),
        is_sure=decision["is_sure"],
        is_rounded=decisions is not None,  # the figures on a shared page are rounded
    )
    return Finding(label, text, sentences)


def _write_pool_sentences(
    settings: audit_json.Settings, pool: audit_json.PoolRow
) -> list[tuple[str, str]]:
    """Describe what the votes show about the annotators' biases and about the bias that all annotators share."""
    reason = shown(pool["recommendation_reason"], _LONGEST_REASON)
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


def _write_advice(
    row: audit_json.AttributeRow,
    pool: audit_json.PoolRow | None,
    decision: audit_json.Decision,
    label: str,
) -> str:
    """Write the advice about an attribute."""
    variant = pool["recommendation"] if pool else "pooled"
    # if tau is not reported, the section on annotators gives the reason
    has_reason = pool is not None and pool["tau"] is not None
    return _sentence(
        "advice",
        action=decision["advice"],
        variant=variant and shown(variant, 20),
        label=label,
        scope=row["scope"],
        has_flags=bool(pool and pool["n_flagged"]),
        is_carried=decision["is_explained"],
        needed=count_text(pool["sum"]["needed"])
        if pool and pool["sum"] and not pool["absolute"]
        else "",
        reason=shown(pool["recommendation_reason"], _LONGEST_REASON) if pool and has_reason else "",
    )
