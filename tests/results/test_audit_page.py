"""The audit's page stands alone and shows hostile texts inert, small classes not at all, and stays small."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from badpo.attributes import Attribute, Length, Position, Regex
from badpo.auditing.audit import audit
from badpo.auditing.result import AuditResult
from badpo.results.audit_page import (
    MOST_ROWS,
    audit_html,
    audit_table,
    draw_annotator_figure,
    draw_class_figure,
    people_html,
    shareable,
)
from tests.auditing.planted import votes
from tests.browser import Browser, browser_program
from tests.results.pages import HOSTILE, Page, assert_inert, assert_stands_alone


@pytest.fixture(scope="module")
def result() -> AuditResult:
    return audit(votes(300, 12)[0], [Length()], source="votes.csv")


@pytest.fixture
def summary(result) -> dict:
    """A summary to change."""
    return copy.deepcopy(result.summary)


def page_text(summary: dict) -> str:
    return Page(audit_html(summary)).text


def test_it_stands_alone_and_says_what_it_is_and_what_it_cannot_say(result):
    html = audit_html(result.summary)
    assert_stands_alone(html)
    text = Page(html).text
    assert "You may share this page." in text
    assert "not known: the votes would be the same if all annotators had a larger bias" in text
    for word in ("bad annotator", "biased annotator", "unbiased model", "all votes were independent"):
        assert word not in text.lower()
    terminal = " ".join(audit_table(result.summary).split())
    assert terminal.startswith("votes.csv: 1,200 judgments, 75 prompts, 12 annotators attribute differs")
    assert "If all votes were independent, the interval would be 0." in terminal
    assert "tau: between-annotator standard deviation; estimated: " in terminal


@pytest.mark.parametrize("text", HOSTILE, ids=["markup", "long"])
def test_hostile_text_anywhere_in_the_summary_does_nothing(result, summary, text):
    """A folder may come from elsewhere: every text of its files is taken for hostile, names of attributes too."""
    names = [f"{text}{i}" for i in range(len(result.annotators))]
    annotators = result.annotators.assign(attribute=text, annotator=names)
    for part in (summary["pool"], *summary["checks"]["components"].values()):
        part[text] = part.pop("length")
    summary = _replaced(summary, text)
    for hostile in (audit_html(summary), people_html(summary, annotators)):
        assert_inert(hostile)
        assert {tag for tag, _ in Page(hostile).tags} >= {"table", "svg", "figure"}


KEPT = {"advice", "recommendation", "interval", "severity", "type", "schema", "scope"}


def _replaced(value: Any, text: str, key: str = "") -> Any:
    """The summary with every text in it replaced, save those that say which of a few cases it is."""
    if isinstance(value, dict):
        return {name: _replaced(entry, text, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [_replaced(entry, text, key) for entry in value]
    return text if isinstance(value, str) and key not in KEPT else value


SCROLLED = "[...document.querySelectorAll('.scroll')].filter(e => e.checkVisibility())"
WIDER = f"{SCROLLED}.filter(e => e.scrollWidth > e.clientWidth + 1)"
SMALLEST = """Math.min(...[...document.querySelectorAll('svg text')].filter(e => e.checkVisibility()).map(e =>
  parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getScreenCTM().a))"""


@pytest.mark.slow
def test_the_page_is_short_until_it_is_unfolded_and_fits_every_window(tmp_path):
    """The chart and what to do come first; a link opens what it names; paper has everything."""
    table = with_models(20, 4)
    table["shown_first"] = np.resize(["a", "b", "b"], len(table))
    two = [Length(name="a name of 24 letters, so"), Position()]
    page = audit(table, two).write(tmp_path)
    with Browser(browser_program()) as browser:
        for width in (375, 768, 1280):
            browser.open(page, width)
            assert browser.value("document.documentElement.scrollHeight") < 4000
            assert browser.value("document.querySelector('svg').getBoundingClientRect().bottom") < 700
            place = "[...document.querySelectorAll('strong')].find(e => e.innerText == 'What to do.')"
            assert browser.value(f"{place}.getBoundingClientRect().top") < 2 * 800
            browser.value("document.querySelectorAll('details').forEach(e => e.open = true)")
            assert browser.value("document.documentElement.scrollWidth") == width
            assert (browser.value(f"{WIDER}.length") > 0) == (width < 1280)
            assert browser.value(SMALLEST) >= 12
        browser.open(page, 1280)
        browser.value("document.querySelector('nav a[href=\"#health\"]').click()")
        assert browser.value("document.querySelector('#health').checkVisibility()")
        browser.call("Emulation.setEmulatedMedia", media="print")
        assert browser.value("[...document.querySelectorAll('.fold > div')].every(e => e.clientHeight)")


def test_a_class_of_few_people_has_no_figures():
    table = votes(500, 20)[0]
    table.loc[table["annotator"].isin(["w1", "w3"]), "annotator_class"] = "reviewer"
    found = audit(table, [Length()])
    n = {row["class"]: row["n"] for row in found.summary["pool"]["length"]["classes"]}
    assert n == {"reviewer": 2, "staff": 8, "crowd": 10}
    rows = draw_class_figure(shareable(found.summary)).table.rows
    assert [row[0] for row in rows] == ["length, crowd (n = 5 to 14)"]
    assert "reviewer" not in audit_html(found.summary)


def test_what_fewer_than_five_people_did_is_withheld_in_a_part_and_in_a_pool():
    """Four people alone saw sides that differ in length; the pool is twelve."""
    table = votes(300, 12)[0]
    alike = ~table["annotator"].isin(["w0", "w1", "w2", "w3"])
    for name, ending in (("response_a", " so"), ("response_b", " no"), ("comparison_id", "x")):
        table.loc[alike, name] = table.loc[alike, "comparison_id"] + ending
    found = audit(table, [Length()])
    told, page = shareable(found.summary), page_text(found.summary)
    assert found.attributes["n_annotators"].tolist() == [4]
    assert (told["attributes"], told["withheld"]) == ([], ["length"])
    assert "fewer than 5 people judged responses that differ in length" in page
    table = votes(300, 12)[0]
    words = [table[name].str.split().str.len() for name in ("response_a", "response_b")]
    longer = np.where(words[0] > words[1], "a", "b")
    summary = audit(table.assign(winner=table["winner"].where(~alike, longer)), [Length()]).summary
    assert shareable(summary)["withheld"] == ["length"]
    assert "chose one of the sides" in page_text(summary)
    summary = audit(votes(200, 4)[0], [Length()]).summary
    told, text = shareable(summary), page_text(summary)
    pool, data = told["pool"]["length"], told["data"]
    assert not (told["warnings"] or told["scan"] or told["attributes"] or pool["classes"])
    withheld = {pool["tau"], pool["equal_biases_p"], pool["recommendation"], data["unanimous_share"]}
    assert withheld | set(data["agreement"].values()) == {None}
    assert "\u2013 of the comparisons" not in text and "quality None" not in text


def cast(n_votes: dict[str, int], n_words: int, of_class: str = "crowd") -> list[dict]:
    """Votes at random on a response of some words and one of 20, the same pairs for everybody."""
    random = np.random.default_rng(n_words)
    texts = {"response_a": "so " * n_words, "response_b": "so " * 20, "annotator_class": of_class}
    return [
        {"prompt": f"{n_words} {c}", "annotator": who, "winner": random.choice(["a", "b"]), **texts}
        for who, n in n_votes.items()
        for c in range(n)
    ]


@pytest.mark.parametrize(("n_people", "is_shown"), [(1, False), (4, False), (5, True)])
def test_two_figures_that_differ_by_votes_of_few_people_are_not_both_shown(n_people, is_shown):
    """These people alone judged pairs of ratio 1.3, so that their share is the difference of two rows."""
    crowd = cast({f"w{k}": 40 for k in range(20)}, n_words=40)
    few = cast({f"x{k}": 20 for k in range(n_people)}, n_words=26)
    summary = audit([*crowd, *few], [Length(ratio=1.25, name="any"), Length(name="far")]).summary
    found = shareable(summary)
    assert (found["withheld"] == []) == is_shown
    assert ("is only in audit.json, because its estimate" in page_text(summary)) != is_shown


@pytest.mark.parametrize(("n_people", "is_shown"), [(4, False), (5, True)])
@pytest.mark.parametrize(
    "patterns", [("x", "y", "x|y|few"), ("x", "y", "u", "x|y|u|few"), ("x|y", "x|q", "x|few")]
)
def test_a_sum_of_up_to_four_figures_reveals_no_votes_of_few_people(patterns, n_people, is_shown):
    """Added and subtracted, and the last once or twice, the figures leave only the comparisons marked "few"."""
    endings = {"few": "", "x": "", "y": "q", "u": ""}
    table = [
        {"prompt": f"{mark} {c}", "annotator": f"{mark == 'few'}{k}", "winner": "ab"[(c + k) % 2]}
        | {"response_a": f"mark {mark}", "response_b": f"mark {ending}"}
        for mark, ending in endings.items()
        for k in range(n_people if mark == "few" else 20)
        for c in range(30)
    ]
    found = shareable(audit(table, [Regex(pattern, pattern) for pattern in patterns]).summary)
    assert found["withheld"] == ([] if is_shown else [patterns[-1]])


def test_figures_that_few_people_dominate_are_withheld_and_ordinary_pools_keep_theirs():
    usual = {f"w{k}": 200 // (k + 1) + 4 for k in range(30)}  # as crowds are: few cast much, many little
    pools = {
        "one": {"boss": 400} | {f"w{k}": 4 for k in range(12)},
        "four": {f"boss{k}": 90 for k in range(4)} | {f"w{k}": 4 for k in range(8)},
        "usual": usual,
    }
    for name, n_votes in pools.items():
        summary = audit(cast(n_votes, n_words=40), [Length()]).summary
        told, is_usual = shareable(summary), name == "usual"
        (exact,) = summary["attributes"]
        assert exact["log_odds"] is not None and exact["is_dominated"] != is_usual
        assert (told["withheld"] == []) == is_usual
        figures = told["pool"]["length"]["tau"], told["data"]["agreement"]["percent"]
        assert [figure is not None for figure in figures] == [is_usual] * 2
    # the lists in the longer answer are seen by one person often: the others' figures stay
    listed = cast({"w0": 60, **{f"w{k}": 4 for k in range(1, 12)}}, n_words=30)
    for row in listed:
        row["response_a"] = "- a\n- b\n" + row["response_a"]
    scan = audit([*cast(usual, n_words=40), *listed], [Length()]).summary
    assert "lists" in [row["feature"] for row in scan["scan"]]
    assert "lists" not in [row["feature"] for row in shareable(scan)["scan"]]
    experts = cast({"e0": 80} | {f"e{k}": 9 for k in range(1, 8)}, n_words=40, of_class="expert")
    both = audit([*cast(usual, n_words=40), *experts], [Length()]).summary
    assert len(both["pool"]["length"]["classes"]) == 2
    assert shareable(both)["pool"]["length"]["classes"] == [] and shareable(both)["attributes"]


LENGTH = 'attribute "length"'


@pytest.mark.parametrize(
    ("what", "where", "told"),
    [
        ("3 annotators of 1,234 always sided one way", f"{LENGTH}: ann_aaaaaaaaaa", None),
        ("one annotator cast 31% of the votes", "ann_aaaaaaaaaa", None),
        ("this class has a single annotator", 'class "x"', None),
        ("24 of 66 annotators", f"{LENGTH}: ann_a", ("about 20 of about 70 annotators", LENGTH)),
        ("5 of 7 (71%) with fewer than 12", LENGTH, ("most of 5 to 14 with fewer than 12", LENGTH)),
        ("8 comparisons of 14", "x", ("about half the comparisons of 5 to 14", "")),
        ("20 did so (50% of 20 disagree); all", "x", ("about 20 did so; all", "")),
        ("groups of 17, 12 and more", "x", ("groups of about 20, 5 to 14 and more", "")),
        ("no winner: 17 of 5,755 rows", "votes.csv", ("no winner: about 20 of about 5,760 rows", "")),
        ("tau 0.00, 95 % interval 0.00 to 0.81", "x", ("tau 0, 95 % interval 0 to 0.80", "")),
        ("inflated by 1.33 or more (p = 0.0321)", "x", ("inflated by 1.35 or more (p = 0.03)", "")),
    ],
)
def test_what_a_finding_tells_others(result, what, where, told):
    row = {"code": "W404", "what": what, "where": where, "remedy": "make it 0/1", "severity": "warning"}
    found = shareable({**result.summary, "warnings": [row]})["warnings"]
    assert [(row["what"], row["where"]) for row in found] == [told] * (told is not None)
    assert all(row["remedy"] == "make it 0/1" for row in found)


@pytest.mark.parametrize("n_annotators", [7, 12])
def test_no_message_has_a_share_beside_a_count_which_would_tell_how_few_the_others_are(n_annotators):
    table = votes(20, n_annotators)[0]
    table.loc[:9, "winner"] = "tie"
    summary = audit(table, [Length()], min_informative=8).summary
    exact = " ".join(row["what"] for row in summary["warnings"])
    assert re.search(rf"\d of {n_annotators} annotators have fewer than 8", exact)
    assert "10 of 80 rows left out: tie (12.5%)" in exact
    found = shareable(summary)
    whole = [row["what"] for row in found["warnings"]]
    for told in [*whole, found["checks"]["estimator"]["why"]]:
        assert not ("%" in told and ("about" in told or "annotator" in told))
    assert "most of 5 to 14 annotators have fewer than 8 informative votes" in whole
    assert not any("rows left out" in told for told in whole)


def call_ties(table: pd.DataFrame, n_callers: int) -> pd.DataFrame:
    """Make about a dozen votes of each of the first annotators ties."""
    callers = [*table["annotator"].unique()[:n_callers]]
    rows = table.index[table["annotator"].isin(callers)].to_numpy()
    ties = np.random.default_rng(0).permutation(rows)[: 12 * n_callers]
    return table.assign(winner=table["winner"].mask(table.index.isin(ties), "tie"))


@pytest.mark.parametrize(("n_callers", "is_shown"), [(1, False), (4, False), (20, True)])
def test_ties_and_rows_left_out_are_shown_only_if_they_are_of_enough_people(n_callers, is_shown):
    summary = audit(call_ties(votes(200, 20)[0], n_callers), [Length()]).summary
    assert summary["attributes"][0]["ties"]["n_people"] <= n_callers
    found = shareable(summary)
    assert (found["attributes"][0]["ties"] is not None) == bool(found["data"]["dropped"]) == is_shown
    assert not found["data"]["n_dropped"]
    assert is_shown or "W442" not in {row["code"] for row in found["warnings"]}


def test_repeated_votes_of_one_person_are_not_on_the_page():
    table = votes(60, 12)[0]
    own = table[table["annotator"] == table["annotator"].iat[0]]
    again = own.assign(winner=own["winner"].map({"a": "b", "b": "a"}))
    summary = audit(pd.concat([table, again]), [Length()]).summary
    codes = {"W133", "N434"}
    assert codes <= {row["code"] for row in summary["warnings"]}
    assert codes.isdisjoint(row["code"] for row in shareable(summary)["warnings"])


def test_features_that_do_not_occur_are_not_called_withheld(result):
    assert (
        "No responses differ in these features: lists, headers" in Page(audit_html(result.summary)).text
    )


def test_the_page_does_not_name_the_file_of_the_table(result, summary):
    source = summary["data"]["source"] = "votes of w-1234.csv"
    row = {"code": "W1", "what": f"odd: {source}", "where": "x", "remedy": source, "severity": "warning"}
    summary["warnings"] = [row]
    html = audit_html(summary)
    assert "w-1234" not in html and "Biases in the votes of this table" in Page(html).text
    assert "w-1234" in audit_table(summary) and "w-1234" in people_html(summary, result.annotators)


def test_one_vote_is_no_lean_and_a_remedy_stands_apart_where_there_is_one():
    table = votes(9, 4)[0].drop(columns="annotator")
    one = table[table["response_a"].str.len() != table["response_b"].str.len()].head(1)
    told = " ".join(audit_table(audit(one, [Length()]).summary).split())
    assert "1 judgment, 1 prompt attribute" in told and "only once differ in length" in told
    assert "in only 1 judgment \u00b7 do: expect" in told
    assert "N110" in told and "do: nothing" not in told and "is large" not in told


@pytest.mark.parametrize("n", [4, 5])
def test_a_level_that_rests_on_few_people_is_withheld(summary, n):
    pool = summary["pool"]["length"]
    pool |= {
        "shared_bias": 0.5,
        "shared_bias_ci": [0.1, 0.9],
        "shared_bias_ci_beyond": None,
        "n_shared_bias": n,
    }
    pool |= {"n_people_shared_bias": n, "n_people_estimated": n}
    told = shareable(summary)["pool"]["length"]
    assert (told["shared_bias"] is None, told["tau"] is None) == (n < 5, n < 5)
    assert ("0.50 (0.10 to 0.90" in page_text(summary)) == (n >= 5)
    # models alone, all of whom sided one way
    pool |= {"n_people_estimated": 0, "n_estimated": 0, "n_insufficient": 0, "n_separated": 4}
    assert shareable(summary)["pool"]["length"]["tau"] is not None


def with_models(n_people: int, n_models: int) -> pd.DataFrame:
    table = votes(400, n_people + n_models, spread=1.0)[0]
    models = {f"w{k}": f"judge-{k}" for k in range(n_people, n_people + n_models)}
    is_model = table["annotator"].isin(models)
    table.loc[is_model, "annotator_class"] = "Model"
    # half of what people choose is the longer side
    longer = table["response_a"].str.len() - table["response_b"].str.len()
    chosen = ~is_model & (longer != 0) & (np.arange(len(table)) % 2 == 0)
    winner = table["winner"].mask(chosen, np.where(longer > 0, "a", "b"))
    return table.assign(winner=winner, annotator=table["annotator"].replace(models))


@pytest.mark.parametrize("n_people", [0, 3, 20])
def test_models_are_named_however_few_and_people_are_not(n_people):
    table = with_models(n_people, 4)
    summary = audit(table, [Length()]).summary
    told, page = shareable(summary), page_text(summary)
    names = {f"judge-{n_people + k}" for k in range(4)}
    assert {row["model"] for row in told["models"]} == names and all(name in page for name in names)
    assert not any(name in page for name in ("ann_", "w0", "w1"))
    assert (told["withheld"] == ["length"]) == (n_people == 3)
    assert ("The standard deviation of reliability is only in audit.json" in page) == (n_people == 3)
    assert ("Impact of the biases on labels" in page) == (n_people != 3)
    shown = [row["shrunk"] for row in told["models"]]
    exact = [row["shrunk"] for row in summary["models"]]
    apart = np.mean(exact) if n_people == 3 else 0.0
    assert abs(apart) > 0.1 or n_people != 3
    np.testing.assert_allclose(shown, np.array(exact) - apart, atol=told["step"])
    # an id is named on request too, and an address is never
    other = {"annotator_class": {"Model": None}, "annotator": {f"judge-{n_people}": "j@x.org"}}
    asked = table.replace(other)
    named = audit(asked, [Length()], models=[f"judge-{n_people + 1}"]).summary["models"]
    assert [row["model"] for row in named] == [f"judge-{n_people + 1}"]
    address = asked.assign(annotator_class=asked["annotator"].map({"j@x.org": "model"}))
    (row,) = audit(address, [Length()]).summary["models"]
    assert row["model"].startswith("ann_")


@pytest.mark.parametrize(
    ("n_people", "is_exposed"), [(8, True), (12, True), (30, True), (60, False), (240, False)]
)
def test_two_pages_tell_the_votes_of_a_removed_person_in_pools_that_the_page_names(
    summary, n_people, is_exposed
):
    """The attack: audit, forget, audit, and solve for the share of the one who is missing, from printed figures."""
    errors, random, n_votes = [], np.random.default_rng(0), 92
    for _ in range(100):
        leans = 0.7 + 0.7 * random.standard_normal(n_people)
        wins = random.binomial(n_votes, expit(leans))
        shares, numbers = [], []
        for some in (wins, wins[1:]):
            n = n_votes * len(some)
            summary["data"] |= {"n_judgments": n, "n_annotators": len(some), "n_people": len(some)}
            summary["data"]["judgments_per_annotator"] |= {"median": n_votes, "most_of_people": n_votes}
            log_odds = np.log(some.sum() / (n - some.sum())).item()
            row = {
                "n_cross": n,
                "cross_share": 1.0,
                "log_odds": log_odds,
                "win_rate": some.sum() / n,
            }
            summary["attributes"][0] |= row
            (told,) = shareable(summary)["attributes"]
            shares.append(expit(told["log_odds"]))
            numbers.append(told["n_cross"])
        median = shareable(summary)["data"]["judgments_per_annotator"]["median"]
        attack = (numbers[0] * shares[0] - (numbers[0] - median) * shares[1]) / median
        truth = wins[0] / n_votes
        errors.append((attack - shares[0], truth - shares[0]))
    # the attacker trusts the solution as far as it has proved right, and else takes the pool's share
    solved, true = np.transpose(errors)
    left = true - solved * (solved @ true) / (solved @ solved)
    attacked, guessed = np.abs(left).mean(), np.abs(true).mean()
    assert (attacked < 0.75 * guessed) == is_exposed
    text = page_text(summary)
    assert "Share only one audit page about these annotators." in text and "fewer than 50 people" in text


def test_agreement_is_not_told_if_all_agree():
    """One vote would then reveal the others on its comparison."""
    table = votes(60, 10, votes_each=5)[0]
    agreed = table.assign(winner=table.groupby("comparison_id")["winner"].transform("first"))
    for part, is_told in ((table, True), (agreed, False)):
        data = shareable(audit(part, [Length()]).summary)["data"]
        assert (data["unanimous_share"] is not None, data["agreement"]["percent"] is not None) == (
            is_told,
            is_told,
        )


def test_votes_of_nobody_in_particular_are_withheld_where_fewer_than_five_chose_a_side():
    table = votes(40, 10)[0].drop(columns=["annotator", "annotator_class"])
    longer = table["response_a"].str.len() > table["response_b"].str.len()
    differ = (table["response_a"].str.len() - table["response_b"].str.len()).abs() > 9
    for n_least, is_withheld in ((4, True), (5, False)):
        won = np.where(longer == (np.cumsum(differ) > n_least), "a", "b")
        found = shareable(audit(table.assign(winner=won), [Length()]).summary)
        assert (found["withheld"] == ["length"]) == is_withheld


def test_every_number_of_the_page_is_rounded(result):
    """Whatever an audit will say one day: a count is a multiple of ten, an estimate one of the step."""
    found = shareable(result.summary)
    assert found["step"] == 0.05
    assert not [*_finer_than(0.05, {name: found[name] for name in ("pool", "scan", "data")})]
    assert [*_finer_than(0.05, result.summary["pool"])]
    row, text = found["attributes"][0], audit_html(result.summary)
    told = f"lengthabout {row['n_cross']:,} (", f"{row['log_odds']:.2f} ({row['ci_low']:.2f} to"
    assert all(figure in Page(text).text for figure in told)
    tau = f"{result.summary['pool']['length']['tau']:.4f}"
    assert float(tau) != found["pool"]["length"]["tau"] and tau not in Page(text).text
    for exact in (result.summary["data"]["fingerprint"], *result.annotators["annotator"].unique()):
        assert exact in str(result.summary) + str(result.annotators)
        assert exact not in text


def _finer_than(step: float, value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers that are no multiples of their step, with the name under which they stand."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _finer_than(step, entry, key if key in ("agreement", "position") else name)
    elif isinstance(value, list):
        for entry in value:
            yield from _finer_than(step, entry, key)
    elif isinstance(value, int | float) and key not in ("equal_biases_p", "class_test_p", "q_value"):
        is_share = key.endswith("share") or key in ("agreement", "position")
        unit = 10 if isinstance(value, int) else 0.01 if is_share else step
        if not isinstance(value, bool) and abs(value / unit - round(value / unit)) >= 1e-6:
            yield key, value


@pytest.mark.parametrize(("most", "step"), [(6, 0.01), (20, 0.05), (200, 0.05), (400, 0.25)])
def test_the_more_somebody_voted_the_coarser_are_the_estimates(summary, most, step):
    """Of 1,200 votes; what is sure is said as the exact figures have it."""
    summary["data"]["judgments_per_annotator"]["most_of_people"] = most
    exact = {"log_odds": 0.27, "ci_low": 0.11, "ci_high": 0.43, "win_rate": 0.567}
    summary["attributes"][0] |= exact
    found = shareable(summary)
    assert found["step"] == step
    (row,) = found["attributes"]
    assert row["log_odds"] == pytest.approx(round(0.27 / step) * step)
    assert row["win_rate"] == round(1 / (1 + np.exp(-row["log_odds"])), 2)
    text = page_text(summary).replace("\u00a0%", "%")
    assert f"toward length (ratio=1.5): the longer response won about {row['win_rate']:.0%}" in text
    assert "about 1.3 to 1." in text


def test_annotators_are_drawn_by_votes_and_at_most_sixty():
    found = audit(votes(400, 90)[0], [Length()])
    annotators = found.annotators.copy()
    annotators.loc[annotators.index[:3], "n_informative"] = 1
    figure = draw_annotator_figure(found.summary, annotators)
    notes = re.findall(r'text-anchor="end">([\d,]+)<', figure.panels[0][1])
    drawn = [int(note.replace(",", "")) for note in notes]
    assert len(drawn) == MOST_ROWS == 60 and drawn == sorted(drawn, reverse=True)
    assert "The chart shows at most 60 annotators" in figure.caption


def test_where_nobody_is_estimated_the_page_says_so(result, summary):
    summary["pool"]["length"] |= {"tau": None, "tau_ci": [None, None]}
    assert "reliability of 12 annotators with intervals" in people_html(summary, result.annotators)
    unknown = dict.fromkeys(("se", "shrunk", "post_low", "post_high", "reliability"), np.nan)
    separated = {"status": "separated_high", "deviation": np.inf, "ci_high": np.inf}
    page = people_html(summary, result.annotators.assign(**unknown, **separated))
    assert "There are too few votes to estimate the bias of any individual annotator." in Page(page).text


def test_pages_without_annotators_and_of_an_attribute_without_a_type():
    found = audit(votes(120, 6)[0].drop(columns=["annotator", "annotator_class"]), [Length()])
    text = page_text(found.summary)
    assert "The table does not name the annotators" in text
    assert "Individual annotators" not in text and "How much annotators differ" not in text
    question = Attribute("much", "response", lambda prompt, response: "more" in response)
    found = audit(votes(100, 6)[0], [question]).summary
    assert "much: attribute" in page_text(found) and "much" in audit_table(found)
