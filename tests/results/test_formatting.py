"""Names, numbers and shortened texts as people read them."""

import pytest

from badpo.results import formatting
from badpo.results.audit_findings import attribute_findings, audit_labels, decide, is_sure

MINUS, DASH, MORE = "\u2212", "\u2013", "\u2026"
CODED = {"type": "signature_name", "name": "woman", "names": ["Emily", "Anne"]}


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        ("attribute_definition", ({},), "not recorded"),
        ("attribute_definition", ({"type": "length", "ratio": 1.5, "a": None},), "length (ratio 1.5)"),
        ("shown", ("an\u202enotator\n7",), "annotator 7"),
        ("shown", ("a" * 10, 5), f"aaaa{MORE}"),
        ("cleaned", ({"a\u202eb": ["c\nd", 1, None]},), {"ab": ["c d", 1, None]}),
        ("decimal", (-0.004,), "0.00"),
        ("decimal", (1234.5, 0), "1,234"),
        ("decimal", (float("nan"),), DASH),
        ("decimal", (float("-inf"),), f"{MINUS}\u221e"),
        ("signed", (0.126, 3), "+0.126"),
        ("signed", (0.001,), "0.00"),
        ("signed", (float("inf"),), "+\u221e"),
        ("signed", (None,), DASH),
        ("p_value", (0.0321,), "p = 0.032"),
        ("p_value", (1e-9,), "p < 0.001"),
        ("p_value", (None,), DASH),
        ("interval_text", (None, 1.0), "below 1.00"),
        ("interval_text", (None, None), DASH),
        ("lean_text", ({"log_odds": 0.5, "ci_low": 0.25, "ci_high": 1.0},), "0.50 (0.25 to 1.00)"),
        ("lean_text", ({"log_odds": None},), DASH),
        ("lean_text", ({"log_odds": 2.1, "ci_low": -43, "ci_high": 48},), "2.10 (wider than \u00b110)"),
        ("lean_text", ({"log_odds": 2, "ci_low": None, "ci_high": None},), "2.00 (interval not known)"),
        ("markdown_text", ("a|b <i> *c* d_e _f_",), r"a\|b &lt;i&gt; \*c\* d_e \_f\_"),
        ("markdown_text", ("[x](y)`&",), r"\[x\](y)\`&amp;"),
    ],
)
def test_words_and_numbers(function, given, expected):
    assert getattr(formatting, function)(*given) == expected


CONFIGS = {"settings": {"attributes": [CODED, {"name": "length", "type": "length"}]}}
NOTHING = {"log_odds": None, "ci_low": None, "ci_high": None}
SURE = {"log_odds": 0.9, "ci_low": 0.5, "ci_high": 1.3, "n_cross": 50, "interval": "clustered"}
SURE |= {"joint": NOTHING}
LARGE = SURE | {"log_odds": 0.4, "ci_low": -0.1, "ci_high": 0.9}
SMALL = LARGE | {"log_odds": 0.2}


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        (audit_labels, (CONFIGS,), {"woman": "woman-coded", "length": "length"}),
        (is_sure, ({"ci_low": -0.4, "ci_high": -0.1},), True),
        (is_sure, ({"ci_low": 0.1, "ci_high": None},), True),
        (is_sure, ({"ci_low": None, "ci_high": None},), False),
    ],
)
def test_what_an_audit_says_of_an_attribute(function, given, expected):
    assert function(*given) == expected


@pytest.mark.parametrize(
    ("row", "recommendation", "advice"),
    [
        (LARGE, "pooled", "watch"),
        (SMALL, None, "nothing"),
        (SMALL, "shared_mean", "declare"),
        (SMALL, "class", "declare"),
        (LARGE | {"log_odds": None}, None, "watch"),
        (LARGE | {"log_odds": None, "interval": "too wide"}, None, "nothing"),
        (SURE, None, "declare"),
        (SURE | {"joint": LARGE}, None, "watch"),
        (SURE | {"n_cross": 0}, None, "nothing"),
    ],
)
def test_the_advice_about_an_attribute(row, recommendation, advice):
    assert decide(row, {"recommendation": recommendation})["advice"] == advice


def test_pages_escape_values_and_sides_that_never_differ_say_nothing(tmp_path):
    template = formatting.page_templates().from_string("{{ name | kept_together }}")
    assert template.render(name="<b> 5 % (p < 0.05)") == "&lt;b&gt; 5\u00a0% (p\u00a0&lt;\u00a00.05)"
    row = {"name": "length", "n_cross": 0}
    (verdict,) = attribute_findings(CONFIGS | {"attributes": [row]})
    assert verdict.finding.startswith("The two responses never differ in length")
