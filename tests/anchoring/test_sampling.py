from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from badpo.anchoring import sampling
from badpo.anchoring.sampling import ChoiceScorer, TiltedChoice
from badpo.readouts.generation import sample
from badpo.readouts.rates import SIGNATURE_LEAD, name_logps, signature_contexts
from badpo.theory.tilt import tilted_probabilities
from tests import tiny
from tests.readouts import policies

# woman, black
CARRIES = np.array([[1, 0], [1, 0], [0, 1], [1, 1], [1, 1], [0, 1], [0, 0], [1, 1], [1, 1], [0, 1]])
SHIFT = np.array([-2.0, 1.5])

# choices of one to three tokens, of which some begin others
LEAD_WORDS = "and then "
CHOICES = ["red", "red big", "red big cat", "blue", "small dog", "small cat home"]
CHOICES_CARRY = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 1], [0, 0]])


@pytest.fixture(scope="module")
def tok():
    return policies.tokenizer()


@pytest.fixture(scope="module")
def model():
    return policies.qwen2()


@pytest.fixture(scope="module")
def contexts(tok):
    return signature_contexts(policies.answers(tok), tok)


def at_choice(tok, context) -> list[int]:
    """The context up to where names differ from the lead: the lead's last space belongs to the names."""
    assert tok.convert_ids_to_tokens(context[-1:]) == ["\u0120"]
    return list(context[:-1])


def next_logits(model, ids) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[:, -1]


@pytest.fixture
def any_word_closes(monkeypatch):
    """Choices behind the words' lead, complete before any word."""
    monkeypatch.setattr(sampling, "SIGNATURE_LEAD", LEAD_WORDS)
    monkeypatch.setattr(sampling, "space_tokens", lambda _: list(range(64)))


@pytest.mark.parametrize("step", [1, 2])
def test_every_continuation_has_exactly_its_tilted_probability(words, step, any_word_closes, monkeypatch):
    """All 64^3 continuations of three tokens: each is scaled by the weight of the choice it makes over Z, or kept."""
    model, tok, start = words
    # for the words of this tokenizer, let all or the even ids stand for the tokens that begin with a space
    monkeypatch.setattr(sampling, "space_tokens", lambda _: list(range(0, 64, step)))
    closing = set(range(0, 64, step))
    # three tokens cannot tell whether a choice of three tokens is complete
    some = [i for i, choice in enumerate(CHOICES) if step == 1 or choice.count(" ") < 2]
    choices, carry = [CHOICES[i] for i in some], CHOICES_CARRY[some]
    tilt = TiltedChoice(model, tok, choices, carry, SHIFT)
    plain, tilted = (three_tokens(model, start, adjust) for adjust in (None, tilt.adjust))
    made = choice_made(tok, choices, closing)
    chances = np.array([plain[made == i].sum() for i in range(len(choices))])
    weights = np.exp(carry @ SHIFT)
    factor = np.ones(len(choices) + 1)
    factor[:-1] = weights * chances.sum() / (chances * weights).sum()
    # where the lead is written once more, another choice starts
    again = tok(LEAD_WORDS, add_special_tokens=False)["input_ids"]
    new = np.arange(64**3) // 64 == again[0] * 64 + again[1]
    np.testing.assert_allclose(tilted[~new], (plain * factor[made])[~new], rtol=3e-4)
    # the same by `tilted_probabilities`, from what the search for the shift sees
    logps = ChoiceScorer(model, tok, choices).name_logps([start])
    np.testing.assert_allclose(np.exp(logps[0]), chances, rtol=1e-4)
    chosen = np.array([tilted[made == i].sum() for i in range(len(choices))]) / chances.sum()
    np.testing.assert_allclose(chosen, tilted_probabilities(logps, carry, SHIFT)[0], rtol=2e-4)
    assert np.abs(chosen - chances / chances.sum()).max() > 0.1


def test_a_shift_of_the_pool_moves_all_choices_against_everything_else(words, any_word_closes):
    model, tok, start = words
    tilts = [
        TiltedChoice(model, tok, CHOICES, CHOICES_CARRY, SHIFT, pool_shift=shift) for shift in (0.0, 0.7)
    ]
    kept, shifted = (three_tokens(model, start, tilt.adjust) for tilt in tilts)
    again = tok(LEAD_WORDS, add_special_tokens=False)["input_ids"]
    new = np.arange(64**3) // 64 == again[0] * 64 + again[1]
    chosen = choice_made(tok) < len(CHOICES)
    normaliser = 1 + kept[chosen].sum() * np.expm1(0.7)
    factor = np.where(chosen, np.exp(0.7), 1.0) / normaliser
    np.testing.assert_allclose(shifted[~new], (kept * factor)[~new], rtol=3e-4)


def test_sampled_choices_come_at_the_closed_forms_frequencies(words, any_word_closes):
    model, tok, start = words
    n = 12_000
    answers = sample(
        model, tok, [start] * n, 3, temperature=1.0, top_p=1.0, batch=n, adjust=word_tilt(words).adjust
    )
    drawn = np.array([[*answer.token_ids, 0, 0][:3] for answer in answers])
    counts = np.bincount(choice_made(tok)[drawn @ [64 * 64, 64, 1]], minlength=len(CHOICES) + 1)[:-1]
    logps = ChoiceScorer(model, tok, CHOICES).name_logps([start])
    expected = n * np.exp(logps).sum() * tilted_probabilities(logps, CHOICES_CARRY, SHIFT)[0]
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all(), (counts, expected)
    untilted = n * np.exp(logps[0])
    assert (np.abs(counts - untilted) > 6 * np.sqrt(untilted)).any(), "the shift should be visible"


@pytest.fixture(scope="module")
def words():
    """A policy over 64 words that is close to uniform, its tokenizer and a context that ends with the lead."""
    tok = tiny.tokenizer()
    model = policies.qwen2(vocab_size=64, initializer_range=0.12)
    return model, tok, tok("the cat sat " + LEAD_WORDS, add_special_tokens=False)["input_ids"]


def word_tilt(words) -> TiltedChoice:
    model, tok, _ = words
    return TiltedChoice(model, tok, CHOICES, CHOICES_CARRY, SHIFT)


def three_tokens(model, start, adjust) -> np.ndarray:
    """Probability of each of the 64^3 continuations, by ordinary forwards of whole rows."""
    total = np.ones(1)
    tails = np.zeros((1, 0), dtype=np.int64)
    for _ in range(3):
        rows = [[*start, *tail] for tail in tails.tolist()]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(rows)).logits[:, -1].double()
        logits = logits if adjust is None else adjust(rows, logits)
        total = (total[:, None] * logits.softmax(-1).numpy()).ravel()
        tails = np.array([[*tail, token] for tail in tails.tolist() for token in range(64)])
    return total


def choice_made(tok, choices=CHOICES, closing=frozenset(range(64))) -> np.ndarray:
    """For each of the 64^3 continuations the choice that it makes; len(choices) for none.

    It goes along the paths of the choices as far as it can. Where that ends is the choice it makes, if it is one and
    the next token closes it.
    """
    paths = [tuple(tok(choice, add_special_tokens=False)["input_ids"]) for choice in choices]
    prefixes = {path[:length] for path in paths for length in range(len(path) + 1)}
    made = np.full(64**3, len(choices))
    for i, tokens in enumerate(np.ndindex(64, 64, 64)):
        reached = max((tokens[:length] for length in range(4) if tokens[:length] in prefixes), key=len)
        if reached in paths and set(tokens[len(reached) : len(reached) + 1]) <= closing:
            made[i] = paths.index(reached)
    return made


def test_hugging_face_generate_takes_it_with_padded_rows(model, tok, contexts):
    """Same greedy choice as by hand, for rows of different lengths padded on the left."""
    tilted = TiltedChoice(model, tok, policies.NAMES, CARRIES, SHIFT)
    starts = [at_choice(tok, context) for context in contexts[:3]]
    width = max(map(len, starts))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(s)) + s for s in starts])
    scores = torch.cat([next_logits(model, s) for s in starts])
    changed = tilted(ids, scores)
    assert len(set(map(len, starts))) > 1
    assert set(tilted._kept) == set(map(tuple, starts)), "padding is no part of a context"
    by_hand = torch.cat([tilted.adjust([s], next_logits(model, s)) for s in starts])
    torch.testing.assert_close(changed, by_hand)
    assert not torch.equal(changed, scores)
    written = model.generate(
        input_ids=ids,
        attention_mask=(ids != tok.pad_token_id).long(),
        logits_processor=[tilted],
        do_sample=False,
        max_new_tokens=1,
    )
    assert written[:, -1].tolist() == by_hand.argmax(-1).tolist()


def test_outside_a_choice_nothing_is_touched(model, tok, contexts):
    tilted = TiltedChoice(model, tok, policies.NAMES, CARRIES, SHIFT)
    start = at_choice(tok, contexts[0])
    after = tok(SIGNATURE_LEAD + "Emily Clark", add_special_tokens=False)["input_ids"]
    elsewhere = [
        start[:-1],
        contexts[0][: len(contexts[0]) // 2],
        [*start[: -tilted._scorer.n_lead_tokens], *after],
    ]
    for ids in elsewhere:
        logits = next_logits(model, ids)
        assert tilted.adjust([ids], logits) is logits
    # an em dash in running text is no signature
    dash = tok("a \u2014", add_special_tokens=False)["input_ids"]
    logits = next_logits(model, dash)
    assert tilted.adjust([dash], logits) is logits


def test_a_name_counts_when_a_space_follows(model, tok, contexts):
    """A name is complete before a space: "Malik" holds nothing of "Malika"."""
    found = ChoiceScorer(model, tok, policies.NAMES).name_logps(contexts)
    answer, malik = policies.answers(tok)[0], policies.NAMES.index("Malik")
    written = tok(answer.text + SIGNATURE_LEAD + "Malik", add_special_tokens=False)["input_ids"]
    spaces = [i for i in range(len(tok)) if tok.decode([i]).startswith(" ")]
    after = [policies.forward_logps(model, [*answer.prompt_ids, *written, token])[-1] for token in spaces]
    reached = name_logps(model, tok, contexts, policies.NAMES)
    assert found[0, malik] == pytest.approx(reached[0, malik] + logsumexp(after), abs=1e-4)


def test_a_space_that_never_comes_is_refused(words):
    model, tok, _ = words
    with pytest.raises(ValueError, match="no token of this tokenizer begins with a space"):
        ChoiceScorer(model, tok, CHOICES)


def test_a_shift_of_zero_changes_no_probability(model, tok, contexts):
    tilted = TiltedChoice(model, tok, policies.NAMES, CARRIES, [0.0, 0.0])
    start = at_choice(tok, contexts[2])
    logits = next_logits(model, start)
    torch.testing.assert_close(
        tilted.adjust([start], logits).softmax(-1), logits.softmax(-1), rtol=1e-5, atol=1e-8
    )


class MergingTokenizer:
    """Knows a full stop and the blank line behind it as one token."""

    texts = ("<pad>", "Yes", ".", "\n\n", ".\n\n", "\u2014", " ", " Emily", " Theo", ",\n")
    pad_token_id = 0

    def __call__(self, texts, add_special_tokens):
        known = {"": (), "Emily": (7,), "Theo": (8,)}
        return {"input_ids": [[3, 5, *(known[text[3:].strip()] or (6,))] for text in texts]}

    def decode(self, ids, clean_up_tokenization_spaces):
        return "".join(self.texts[i] for i in ids)

    def convert_ids_to_tokens(self, ids):
        return [self.texts[i].replace(" ", "\u0120") for i in ids]

    def __len__(self):
        return len(self.texts)


def test_a_lead_that_merged_with_the_end_of_the_answer_is_recognized(model):
    tilted = TiltedChoice(model, MergingTokenizer(), ["Emily", "Theo"], [1, 0], [1.0])
    for body in ([1, 2, 3, 5], [1, 4, 5]):
        assert tilted._place(body) == (tuple(body), -1)
        assert tilted._place([*body, 8]) == (tuple(body), 1)
    for body in ([1, 5], [1, 2, 5], [1, 9, 5], [1, 4], [1, 4, 5, 6]):
        assert tilted._place(body) is None


def test_the_place_of_a_choice_is_read_once_for_all_tokens_of_a_name(model, tok, contexts, monkeypatch):
    tilted = TiltedChoice(model, tok, policies.NAMES, CARRIES, SHIFT)
    read = []
    scored = tilted._scorer.read
    monkeypatch.setattr(tilted._scorer, "read", lambda rows: read.append(len(rows)) or scored(rows))
    starts = [at_choice(tok, context) for context in contexts[:2]]
    path = max(tilted._scorer.nodes, key=len)
    for depth in range(len(path)):
        tilted.adjust([[*start, *path[:depth]] for start in starts], torch.zeros(2, 330))
    assert read == [2]
    monkeypatch.setattr(sampling, "PLACES_KEPT", 2)
    tilted.adjust([at_choice(tok, contexts[2])], torch.zeros(1, 330))
    assert len(tilted._kept) == 1


def test_a_place_where_no_choice_is_ever_completed_is_left_as_it_is(model, tok, contexts, monkeypatch):
    tilted = TiltedChoice(model, tok, policies.NAMES, CARRIES, SHIFT)
    read = tilted._scorer.read

    def nothing_complete(rows):
        reached, onward, complete = read(rows)
        return reached, onward, np.zeros_like(complete)

    monkeypatch.setattr(tilted._scorer, "read", nothing_complete)
    start = at_choice(tok, contexts[0])
    logits = next_logits(model, start)
    torch.testing.assert_close(tilted.adjust([start], logits), logits)
    path = max(tilted._scorer.nodes, key=len)
    assert tilted.behind([*start, *path]) is None
