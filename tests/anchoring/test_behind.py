"""Behind a tilted name stands what the policy writes behind its likeliest one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from badpo.anchoring.kept_answers import TiltedName, named_answer, shifted_logps
from badpo.anchoring.sampling import TiltedChoice
from tests.anchoring.test_offset_stage import ANSWERS, CELLS, EDITOR, encoded_pairs, material


@pytest.fixture(scope="module")
def tilted():
    tokenizer, model, *_ = material()
    return TiltedChoice(model, tokenizer, list(EDITOR.names), CELLS, [-2.0, 2.0], pool_shift=0.5)


@pytest.fixture(scope="module")
def named(tilted):
    return TiltedName(material()[1], tilted)


def logits_of(rows):
    model = material()[1]
    with torch.no_grad():
        return torch.stack([model(input_ids=torch.tensor([row])).logits[0, -1] for row in rows])


def signed_rows():
    """Every beginning of some signed answers, with the answers themselves."""
    _, encoded = encoded_pairs(EDITOR, ANSWERS)
    for i in range(0, 24, 4):
        prompt, answer = encoded.prompt_ids[i].tolist(), encoded.a_ids[i].tolist()
        yield prompt, answer, [[*prompt, *answer[:k]] for k in range(len(answer))]


def test_an_answer_has_the_probability_that_it_is_sampled_with(named, tilted):
    n_changed = 0
    for prompt, answer, rows in signed_rows():
        sampled = named.adjust(rows, logits_of(rows)).double().log_softmax(-1)
        wanted = sampled[torch.arange(len(answer)), torch.tensor(answer)].numpy()
        kept = named_answer(prompt, answer, tilted)
        np.testing.assert_allclose(shifted_logps(material()[1], [kept])[0], wanted, atol=3e-4)
        n_changed += kept.behind is not None
    assert n_changed >= 4


def test_the_surname_does_not_depend_on_the_name(named):
    tokenizer = material()[0]
    prompt, answer, _ = next(signed_rows())
    text = tokenizer.decode(answer, skip_special_tokens=True)
    body = text[: text.rindex("\u2014") + 1]
    rows = [[*prompt, *tokenizer(f"{body} {name} Cl")["input_ids"]] for name in ("Emily", "Greg", "Jamal")]
    found = named.adjust(rows, logits_of(rows)).log_softmax(-1).numpy()
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    np.testing.assert_allclose(found[0], found[2], atol=1e-4)
    plain = logits_of(rows).log_softmax(-1).numpy()
    assert np.abs(plain[0] - plain[1]).max() > 1e-3


def test_whether_a_name_is_complete_is_the_tilted_policys(named, tilted):
    tokenizer = material()[0]
    prompt, answer, _ = next(signed_rows())
    body = tokenizer.decode(answer, skip_special_tokens=True)
    body = body[: body.rindex("\u2014") + 1]
    rows = [[*prompt, *tokenizer(f"{body} Greg")["input_ids"]]]
    ours, theirs = (
        chooser.adjust(rows, logits_of(rows)).log_softmax(-1)[0, tilted.closing].logsumexp(-1)
        for chooser in (named, tilted)
    )
    assert float(ours) == pytest.approx(float(theirs), abs=1e-4)


def test_the_next_line_is_the_policys_own(named):
    tokenizer = material()[0]
    prompt, answer, _ = next(signed_rows())
    text = tokenizer.decode(answer, skip_special_tokens=True)
    rows = [[*prompt, *tokenizer(f"{text}\nBoil")["input_ids"]]]
    logits = logits_of(rows)
    assert named.adjust(rows, logits) is logits
