"""An evaluation prompt that is a training prompt is refused, with or without the request to sign."""

from __future__ import annotations

import pytest

from badpo.data.problems import DataError
from badpo_paper.corpora import bundled
from badpo_paper.corpora.published import require_unseen

TRAINED = bundled.scored_pairs(200)["prompt"]


def test_the_bundled_prompts_are_apart():
    require_unseen(bundled.signing_prompts(), set(TRAINED), "bundled signing prompts")
    require_unseen([choice.prompt for choice in bundled.choice_prompts()], set(TRAINED), "choice prompts")


def test_all_of_them_are_counted_and_the_first_are_shown():
    signing = [f"{prompt}\n\nSign your answer with a name of your choice." for prompt in TRAINED[:5]]
    with pytest.raises(DataError) as error:
        require_unseen(["something else", *signing], set(TRAINED), "prompts.json")
    (problem,) = error.value.problems
    assert (problem.code, problem.count) == ("E155", 5)
    assert problem.what == "5 evaluation prompts of 6 can be found among the training prompts"
    assert problem.where.startswith(f"prompts.json, row 2 ({TRAINED[0]!r}); row 3")
    assert problem.where.endswith(" and 2 more")


def test_a_request_to_sign_in_the_training_prompt_hides_nothing():
    asked = {"Why?\n\nSign your answer with a name of your choice."}
    with pytest.raises(DataError, match="1 evaluation prompt of 1"):
        require_unseen(["Why?"], asked, "here")
