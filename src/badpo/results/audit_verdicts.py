"""What an audit found, in sentences: which way the pool leans, how sure that is, what is not known, what to do."""

from collections.abc import Sequence

from badpo.data.files import Json
from badpo.data.privacy import FEWEST_ANNOTATORS
from badpo.results.words import (
    DASH,
    Verdict,
    attribute_label,
    built_in_of,
    count_text,
    decimal,
    interval_text,
    lean_text,
    p_value,
    part_text,
    percent,
    shown,
    with_interval,
)

# A bias below this value changes a policy little: 0.3 log-odds is 57 to 43.
WORTH_WATCHING = 0.3
_REASONS = 400
_EVEN = "about one to one"


def audit_verdicts(summary: Json) -> list[Verdict]:
    """One verdict for each attribute of an audit, those that are withheld from a page last."""
    labels = audit_labels(summary)
    found = [_verdict(summary, row, labels[row["name"]]) for row in summary["attributes"]]
    for name in summary.get("withheld", ()):
        label = labels[name]
        few = f"Fewer than {FEWEST_ANNOTATORS} people"
        told = f"{few} judged responses that differ in {label}, or chose one of the sides"
        told += ": what they lean toward stands in audit.json alone."
        found.append(Verdict(label, told, ()))
    return found


def audit_labels(summary: Json) -> dict[str, str]:
    """Every attribute of an audit with its name for people."""
    configs = {config["name"]: config for config in summary["settings"]["attributes"]}
    return {name: attribute_label(name, config) for name, config in configs.items()}


def is_sure(row: Json) -> bool:
    """Whether an interval keeps zero outside."""
    if "is_sure" in row:  # said of a row whose interval is rounded
        return row["is_sure"]
    return (row.get("ci_low") or 0) > 0 or (row.get("ci_high") or 0) < 0


def action(row: Json, pool: Json) -> str:
    """What to do about an attribute: "declare", "watch" or "nothing".

    Declare it when annotators differ, or the pool surely leans beside the other attributes too; watch it when the lean
    is large and not sure, or goes with another attribute.
    """
    if (row["n_cross"] or 0) < 2:
        return "nothing"
    carried = _is_carried(row)
    if is_sure(row) and not carried or pool.get("recommendation") in ("shared_mean", "class"):
        return "declare"
    if row["interval"] == "too wide":
        return "nothing"
    large = row["log_odds"] is None or abs(row["log_odds"]) >= WORTH_WATCHING
    return "watch" if carried or large else "nothing"


def _is_carried(row: Json) -> bool:
    """Whether a lean that is sure by itself is not sure beside the other declared attributes."""
    joint = row.get("joint") or {}
    return joint.get("log_odds") is not None and is_sure(row) and not is_sure(joint)


def spread_sentence(pool: Json, rho: float, fdr: float) -> str:
    """How far annotators differ on an attribute, and for how many a deviation stands out."""
    if reason := pool["refused"].get("tau"):
        found = "" if pool["sum"] else _reason(pool)
        return f"{found} How far annotators differ is not reported: {shown(reason, _REASONS)}.".strip()
    if pool["tau"] is None:
        return _reason(pool) or "How far they differ rests on few people: it stands in audit.json alone."
    tau, (low, _) = f"tau {_spread(pool)}", pool["tau_ci"]
    middle = "their group" if pool["is_divided"] else "the pool"
    given = ", without what goes with their reliability," * pool["is_beside_care"]
    whole = ", all classes together," * (pool["class_test_p"] is not None)
    around = f"around the mean of {middle}{whole} with standard deviation {tau}"
    text = f"Leans of single annotators{given} spread {around}."
    if pool["groups"]:
        groups = pool["groups"]
        told = (f"{count_text(group['n'])} annotators, {_spread(group)}" for group in groups)
        text += f" Tau by group: {'; '.join(told)}."
    if not low:
        # a test may show that annotators differ although the interval of tau contains zero
        of_test = {"class": "the test of classes", "shared_mean": "the test of one shared lean"}
        test = of_test.get(pool["recommendation"])
        text += " By this interval alone a spread of zero is not ruled out"
        text += f"; {test} does rule it out." if test else "."
    where = "a lean" if pool["absolute"] else f"a deviation from the mean of {middle}"
    rate = f"at a false discovery rate of {percent(fdr)}"
    n_flagged = count_text(pool["n_flagged"])
    text = f"{text} Flagged for {where} beyond \u00b1{decimal(rho)} {rate}: {n_flagged}."
    return f"{text} {pool['caveat']}".rstrip()


def _spread(found: Json) -> str:
    return f"{decimal(found['tau'])} (95 % interval {interval_text(*found['tau_ci'])})"


def _reason(pool: Json) -> str:
    return shown(pool["recommendation_reason"], _REASONS)


def care_sentence(summary: Json) -> str:
    """How reliable annotators are, and how a flag for low reliability differs from a flag for a bias."""
    care = summary["checks"]["care"]
    if care is None:
        return ""
    if care["is_unknown"]:
        return f"{care['why'].capitalize()}. A flag for a bias may then be about reliability."
    how = "on comparisons whose sides do not differ in any attribute"
    if care["is_by_models"]:
        how = "by how closely an annotator follows the strengths of the models that wrote the responses"
    text = (
        f"Reliability is how closely an annotator follows quality, 1 on average. It is estimated {how}; a random "
        "responder has reliability 0. "
    )
    if care["spread"] is None:
        return f"{text}Its standard deviation is in audit.json alone, because it is about few people."
    text += f"Its standard deviation over annotators is {decimal(care['spread'])}"
    if care["p_value"] is not None:
        text += f" (test of equal reliability: {p_value(care['p_value'])})"
    flagged = f"{part_text(care['n_flagged'], care['n_told'])} of {count_text(care['n_told'])}"
    if care["has_camps"]:
        text += (
            ". Nobody is flagged for low reliability, because some annotators share another taste (W419)"
        )
    else:
        text += (
            f". Flagged for low reliability, less than half the mean, which may also be another taste: {flagged}. "
            "Comparisons that several of them judge would tell: random responders agree by chance"
        )
    if care["is_hardly_known"]:
        return f"{text}. {care['why'].capitalize()}. A flag for a bias may then be about reliability."
    beyond = "; a flag for a bias is about more than reliability explains" * care["is_used"]
    return f"{text}{beyond}."


def _verdict(summary: Json, row: Json, label: str) -> Verdict:
    if (row["n_cross"] or 0) < 2:
        ever = {None: "hardly ever", 0: "never", 1: "only once"}[row["n_cross"]]
        finding = f"The two responses {ever} differ in {label}, so the votes say nothing about it."
        advice = f"Collect comparisons whose sides differ in {label}, or leave it out."
        return Verdict(label, finding, (("What to do", advice),))
    pool, settings = summary["pool"].get(row["name"], {}), summary["settings"]
    sentences = [("What to do", _advice(row, pool, label)), ("How sure", _certainty(row))]
    if row["ties"]:
        sentences.append(("Ties", _ties(row["ties"])))
    if not summary["data"]["has_annotators"]:
        unknown = "The table does not say who voted, so how people differ is not known."
        sentences.append(("Annotators", unknown))
    elif summary["data"]["n_annotators"] == 1:
        alone = (
            "One annotator cast all votes. They tell how often this annotator chooses that side: the sum of the "
            "annotator's own bias and of what such responses are worth. Votes of others on the same comparisons would "
            "tell how this annotator differs from them."
        )
        sentences.append(("Annotators", alone))
    elif pool:
        told = spread_sentence(pool, settings["rho"], settings["fdr"])
        sentences += [*_sum(pool), ("Annotators", told), _level(pool)]
        if pool["most_units"]:
            unit = (
                f"Leans of annotators, tau and rho count per {pool['unit']:.3g}, the median difference of the "
                f"sides, and differences beyond {decimal(pool['most_units'], 0)} times that as so many times it; the "
                "pool's log-odds count which side has more, however much."
            )
            sentences.append(("Unit", unit))
    configs = {config["name"]: config for config in settings["attributes"]}
    by = ", by bias or by merit" * is_unsplit(pool)
    return Verdict(label, _finding(row, label, configs[row["name"]], by), sentences)


def _finding(row: Json, label: str, config: Json, by: str) -> str:
    """Which side won how often; ``config`` is the attribute's, whose numbers say from where on sides differ."""
    # what the log-odds count as winning, where the attribute's label does not say so
    toward = built_in_of(config).toward
    label, side = toward or label, "that side" if toward else "the side that has more of it"
    if numbers := [f"{key}={value:g}" for key, value in config.items() if type(value) in (int, float)]:
        label += f" ({', '.join(numbers)})"
    which = "whose sides differ"
    if row["scope"] == "judgment" and toward:
        which = "that say which was first"
    n, share = count_text(row["n_cross"]), percent(row["cross_share"])
    among = f"of {n} judgments {which} ({share} of all)"
    if row["interval"] == "too wide":
        return f"On {label} the votes say too little: {side} won {percent(row['carrier_wins'])} {among}."
    if row["log_odds"] is None:
        won = "all" if row["carrier_wins"] else "none"
        return f"On {label} every vote went one way: {side} won {won} {among}."
    about = "about " * ("is_sure" in row)  # of figures that are rounded
    odds = _odds(row["odds"])
    odds = odds if odds == _EVEN else about + odds
    wins = f"{side} won {about}{percent(row['carrier_wins'])} {among}, {odds}"
    if not is_sure(row):
        return f"No lean of the pool on {label} is sure: {wins}."
    way = "toward" if row["log_odds"] > 0 else "away from"
    return f"The pool leans {way} {label}{by}: {wins}."


def pair_sentences(summary: Json, pairs: Sequence[Json], exact: bool = False) -> dict[str, str]:
    """By label two answers that differ in an attribute, and which of them the votes chose; ``exact``: how many did."""
    configs, told = {one["name"]: one for one in summary["settings"]["attributes"]}, {}
    labels = audit_labels(summary)
    for pair in pairs:
        name, way = pair["attribute"], "for" if pair["carries"] else "against"
        side = built_in_of(configs[name]).toward or "the side that has more of it"
        most = f"{pair['n_chosen']} of {pair['n_votes']} votes" if exact else "most votes"
        chosen, other, prompt = (f"\u201c{pair[part]}\u201d" for part in ("chosen", "other", "prompt"))
        told[labels[name]] = f"Asked {prompt}, {most} were {way} {side}: {chosen} over {other}"
    return told


def _odds(odds: float) -> str:
    if abs(odds - 1) < 0.05:
        return _EVEN
    if odds >= 1:
        return f"{decimal(odds, 1)} to 1"
    return f"1 to {decimal(1 / odds, 1)}" if odds else "0 to 1"


def _certainty(row: Json) -> str:
    if row["interval"] == "too wide":
        return "The 95 % confidence interval of the log-odds is wider than \u00b13, so no estimate is reported."
    naive = interval_text(row["naive_ci_low"], row["naive_ci_high"])
    if row["interval"] == "naive only":
        if row["n_prompts"] == 1:
            return f"All judgments stand on one prompt: {naive} covers other votes on it, not other prompts."
        few = "The prompts are too few, or too alike, to tell apart"
        return f"{few}: {naive} takes every vote as independent of the others."
    few = ", in the form for few prompts" * (row["interval"] == "small-cluster")
    ends, of = interval_text(row["ci_low"], row["ci_high"]), count_text(row["n_prompts"])
    text = f"Log-odds {decimal(row['log_odds'])}, 95 % interval {ends}, clustered by {of} prompts{few}"
    if row["population_ci"][0] is not None:
        beyond = interval_text(*row["population_ci"])
        text += f"; that is for these annotators, and for other annotators like them the interval is {beyond}"
    if naive != DASH:
        text += f"; counted as if every vote were independent it would be {naive}"
    text += "."
    if _is_carried(row):
        text += f" Beside the other declared attributes it is no longer sure: {lean_text(row['joint'])}."
    if row["scope"] == "judgment" and row["quality_adjusted"]:
        text += (
            " That counts all votes, also those which the responses decide, and these pull it toward zero. Among votes "
            f"on the same two texts either way round it is {lean_text(row['quality_adjusted'])}."
        )
    if row["collinear_with"]:
        names = ", ".join(shown(name, 24) for name in row["collinear_with"])
        text += f" It cannot be told apart from {names}."
    return text


def is_unsplit(pool: Json) -> bool:
    """Whether the figures of an attribute are sums of bias and merit, because comparisons have one vote."""
    return bool(pool.get("sum")) and not pool["absolute"]


def _sum(pool: Json) -> list[tuple[str, str]]:
    """The pooled log-odds of a table whose comparisons have one vote; an empty list for other tables."""
    if not is_unsplit(pool):
        return []
    found = pool["sum"]
    beside = " and for the strengths of the models that wrote the responses" * found["beside_models"]
    value = "not reported, because the 95 % confidence interval is wider than \u00b13 or the attributes move together"
    if found["log_odds"] is not None:
        value = with_interval(found["log_odds"], found["ci_low"], found["ci_high"])
        value += f", n = {count_text(found['n'])}"
    text = (
        f"Adjusted for the other attributes{beside}, the log-odds of choosing the side with more of it are {value}. "
        "That is the sum of the annotators' bias and of their reliability times the merit that goes with the attribute."
    )
    return [("Sum", text)]


def _ties(row: Json) -> str:
    """How often a judgment is a tie, and the log-odds with ties counted in other ways."""
    shares = (percent(row[f"{kind}_share"]) for kind in ("differing", "alike"))
    without, half = (decimal(row[f"log_odds{kind}"]) for kind in ("", "_half"))
    ends = interval_text(row["log_odds_low"], row["log_odds_high"])
    text = "Of the judgments on sides that differ {} are ties, of the others {}.".format(*shares)
    text += f" Log-odds are {without} without ties, {half} with each tie as half a vote for either side"
    selective = " Ties are selective (W442)." * row["is_selective"]
    return f"{text}, and {ends} if all ties were votes for one side or the other.{selective}"


def _level(pool: Json) -> tuple[str, str]:
    why = shown(pool["absolute_why"], _REASONS)
    if pool["level"] is None:
        return "Not known", f"The level that all annotators share is {why}."
    of, ends = count_text(pool["n_level"]), interval_text(*pool["level_ci"])
    text = (
        f"The mean lean of {of} annotators, each counted alike, is {decimal(pool['level'])} "
        f"({ends}, clustered by comparison), {why}."
    )
    if beyond := pool["level_ci_beyond"]:
        text += f" For annotators like them in general the interval is {interval_text(*beyond)}."
    return "Level", text


def _for_the_lead(row: Json, label: str) -> str:
    """Advice for the lead of an annotation team, before more votes are collected."""
    if row["scope"] == "judgment":
        return "Draw the order of the two responses at random for each vote, or show each pair in both orders."
    return (
        f"Write into the guideline whether {label} counts as quality, and have comparisons that differ in it judged "
        "again (badpo audit --people lists those of whom is flagged)."
    )


def _advice(row: Json, pool: Json, label: str) -> str:
    chosen = row.get("action") or action(row, pool)
    variant = pool.get("recommendation", "pooled")
    # votes do not show whether a bias is unwanted
    unwanted = f"{_for_the_lead(row, label)} If {label} should not count as quality, declare {label}"
    if chosen == "declare" and variant is None:
        return f"{unwanted}; with which bias term rests on few people: whoever made this page has it in audit.json."
    told = {
        "declare": f"{unwanted} and train with bias: {shown(variant or '', 20)}.",
        "watch": f"Watch {label}: the lean is large but not sure. More prompts would tell. {_for_the_lead(row, label)}",
        "nothing": f"Nothing calls for declaring {label}.",
    }[chosen]
    carried = _is_carried(row)
    if carried and chosen == "declare":
        told += (
            " The pool's own lean, which is not sure beside the other attributes, would not call for it."
        )
    if carried and chosen == "watch":
        told = (
            f"Watch {label}: beside the other declared attributes its lean is not sure. Declare it with them where the "
            "bias must not move from one to the other, and measure both after training."
        )
    if is_unsplit(pool):
        told += (
            " One vote per comparison does not tell bias from merit: let a second annotator judge at least "
            f"{count_text(pool['sum']['needed'])} of the comparisons whose sides differ."
        )
    # without tau, the section on annotators gives the reason
    return f"{told} {_reason(pool)}".strip() if pool.get("tau") is not None else told
