from __future__ import annotations

import pickle

from badpo.data.problems import ConfigError, DataError, Problem, did_you_mean


def problem(code: str) -> Problem:
    return Problem(code, f"what {code}", "votes.csv, row 3", "mend it", "error")


def test_all_problems_are_in_the_message():
    text = str(DataError([problem("E101"), problem("E134")]))
    for part in (
        "E101 error: what E101",
        "E134 error: what E134",
        "where:  votes.csv, row 3",
        "remedy: mend it",
    ):
        assert part in text


def test_code_that_catches_value_errors_catches_ours():
    for error in (ConfigError("beta is 0"), DataError([problem("E101")])):
        assert isinstance(error, ValueError)


def test_error_survives_pickling():
    error = pickle.loads(pickle.dumps(DataError([problem("E101")])))
    assert error.problems == (problem("E101"),)


def test_did_you_mean_ignores_case_and_stays_silent_when_nothing_is_close():
    assert did_you_mean("Annotater", ["prompt", "annotator"]) == ' Did you mean "annotator"?'
    assert did_you_mean("annotater", ["Annotator"]) == ' Did you mean "Annotator"?'
    assert did_you_mean("xyz", ["prompt"]) == ""


def test_a_problem_shows_hostile_names_inert():
    problem = Problem("E107", 'unknown winner "\x1b[2Ja\u202eb\x00\ud800"', "x" * 10_000, "r", "error")
    assert problem.what == 'unknown winner "\\u001b[2Ja\\u202eb\\u0000\\ud800"'
    assert len(problem.where) < 2_100
    assert problem.where.endswith("... (10,000 characters)")
