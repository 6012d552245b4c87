"""The offset stage on a tiny model: its pairs, what it keeps, and the shift that it teaches."""

import copy
from functools import cache, partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from badpo.anchoring.attribute_rates import signature_rates
from badpo.anchoring.editors import MarkdownStrip, SignatureSwap
from badpo.anchoring.offset_stage import (
    StageSettings,
    divergence_from_source,
    find_kept_positions,
    offset_pairs,
    train_offset,
)
from badpo.data.markers import split_signature
from badpo.readouts.generation import Generation
from badpo.readouts.name_rates import signature_contexts
from badpo.readouts.names import NAMES, signature
from badpo.training.encoding import encode_comparisons, encode_prompts
from badpo_paper.settings import build_model, build_tokenizer
from tests.paper.conftest import SMALL_MODEL

EDITOR = SignatureSwap()
PROMPTS = [f"How long does dish {i} take?" for i in range(60)]
ANSWERS = [signature(f"Boil it for {i} minutes.", NAMES[i].first, "Clark") for i in range(60)]
SETTINGS = StageSettings(
    max_steps=200,
    per_device_train_batch_size=8,
    learning_rate=6e-3,
    encoding="paper",
    max_length=128,
    max_prompt_length=64,
)


@cache
def material():
    """A tokenizer, a tiny model, its answers and the contexts of their names."""
    tokenizer = build_tokenizer([*PROMPTS, *ANSWERS], vocab_size=500)
    model = partial(build_model, **SMALL_MODEL)(tokenizer, 0)
    ids = encode_prompts(PROMPTS, tokenizer, "paper", 64)
    answers = [Generation(tuple(p), (), text, True) for p, text in zip(ids, ANSWERS, strict=True)]
    return tokenizer, model, answers, signature_contexts(answers, tokenizer)


def test_each_answer_gives_a_pair_for_each_attribute_in_both_directions():
    made = offset_pairs(PROMPTS, ANSWERS, EDITOR, seed=3, held_out=0.0)
    assert (made.n_answers, made.n_edited, made.unedited) == (60, 60, ())
    assert made.train.n_comparisons == 120 and made.train.n_votes == 240
    assert made.train.votes.groupby("comparison")["sign"].sum().eq(0).all()
    delta = np.abs(made.train.delta[made.train.votes["sign"].to_numpy() > 0])
    assert (delta.sum(axis=1) == 1).all() and delta.sum(axis=0).tolist() == [60, 60]
    for pair in made.train.comparisons[["response_a", "response_b"]].to_numpy().tolist():
        bodies, names = zip(*map(split_signature, pair), strict=True)
        assert len({*bodies}) == 1 and len({*names}) == 2
        assert [text.split()[-1] for text in pair] == ["Clark"] * 2


def test_the_first_cell_is_drawn_the_split_is_by_answer_and_markdown_is_taken_off():
    answers = [signature(f"Boil it, {i}.", "Emily", "Clark") for i in range(200)]
    made = offset_pairs(answers, answers, EDITOR, seed=3, held_out=0.0)
    firsts = made.train.comparisons["response_a"].map(lambda text: split_signature(text)[1])
    assert 0.4 < firsts.map({name.first: name.woman for name in NAMES}).mean() < 0.6
    made, again = (offset_pairs(PROMPTS, ANSWERS, EDITOR, seed=3) for _ in range(2))
    parts = [set(part.comparisons["prompt_id"]) for part in (made.train, made.held_out)]
    assert not parts[0] & parts[1] and len(parts[1]) == 6
    assert made.train.comparisons["response_a"].equals(again.train.comparisons["response_a"])
    answers = ["# A\nb", "plain", "- c d"]
    made = offset_pairs(answers, answers, MarkdownStrip(), 0, held_out=0.0, fewest=2)
    sides = made.train.comparisons[["response_a", "response_b"]].to_numpy().tolist()
    assert [set(pair) for pair in sides] == [{"# A\nb", "A\nb"}, {"- c d", "c d"}]
    assert made.unedited == (1,)


@pytest.mark.parametrize(
    ("answer", "others", "kept"),
    [
        *(([1, 2, 3], [], [0, 1, 2]), ([1, 2, 3, 4], [[1, 9, 8, 4]], [0, 3])),
        ([1, 2, 3], [[1, 9, 2, 3]], [0, 2]),  # put in: the next token is free
        *(([1, 2, 3, 3], [[1, 3]], [0, 3]), ([1, 3, 3, 3, 2], [[1, 3, 2]], [0, 1, 4])),
        ([1, 2, 3, 4, 5], [[1, 9, 3, 4, 5], [1, 2, 3, 9, 9, 5]], [0, 2, 4]),
    ],
)
def test_what_differs_is_left_free_and_all_else_is_kept(answer, others, kept):
    ids, places = find_kept_positions([5, 6], answer, others)
    assert ids.tolist() == [5, 6, *answer] and (places - 1).tolist() == kept


def test_the_divergence_is_the_sum_over_kept_tokens_of_one_answer_at_a_time():
    tokenizer, model, answers, _ = material()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(1.05)
    batch = []
    for i in (0, 7, 31):
        own = tokenizer(ANSWERS[i])["input_ids"]
        batch.append(find_kept_positions(answers[i].prompt_ids, own, [own[:2] + [9] + own[3:]]))

    def by_hand(ids, places) -> float:
        ids = torch.from_numpy(ids)[None]
        ours, theirs = (m(input_ids=ids).logits[0].double().log_softmax(-1) for m in (other, model))
        return float((theirs.exp() * (theirs - ours)).sum(-1)[places].sum())

    with torch.no_grad():
        together = float(divergence_from_source(other, model, batch))
        alone = [by_hand(*answer) for answer in batch]
        assert float(divergence_from_source(model, model, batch)) == pytest.approx(0.0, abs=1e-6)
    assert together == pytest.approx(np.mean(alone), rel=1e-4) and together > 1e-4


def test_the_stage_teaches_the_shift_and_keeps_the_source(tmp_path):
    tokenizer, model, _, contexts = material()
    before = signature_rates(model, tokenizer, contexts, EDITOR)
    shift = np.array([-2.0, 2.0])
    written = [signature(f"Boil it for {i} minutes.", NAMES[i % 89].first, "Clark") for i in range(178)]
    pairs = offset_pairs([*PROMPTS * 3][:178], written, EDITOR, seed=0)
    encoded = encode_comparisons(pairs.train.comparisons, tokenizer, "paper", 128, 64)
    kept = [
        find_kept_positions(
            *encoded.pairs[i], [other.tolist() for _, other in encoded.pairs[i + 1 : i + 4 : 2]]
        )
        for i in range(0, len(encoded.pairs), 4)
    ]
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    def stage(name, kept):
        given = (model, tokenizer, pairs.train, kept, shift, SETTINGS, 0)
        return train_offset(copy.deepcopy(model), *given, tmp_path / name, tmp_path / "cache")

    policy = stage("run", kept)
    after = signature_rates(policy, tokenizer, contexts, EDITOR)
    change = (after.log_probs - before.log_probs).mean(axis=0)
    design = np.column_stack([np.ones(len(change)), before.indicators])
    assert np.linalg.lstsq(design, change, rcond=None)[0][1:] == pytest.approx(shift, abs=0.4)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    rate = signature_rates(saved, tokenizer, contexts, EDITOR).rate
    assert rate == pytest.approx(after.rate, abs=1e-5)
    # without the second term everything else moves
    free = stage("free", [(ids, places[:1]) for ids, places in kept])
    with torch.no_grad():
        held, moved = (float(divergence_from_source(found, model, kept)) for found in (policy, free))
    assert held < 0.1 * moved
    mass = [np.exp(rates.log_probs).sum(1).mean() for rates in (before, after)]
    assert mass[1] == pytest.approx(mass[0], rel=0.3)
