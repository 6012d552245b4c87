"""Problems name the place and the remedy, and the page about data lists their codes."""

import doctest
import pickle
from pathlib import Path

from badpo.data.problems import ConfigError, DataError, Problem
from badpo.data.vocabulary import KNOWN

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "data.md"


def test_problems_are_in_the_message_survive_pickling_and_show_hostile_names_inert():
    where, codes = "votes.csv, row 3", ("E101", "E134")
    problems = [Problem(code, f"what {code}", where, "mend it") for code in codes]
    error = DataError(problems)
    assert all(str(problem) in str(error) for problem in problems)
    for part in ("E101 error: what E101", "where:  votes.csv, row 3", "remedy: mend it"):
        assert part in str(error)
    assert pickle.loads(pickle.dumps(error)).problems == tuple(problems)
    assert isinstance(ConfigError("beta is 0"), ValueError) and isinstance(error, ValueError)
    problem = Problem("E107", 'unknown winner "\x1b[2Ja\u202eb\x00\ud800"', "x" * 10_000, "r")
    assert problem.what == 'unknown winner "\\u001b[2Ja\\u202eb\\u0000\\ud800"'
    assert str(ConfigError("\x1b[2J\ud800")) == r"\u001b[2J\ud800"
    assert len(problem.where) < 2_100 and problem.where.endswith("... (10,000 characters)")


def test_the_examples_of_the_page_run_and_every_column_is_on_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 3 and result.failed == 0
    text = PAGE.read_text()
    assert [name for name in KNOWN if f"`{name}`" not in text] == []
