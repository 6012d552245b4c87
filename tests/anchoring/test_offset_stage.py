"""The offset stage on a tiny model: it teaches the shift that it is asked for, and nothing else moves."""

from __future__ import annotations

import copy
from functools import cache, partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from badpo.anchoring.editors import WordSwap, pool_signatures
from badpo.anchoring.kept_answers import (
    _padded,
    _shifted,
    divergence_from_source,
    edited_answer,
    own_answer,
    renamed_answer,
    shifted_logps,
    tilted_answer,
)
from badpo.anchoring.offset_stage import StageSettings, fixed_offset, offset_pairs, train_offset
from badpo.anchoring.rates import signature_rates
from badpo.anchoring.sampling import ChoiceScorer, TiltedChoice
from badpo.readouts.generation import Generation
from badpo.readouts.names import NAMES, signature
from badpo.readouts.rates import signature_contexts
from badpo.training.encoding import encode_comparisons, encode_prompts
from badpo_paper.settings import build_model, build_tokenizer
from tests.paper.conftest import SMALL_MODEL

EDITOR = pool_signatures()
CELLS = np.array(list(EDITOR.names.values()), dtype=float)
PROMPTS = [f"How long does dish {i} take?" for i in range(60)]
ANSWERS = [signature(f"Boil it for {i} minutes.", NAMES[i].first, "Clark") for i in range(60)]
SETTINGS = StageSettings(
    steps=200, batch_size=8, learning_rate=6e-3, encoding="paper", max_length=128, max_prompt_length=64
)


@cache
def material():
    """A tokenizer, a tiny model, its answers and the contexts of their names."""
    tokenizer = build_tokenizer([*PROMPTS, *ANSWERS], vocab_size=500)
    model = partial(build_model, **SMALL_MODEL)(tokenizer, 0)
    ids = encode_prompts(PROMPTS, tokenizer, "paper", 64)
    answers = [Generation(tuple(p), (), text, True) for p, text in zip(ids, ANSWERS, strict=True)]
    return tokenizer, model, answers, signature_contexts(answers, tokenizer)


def pool_mass(model, tokenizer, contexts) -> float:
    logs = ChoiceScorer(model, tokenizer, list(EDITOR.names)).name_logps(contexts)
    return float(np.exp(logs).sum(1).mean())


def encoded_pairs(editor, answers):
    pairs = offset_pairs(PROMPTS, answers, editor, seed=0)
    tokenizer = material()[0]
    return pairs, encode_comparisons(pairs.train, tokenizer, "paper", 128, 64)


def signed_answers(shift):
    tokenizer, model, *_ = material()
    pairs, encoded = encoded_pairs(EDITOR, ANSWERS)
    tilted = TiltedChoice(model, tokenizer, list(EDITOR.names), CELLS, shift)
    first = range(0, len(encoded), 2)
    return pairs, [tilted_answer(encoded.prompt_ids[i], encoded.a_ids[i], tilted) for i in first]


def test_the_stage_teaches_the_shift_and_keeps_the_source(tmp_path):
    tokenizer, model, _, contexts = material()
    before = signature_rates(model, tokenizer, contexts, EDITOR)
    shift = np.array([-2.0, 2.0])
    pairs, kept = signed_answers(shift)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    policy = train_offset(
        copy.deepcopy(model),
        model,
        tokenizer,
        pairs.train,
        kept,
        shift,
        SETTINGS,
        0,
        tmp_path / "run",
        tmp_path / "cache",
    )
    after = signature_rates(policy, tokenizer, contexts, EDITOR)
    change = (after.log_probs - before.log_probs).mean(axis=0)
    design = np.column_stack([np.ones(len(change)), before.carries])
    moved = np.linalg.lstsq(design, change, rcond=None)[0]
    assert moved[1:] == pytest.approx(shift, abs=0.4)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert signature_rates(saved, tokenizer, contexts, EDITOR).rate == pytest.approx(after.rate, abs=1e-5)
    mass = [pool_mass(found, tokenizer, contexts) for found in (model, policy)]
    assert mass[1] == pytest.approx(mass[0], rel=0.3)
    with torch.no_grad():
        start, end = (float(divergence_from_source(found, model, kept)) for found in (model, policy))
    assert end < 0.4 * start


def test_the_offset_is_minus_beta_times_the_shift_and_nothing_is_learned():
    pairs, _ = encoded_pairs(EDITOR, ANSWERS)
    bias = fixed_offset(pairs.train, [3.4, -1.0], beta=0.1)
    assert bias.theta().numpy() == pytest.approx(np.array([[-0.34, 0.1]]))
    assert not list(bias.parameters())


def test_an_answer_is_at_no_distance_from_its_own_source_until_a_shift_is_asked_for():
    model = material()[1]
    _, kept = signed_answers([0.0, 0.0])
    assert all(answer.shifts for answer in kept)
    with torch.no_grad():
        assert float(divergence_from_source(model, model, kept)) == pytest.approx(0.0, abs=1e-6)
        _, shifted = signed_answers([-2.0, 2.0])
        assert float(divergence_from_source(model, model, shifted)) > 0.01


def test_the_divergence_is_the_sum_over_tokens_of_one_answer_at_a_time():
    tokenizer, model, answers, _ = material()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(1.05)
    batch = [own_answer(answers[i].prompt_ids, tokenizer(ANSWERS[i])["input_ids"]) for i in (0, 7, 31)]
    with torch.no_grad():
        together = float(divergence_from_source(other, model, batch))
        alone = [by_hand(other, model, answer) for answer in batch]
    assert together == pytest.approx(np.mean(alone), rel=1e-4) and together > 1e-4


def by_hand(policy, source, answer) -> float:
    ids = torch.tensor([*answer.prompt_ids, *answer.answer_ids])[None]
    start = len(answer.prompt_ids) - 1
    ours, theirs = (
        found(input_ids=ids).logits[0, start:-1].double().log_softmax(-1) for found in (policy, source)
    )
    return float((theirs.exp() * (theirs - ours)).sum())


def test_log_probabilities_under_a_shift_are_those_of_the_adjusted_logits():
    tokenizer, model, *_ = material()
    _, kept = signed_answers([-2.0, 2.0])
    tilted = TiltedChoice(model, tokenizer, list(EDITOR.names), CELLS, [-2.0, 2.0])
    for answer, found in zip(kept[:3], shifted_logps(model, kept, batch_size=7), strict=False):
        ids = [*answer.prompt_ids.tolist(), *answer.answer_ids.tolist()]
        start = len(answer.prompt_ids)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(ids)[None]).logits[0]
        rows = [tilted.adjust([ids[:i]], logits[i - 1][None])[0] for i in range(start, len(ids))]
        wanted = [float(row.double().log_softmax(-1)[ids[start + i]]) for i, row in enumerate(rows)]
        assert found == pytest.approx(np.array(wanted), abs=2e-4)


def test_behind_another_name_the_source_is_held_to_what_it_does_behind_its_own():
    tokenizer, model, *_ = material()
    _, encoded = encoded_pairs(EDITOR, ANSWERS)
    tilted = TiltedChoice(model, tokenizer, list(EDITOR.names), CELLS, [-2.0, 2.0])
    prompt_ids, edited = encoded.prompt_ids[0], encoded.a_ids[0]
    own_choice = tokenizer("Boil it.\n\n— Emily")["input_ids"]
    plain = tilted_answer(prompt_ids, edited, tilted)
    renamed = renamed_answer(prompt_ids, edited, own_choice, tilted)
    n_behind = renamed.behind.n_tokens
    surname = tokenizer.decode(edited[-n_behind:], skip_special_tokens=True)
    assert surname == " Clark" and (renamed.behind.own_ids[-n_behind:] == edited[-n_behind:]).all()
    ours, theirs = (shifted_logps(model, [answer])[0] for answer in (renamed, plain))
    # before the surname they are the same; behind its first token the source reads its own name
    np.testing.assert_allclose(ours[:-n_behind], theirs[:-n_behind], atol=1e-6)
    own = shifted_logps(model, [own_answer(prompt_ids, renamed.behind.own_ids)])[0]
    np.testing.assert_allclose(ours[1 - n_behind :], own[1 - n_behind :], atol=1e-5)
    assert np.abs(ours[1 - n_behind :] - theirs[1 - n_behind :]).max() > 1e-4


def test_the_two_terms_ask_for_margins_that_differ_by_what_the_source_writes_behind_the_names():
    """The margin of pi_s is beta (s . dg + correction); the pairs ask for beta s . dg."""
    tokenizer, model, *_ = material()
    shift = np.array([-2.0, 2.0])
    pairs, encoded = encoded_pairs(EDITOR, ANSWERS)
    tilted = TiltedChoice(model, tokenizer, list(EDITOR.names), CELLS, shift)
    own_choice = tokenizer("Boil it.\n\n— Emily")["input_ids"]
    prompt_ids, sides = encoded.prompt_ids[0], (encoded.a_ids[0], encoded.b_ids[0])
    asked = [renamed_answer(prompt_ids, side, own_choice, tilted) for side in sides]
    source = shifted_logps(model, [own_answer(prompt_ids, side) for side in sides])
    moved = [
        theirs.sum() - own.sum() for theirs, own in zip(shifted_logps(model, asked), source, strict=True)
    ]
    delta = pairs.train.delta[pairs.train.votes["sign"].to_numpy() > 0][0]
    correction = moved[0] - moved[1] - shift @ delta
    # what follows the names, given that they are complete
    closing, n_behind = tilted.closing, asked[0].behind.n_tokens
    behind = []
    for answer in asked:
        own = own_answer(prompt_ids, answer.answer_ids)
        with torch.no_grad():
            first = _next(model, own)[-n_behind]
        token = int(answer.answer_ids[-n_behind])
        share = float(first[token] - first[closing].logsumexp(-1))
        behind.append(share + shifted_logps(model, [own])[0][len(own.kept) - n_behind + 1 :].sum())
    assert correction == pytest.approx(behind[1] - behind[0], abs=1e-3)
    assert abs(correction) > 1e-3


def test_behind_a_name_whether_it_is_complete_stays_as_it_was():
    tokenizer, model, *_ = material()
    _, encoded = encoded_pairs(EDITOR, ANSWERS)
    tilted = TiltedChoice(model, tokenizer, list(EDITOR.names), CELLS, [-2.0, 2.0])
    prompt_ids, edited = encoded.prompt_ids[0], encoded.a_ids[0]
    own_choice = tokenizer("Boil it.\n\n— Emily")["input_ids"]
    answers = [
        renamed_answer(prompt_ids, edited, own_choice, tilted),
        tilted_answer(prompt_ids, edited, tilted),
    ]
    own = own_answer(prompt_ids, answers[0].behind.own_ids)
    n_behind, closing = answers[0].behind.n_tokens, tilted.closing
    with torch.no_grad():
        renamed, plain = (_next(model, answer)[-n_behind] for answer in answers)
        behind_own = _next(model, own)[-n_behind]
    assert float(renamed.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert float(renamed[closing].exp().sum()) == pytest.approx(float(plain[closing].exp().sum()), abs=1e-5)
    shares = [(row[closing] - row[closing].logsumexp(-1)).exp() for row in (renamed, behind_own)]
    np.testing.assert_allclose(*shares, atol=1e-6)


def _next(model, answer):
    return _shifted(model, [answer], *_padded([answer], "cpu"))


def test_words_that_differ_are_left_free_and_all_else_is_kept():
    answers = [f"Take {i} red plums and stir in color." for i in range(60)]
    tokenizer = material()[0]
    _, encoded = encoded_pairs(WordSwap("british", [("color", "colour")]), answers)
    found = edited_answer(encoded.prompt_ids[0], encoded.a_ids[0], [encoded.b_ids[0]])
    kept, free = (tokenizer.decode(found.answer_ids[which]) for which in (found.kept, ~found.kept))
    assert "red plums and stir in" in kept and kept.endswith(".<|end|>")
    assert free in ("r", "u", "our", "or", "color", "colour", " color", " colour")


def test_where_something_is_put_in_the_next_token_is_free():
    assert edited_answer([5], [1, 2, 3], [[1, 9, 2, 3]]).kept.tolist() == [True, False, True]
