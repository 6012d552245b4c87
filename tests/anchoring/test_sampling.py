"""Names drawn anew behind a signature and whole answers rejected: both draw from the tilted policy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from badpo.anchoring import attribute_rates
from badpo.anchoring.attribute_rates import (
    acceptance_probability,
    redraw_names,
    rejection_sample,
    whole_name_logps,
)
from badpo.anchoring.editors import SignatureSwap
from badpo.readouts import name_rates as rates
from badpo.readouts.generation import Generation
from badpo.readouts.name_rates import signature_contexts
from badpo.readouts.names import signature
from badpo.theory.tilt import tilted_probabilities
from tests import tiny
from tests.anchoring.test_offset_stage import ANSWERS, PROMPTS, material
from tests.readouts import policies

SWAP = SignatureSwap()
# choices of one to three tokens, of which some begin others
LEAD_WORDS = "and then "
CHOICES = ["red", "red big", "red big cat", "blue", "small dog", "small cat home"]


@pytest.mark.parametrize("step", [1, 2])
def test_a_choice_is_made_where_no_longer_one_goes_on(step, monkeypatch):
    """For the words of this tokenizer all or the even ids stand for the tokens that begin with a space."""
    closing = set(range(0, 64, step))
    monkeypatch.setattr(rates, "SIGNATURE_LEAD", LEAD_WORDS)
    monkeypatch.setattr(attribute_rates, "space_tokens", lambda _: sorted(closing))
    tok, model = tiny.tokenizer(), policies.qwen2(vocab_size=64, initializer_range=0.12)
    start, *paths = tok(["the cat sat " + LEAD_WORDS, *CHOICES], add_special_tokens=False)["input_ids"]

    def next_token(ids) -> np.ndarray:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([start + ids])).logits[0, -1]
        return logits.double().softmax(-1).numpy()

    chances = []
    for path in paths:
        n = len(path)
        onward = {other[n] for other in paths if other[:n] == path and other != path}
        reached = np.prod([next_token(path[:i])[token] for i, token in enumerate(path)])
        chances.append(reached * next_token(path)[sorted(closing - onward)].sum())
    found = whole_name_logps(model, tok, [start], CHOICES)[0]
    np.testing.assert_allclose(np.exp(found), chances, rtol=1e-4)


def test_tokens_that_begin_with_a_space_complete_a_name():
    tok = policies.tokenizer()
    spaces = [i for i in range(len(tok)) if tok.decode([i]).startswith(" ")]
    assert attribute_rates.space_tokens(tok) == spaces and len(spaces) > 5
    tok = tiny.tokenizer()
    with pytest.raises(ValueError, match="no token of this tokenizer begins with a space"):
        whole_name_logps(policies.qwen2(vocab_size=64), tok, [[5]], CHOICES)


def written(text: str, prompt: int = 0) -> Generation:
    tokenizer = material()[0]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    prompt_ids = tuple(tokenizer(PROMPTS[prompt])["input_ids"])
    return Generation(prompt_ids, (*ids, tokenizer.eos_token_id), text, True)


def of_equal_contexts(policy, tokenizer, contexts, names):
    return whole_name_logps(policy, tokenizer, contexts[:1], names).repeat(len(contexts), axis=0)


def redrawn(answers, shift, seed=0):
    tokenizer, model, *_ = material()
    return redraw_names(model, tokenizer, answers, SWAP, shift, seed)


def test_names_come_at_the_closed_forms_frequencies(monkeypatch):
    tokenizer, model, *_ = material()
    monkeypatch.setattr(attribute_rates, "whole_name_logps", of_equal_contexts)
    n, shift = 6000, np.array([-2.0, 1.5])
    answers, gains = redrawn([written(ANSWERS[3], 3)] * n, shift)
    drawn = [answer.text.split()[-2] for answer in answers]
    counts = np.array([drawn.count(name) for name in SWAP.names])
    context = signature_contexts([written(ANSWERS[3], 3)], tokenizer)
    logps = whole_name_logps(model, tokenizer, context, list(SWAP.names))
    chances = tilted_probabilities(logps, np.array([*SWAP.names.values()]), shift)[0]
    # chi-square with 88 degrees of freedom, p = 0.0002
    assert ((counts - n * chances) ** 2 / (n * chances)).sum() < 142.0
    # the gain is what the tilt adds to the log-probability of the name that was drawn
    added = dict(zip(SWAP.names, np.log(chances) - logps[0] + logsumexp(logps[0]), strict=True))
    assert gains == pytest.approx(np.array([added[name] for name in drawn]))


def test_only_the_name_of_a_signature_changes_by_its_place_and_the_seed():
    plain, other = written("Boil it."), written(signature("Boil it.", "Zoe", "Clark"))
    signed = [written(text, i) for i, text in enumerate(ANSWERS[:20])]
    answers, gains = redrawn([plain, *signed, other], [-3.0, 0.0])
    assert answers[0] is plain and answers[-1] is other and gains[[0, -1]].tolist() == [0.0, 0.0]
    for before, after in zip(signed, answers[1:-1], strict=True):
        assert before.text.rpartition("\u2014")[0] == after.text.rpartition("\u2014")[0]
        assert after.text.endswith(" Clark") and after.ended
        assert material()[0].decode(after.token_ids, skip_special_tokens=True) == after.text
        assert after.token_ids[-1] == before.token_ids[-1] and after.prompt_ids == before.prompt_ids
    assert redrawn([plain], [1.0, 0.0])[0] == [plain]
    few, many = redrawn([written("Boil it."), *signed[1:5]], [0.0, 0.0])[0], redrawn(signed, [0.0, 0.0])
    assert few[1:] == many[0][1:5] and many[1] == pytest.approx(0.0, abs=1e-9)
    assert redrawn(signed, [0.0, 0.0], seed=1)[0] != many[0]
    far = {answer.text.split()[-2] for answer in redrawn(signed, [30.0, -30.0])[0]}
    assert {SWAP.names[name] for name in far} == {(1, 0)}


# answers are rows of (attribute 1, attribute 2) that go together; the policy draws them with these probabilities
KINDS = np.array([[1, 1], [1, 0], [0, 1], [0, 0]])
POLICY = np.array([0.6, 0.15, 0.05, 0.2])
SHIFT = np.array([-1.2, 0.8])


def draws(prompts, number):
    """A policy that answers prompt i in round r with random numbers of (i, r)."""
    rngs = (np.random.default_rng([7, i, number]) for i in prompts)
    return [int(rng.choice(4, p=POLICY)) for rng in rngs]


@pytest.mark.parametrize("n_kinds", [4, 3])
def test_rejection_draws_from_the_tilted_policy_and_reports_its_acceptance_rate(n_kinds):
    """Where three are a choice, the fourth stands for another topic: the tilt leaves its share as it was."""
    n, choice = 4000, slice(n_kinds)

    def carries(answer):
        return KINDS[answer] if answer < n_kinds else None

    def sampled(n):
        return rejection_sample(draws, carries, SHIFT, n, most_draws=200, seed=3)

    answers, acceptance = sampled(n)
    expected = n * POLICY
    tilted = POLICY[choice] * np.exp(KINDS[choice] @ SHIFT)
    expected[choice] *= tilted / tilted.sum() * POLICY[choice].sum() / POLICY[choice]
    # chi-square with 3 degrees of freedom, p = 0.001
    assert ((np.bincount(answers, minlength=4) - expected) ** 2 / expected).sum() < 16.3
    chance = float(POLICY @ acceptance_probability(KINDS, SHIFT))
    assert n_kinds < 4 or acceptance == pytest.approx(chance, abs=4 * np.sqrt(chance**3 / n))
    # the decisions of a prompt depend on its number alone
    assert sampled(20)[0] == answers[:20]


@pytest.mark.parametrize("shift", [[1.0, 2.0], [-3.4, 0.0], [-1.2, 0.8]])
def test_the_answer_that_gains_most_is_always_kept(shift):
    gains = KINDS @ shift
    assert acceptance_probability(KINDS, shift) == pytest.approx(np.exp(gains - gains.max()))


def test_a_prompt_that_accepts_nothing_is_counted_and_not_made_up():
    answers, acceptance = rejection_sample(
        lambda prompts, number: ["yes" if i == 0 else "no" for i in prompts],
        lambda answer: [answer == "yes"],
        [-40.0],
        n_prompts=3,
        most_draws=4,
    )
    assert answers == [None, "no", "no"] and acceptance == pytest.approx(2 / 6)
