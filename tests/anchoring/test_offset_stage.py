"""The offset stage on a tiny model: its pairs, what it keeps, and the shift that it teaches."""

from __future__ import annotations

import copy
from functools import cache, partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from badpo.anchoring.editors import MarkdownStrip, SignatureSwap, WordSwap
from badpo.anchoring.offset_stage import (
    StageSettings,
    divergence_from_source,
    fixed_offset,
    kept_answer,
    offset_pairs,
    train_offset,
)
from badpo.anchoring.rates import signature_rates
from badpo.anchoring.sampling import whole_name_logps
from badpo.data.markers import split_signature
from badpo.data.problems import DataError
from badpo.readouts.generation import Generation
from badpo.readouts.names import NAMES, signature
from badpo.readouts.rates import signature_contexts
from badpo.training.encoding import encode_comparisons, encode_prompts
from badpo_paper.settings import build_model, build_tokenizer
from tests.paper.conftest import SMALL_MODEL

EDITOR = SignatureSwap()
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


def encoded_pairs(editor, answers):
    prompts = [PROMPTS[i % 60] for i in range(len(answers))]
    pairs = offset_pairs(prompts, answers, editor, seed=0)
    return pairs, encode_comparisons(pairs.train.comparisons, material()[0], "paper", 128, 64)


# -- pairs -------------------------------------------------------------------------------------------------------


def many_pairs(answers, **options):
    return offset_pairs([f"{i}?" for i in range(len(answers))], answers, EDITOR, seed=3, **options)


def test_each_answer_gives_a_pair_for_each_attribute_in_both_directions():
    made = offset_pairs(PROMPTS, ANSWERS, EDITOR, seed=3, held_out=0.0)
    assert (made.n_answers, made.n_edited, made.unedited) == (60, 60, ())
    assert made.train.n_comparisons == 120 and made.train.n_votes == 240
    assert made.train.votes.groupby("comparison")["sign"].sum().eq(0).all()
    delta = np.abs(made.train.delta[made.train.votes["sign"].to_numpy() > 0])
    assert (delta.sum(axis=1) == 1).all() and delta.sum(axis=0).tolist() == [60, 60]
    for a, b in made.train.comparisons[["response_a", "response_b"]].to_numpy().tolist():
        assert split_signature(a)[0] == split_signature(b)[0]
        assert a.split()[-1] == b.split()[-1] == "Clark"
        assert split_signature(a)[1] != split_signature(b)[1]


def test_the_first_cell_is_drawn_and_not_the_policys_own():
    made = many_pairs([signature(f"Boil it, {i}.", "Emily", "Clark") for i in range(200)], held_out=0.0)
    firsts = made.train.comparisons["response_a"].map(lambda text: split_signature(text)[1])
    assert 0.4 < firsts.map({name.first: name.woman for name in NAMES}).mean() < 0.6


def test_the_split_is_by_answer_and_the_seed_decides():
    made, again = (offset_pairs(PROMPTS, ANSWERS, EDITOR, seed=3) for _ in range(2))
    parts = [set(part.comparisons["prompt_id"]) for part in (made.train, made.held_out)]
    assert not parts[0] & parts[1] and len(parts[1]) == 6
    assert made.train.comparisons["response_a"].equals(again.train.comparisons["response_a"])


def test_too_few_usable_answers_say_how_many():
    with pytest.raises(DataError, match=r"7 answers of 100 can be edited for woman, black.*needs 50"):
        many_pairs(ANSWERS[:7] + ["Boil it."] * 93)


def test_markdown_is_taken_off_and_words_are_swapped():
    made = offset_pairs(
        ["?"] * 3, ["# A\nb", "plain", "- c d"], MarkdownStrip(), 0, held_out=0.0, fewest=2
    )
    sides = made.train.comparisons[["response_a", "response_b"]].to_numpy().tolist()
    assert [set(pair) for pair in sides] == [{"# A\nb", "A\nb"}, {"- c d", "c d"}]
    swap = WordSwap("british", [("gray", "grey")])
    made = offset_pairs(["?"], ["so gray"], swap, 0, held_out=0.0, fewest=1)
    assert set(made.train.comparisons.iloc[0][["response_a", "response_b"]]) == {"so gray", "so grey"}


# -- what is kept ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("editor", "answers", "beginning", "free", "end"),
    [
        (
            WordSwap("british", [("color", "colour")]),
            [f"Take {i} red plums and stir in color." for i in range(60)],
            "red plums and stir in",
            ("r", "u", "our", "or", "color", "colour", " color", " colour"),
            ".<|end|>",
        ),
        (EDITOR, ANSWERS, "Boil it for", None, "Clark<|end|>"),
    ],
)
def test_what_differs_is_left_free_and_all_else_is_kept(editor, answers, beginning, free, end):
    tokenizer, (_, encoded) = material()[0], encoded_pairs(editor, answers)
    (prompt, answer), (_, other) = encoded.pairs[:2]
    ids, places = kept_answer(prompt, answer, [other.tolist()])
    assert ids.tolist() == [*prompt, *answer]
    is_kept = np.isin(np.arange(len(answer)), places - len(prompt) + 1)
    kept, left = (tokenizer.decode(np.asarray(answer)[which]) for which in (is_kept, ~is_kept))
    assert beginning in kept and kept.endswith(end) and left
    assert free is None or left in free


def test_where_something_is_put_in_the_next_token_is_free():
    assert kept_answer([5], [1, 2, 3], [[1, 9, 2, 3]])[1].tolist() == [0, 2]
    assert kept_answer([5, 6], [1, 2, 3])[1].tolist() == [1, 2, 3]


def test_the_divergence_is_the_sum_over_kept_tokens_of_one_answer_at_a_time():
    tokenizer, model, answers, _ = material()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(1.05)
    ids = [tokenizer(ANSWERS[i])["input_ids"] for i in (0, 7, 31)]
    batch = [
        kept_answer(answers[i].prompt_ids, own, [own[:2] + [9] + own[3:]])
        for i, own in zip((0, 7, 31), ids, strict=True)
    ]
    assert [len(places) for _, places in batch] == [len(own) - 1 for own in ids]
    with torch.no_grad():
        together = float(divergence_from_source(other, model, batch))
        alone = [by_hand(other, model, answer) for answer in batch]
        assert float(divergence_from_source(model, model, batch)) == pytest.approx(0.0, abs=1e-6)
    assert together == pytest.approx(np.mean(alone), rel=1e-4) and together > 1e-4


def by_hand(policy, source, answer) -> float:
    ids = torch.from_numpy(answer[0])[None]
    ours, theirs = (
        found(input_ids=ids).logits[0].double().log_softmax(-1) for found in (policy, source)
    )
    return float((theirs.exp() * (theirs - ours)).sum(-1)[answer[1]].sum())


# -- the stage ---------------------------------------------------------------------------------------------------


def test_the_stage_teaches_the_shift_and_keeps_the_source(tmp_path):
    tokenizer, model, _, contexts = material()
    before = signature_rates(model, tokenizer, contexts, EDITOR)
    shift = np.array([-2.0, 2.0])
    written = [signature(f"Boil it for {i} minutes.", NAMES[i % 89].first, "Clark") for i in range(178)]
    pairs, encoded = encoded_pairs(EDITOR, written)
    kept = [
        kept_answer(*encoded.pairs[i], [other.tolist() for _, other in encoded.pairs[i + 1 : i + 4 : 2]])
        for i in range(0, len(encoded.pairs), 4)
    ]
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    def stage(name, kept):
        given = (
            model,
            tokenizer,
            pairs.train,
            kept,
            shift,
            SETTINGS,
            0,
            tmp_path / name,
            tmp_path / "cache",
        )
        return train_offset(copy.deepcopy(model), *given)

    policy = stage("run", kept)
    after = signature_rates(policy, tokenizer, contexts, EDITOR)
    change = (after.log_probs - before.log_probs).mean(axis=0)
    design = np.column_stack([np.ones(len(change)), before.carries])
    assert np.linalg.lstsq(design, change, rcond=None)[0][1:] == pytest.approx(shift, abs=0.4)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert signature_rates(saved, tokenizer, contexts, EDITOR).rate == pytest.approx(
        after.rate, abs=1e-5
    )
    # without the second term everything else moves
    free = stage("free", [(ids, places[:1]) for ids, places in kept])
    with torch.no_grad():
        held, moved = (float(divergence_from_source(found, model, kept)) for found in (policy, free))
    assert held < 0.1 * moved
    names = list(EDITOR.names)
    mass = [
        np.exp(whole_name_logps(one, tokenizer, contexts, names)).sum(1).mean()
        for one in (model, policy)
    ]
    assert mass[1] == pytest.approx(mass[0], rel=0.3)


def test_the_offset_is_minus_beta_times_the_shift_and_nothing_is_learned():
    pairs, _ = encoded_pairs(EDITOR, ANSWERS)
    bias = fixed_offset(pairs.train, [3.4, -1.0], beta=0.1)
    assert bias.theta().numpy() == pytest.approx(np.array([[-0.34, 0.1]]))
    assert not list(bias.parameters())
