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
)

# Spreads beyond this are no spreads of people: exp(5) is odds of 148 to 1.
LARGEST_TAU = 5.0
# A lean below this moves a policy little: 0.3 log-odds is 57 to 43.
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


def has_usable_spread(pool: Json) -> bool:
    """Whether the votes say how far annotators differ: a size that people can have, with an upper end."""
    tau = pool["tau"]
    return tau is not None and tau <= LARGEST_TAU and pool["tau_ci"][1] is not None


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
    large = row["log_odds"] is None or abs(row["log_odds"]) >= WORTH_WATCHING
    return "watch" if carried or large else "nothing"


def _is_carried(row: Json) -> bool:
    """Whether a lean that is sure by itself is not sure beside the other declared attributes."""
    joint = row.get("joint") or {}
    return joint.get("log_odds") is not None and is_sure(row) and not is_sure(joint)


def spread_sentence(pool: Json, rho: float, fdr: float) -> str:
    """How far annotators differ on an attribute, and for how many a deviation stands out."""
    if pool["tau"] is None:
        return _reason(pool) or "How far they differ rests on few people: it stands in audit.json alone."
    tau, (low, _) = f"tau {_spread(pool)}", pool["tau_ci"]
    middle = "their group" if pool["is_divided"] else "the pool"
    given = ", without what goes with their care," * pool["is_beside_care"]
    if not has_usable_spread(pool):
        text = (
            f"How far annotators differ cannot be read from these votes: {tau} is no size that people have. "
            "Take nothing from single estimates."
        )
    else:
        whole = ", all classes together," * (pool["class_test_p"] is not None)
        around = f"around the mean of {middle}{whole} with standard deviation {tau}"
        text = f"Leans of single annotators{given} spread {around}."
        if pool["groups"]:
            groups = pool["groups"]
            told = (f"{count_text(group['n'])} annotators, {_spread(group)}" for group in groups)
            text += f" Tau by group: {'; '.join(told)}."
        if not low:
            save = ", save by the test of classes" * (pool["recommendation"] == "class")
            text += f" A spread of zero is not ruled out{save}."
    where = "a lean" if pool["absolute"] else f"a deviation from the mean of {middle}"
    rate = f"at a false discovery rate of {percent(fdr)}"
    n_flagged = count_text(pool["n_flagged"])
    return f"{text} Flagged for {where} beyond \u00b1{decimal(rho)} {rate}: {n_flagged}."


def _spread(found: Json) -> str:
    return f"{decimal(found['tau'])} (95 % interval {interval_text(*found['tau_ci'])})"


def _reason(pool: Json) -> str:
    return shown(pool["recommendation_reason"], _REASONS)


def care_sentence(summary: Json) -> str:
    """How closely annotators follow quality, and that a flag for little care is another thing than one for a lean."""
    care = summary["checks"]["care"]
    if care is None:
        return ""
    if care["is_unknown"]:
        return f"{care['why'].capitalize()}. A flag for a lean may then be about care."
    text = (
        "Care is how closely somebody follows quality, 1 on average, told by comparisons whose sides do not differ in "
        "any attribute; who answers at random has none. "
    )
    if care["spread"] is None:
        return f"{text}How it spreads stands in audit.json alone: that rests on few people."
    text += f"It spreads with standard deviation {decimal(care['spread'])}"
    if care["p_value"] is not None:
        text += f" (test that all are equally careful: {p_value(care['p_value'])})"
    flagged = f"{part_text(care['n_flagged'], care['n_told'])} of {count_text(care['n_told'])}"
    text += f". Flagged for care below half the mean, more at random than others: {flagged}"
    if care["is_hardly_known"]:
        return f"{text}. {care['why'].capitalize()}. A flag for a lean may then be about care."
    beyond = "; whoever is flagged for a lean leans beyond what care explains" * care["is_used"]
    return f"{text}{beyond}."


def _verdict(summary: Json, row: Json, label: str) -> Verdict:
    if (row["n_cross"] or 0) < 2:
        ever = {None: "hardly ever", 0: "never", 1: "only once"}[row["n_cross"]]
        finding = f"The two responses {ever} differ in {label}, so the votes say nothing about it."
        advice = f"Collect comparisons whose sides differ in {label}, or leave it out."
        return Verdict(label, finding, (("What to do", advice),))
    pool, settings = summary["pool"].get(row["name"], {}), summary["settings"]
    sentences = [("What to do", _advice(row, pool, label)), ("How sure", _certainty(row))]
    if not summary["data"]["has_annotators"]:
        unknown = "The table does not say who voted, so how people differ is not known."
        sentences.append(("Annotators", unknown))
    elif pool:
        told = spread_sentence(pool, settings["rho"], settings["fdr"])
        sentences += [("Annotators", told), _level(pool)]
        if pool["most_units"]:
            unit = (
                f"Leans of annotators, tau and rho count per {pool['unit']:.3g}, the median difference of the "
                f"sides, and differences beyond {decimal(pool['most_units'], 0)} times that as so many times it; the "
                "pool's log-odds count which side has more, however much."
            )
            sentences.append(("Unit", unit))
    configs = {config["name"]: config for config in settings["attributes"]}
    return Verdict(label, _finding(row, label, configs[row["name"]]), sentences)


def _finding(row: Json, label: str, config: Json) -> str:
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
    return f"The pool leans {way} {label}: {wins}."


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
    naive = interval_text(row["naive_ci_low"], row["naive_ci_high"])
    if row["interval"] == "naive only":
        if row["n_prompts"] == 1:
            return f"All judgments stand on one prompt: {naive} covers other votes on it, not other prompts."
        few = "The prompts are too few, or too alike, to tell apart"
        return f"{few}: {naive} takes every vote as independent of the others."
    few = ", in the form for few prompts" * (row["interval"] == "small-cluster")
    ends, of = interval_text(row["ci_low"], row["ci_high"]), count_text(row["n_prompts"])
    text = f"Log-odds {decimal(row['log_odds'])}, 95 % interval {ends}, clustered by {of} prompts{few}"
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


def _advice(row: Json, pool: Json, label: str) -> str:
    chosen = row.get("action") or action(row, pool)
    variant = pool.get("recommendation", "pooled")
    # whether a lean is unwanted no vote says
    unwanted = f"If {label} should not count as quality, declare {label}"
    if chosen == "declare" and variant is None:
        return f"{unwanted}; with which bias term rests on few people: whoever made this page has it in audit.json."
    told = {
        "declare": f"{unwanted} and train with bias: {shown(variant or '', 20)}.",
        "watch": f"Watch {label}: the lean is large but not sure. More prompts would tell.",
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
    # where there is no tau, the reason stands with the annotators
    return f"{told} {_reason(pool)}".strip() if pool.get("tau") is not None else told
