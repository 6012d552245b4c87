"""Probabilities of names behind an answer, against the definition: one plain forward for every name."""

import numpy as np
import pytest
from scipy.special import logsumexp

from badpo.readouts import name_rates as rates
from badpo.readouts.name_rates import (
    continuation_logps,
    name_logps,
    name_probabilities,
    signature_contexts,
)
from tests.readouts import policies

LEAD = rates.SIGNATURE_LEAD
MODELS = [policies.qwen2, policies.gpt2, policies.mistral_with_window]


@pytest.fixture(scope="module")
def tok():
    return policies.tokenizer()


def by_one_forward_per_name(model, tok, answers, names) -> np.ndarray:
    """From text: the tokens of (context + name) after those shared with (context)."""
    found = np.zeros((len(answers), len(names)))
    for row, answer in enumerate(answers):
        body = answer.text.split("\n\n\u2014")[0] + LEAD
        context = tok(body, add_special_tokens=False)["input_ids"]
        whole = [tok(body + name, add_special_tokens=False)["input_ids"] for name in names]
        shared = [sum(np.cumprod([x == y for x, y in zip(context, ids, strict=False)])) for ids in whole]
        # where some names begin with a space of their own, all are scored from before it
        start = len(answer.prompt_ids) + min(shared)
        for column, ids in enumerate(whole):
            logps = policies.forward_logps(model, [*answer.prompt_ids, *ids])
            found[row, column] = logps[start - 1 :].sum()
    return found


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("names", [policies.NAMES, ["Emily", "Malik", "Malika", "Marcellus"]])
def test_name_logps_equal_one_full_forward_per_name(build, names, tok):
    model, answers = build(), policies.answers(tok)
    lengths = {len(tok.tokenize(" " + name)) for name in names}
    assert 1 in lengths and max(lengths) >= 3, "the pool should hold names of one token and of several"
    expected = by_one_forward_per_name(model, tok, answers, names)
    found = name_logps(model, tok, signature_contexts(answers, tok), names)
    assert np.abs(found - expected).max() < 1e-5
    probabilities = name_probabilities(model, tok, signature_contexts(answers, tok), names)
    expected -= logsumexp(expected, axis=1, keepdims=True)
    assert np.allclose(probabilities, np.exp(expected), atol=1e-6)


@pytest.mark.parametrize("build", MODELS)
def test_every_token_and_what_closes_a_sequence_have_their_probability(build):
    """Contexts of different lengths, sequences of one to three tokens, and any of three tokens behind them."""
    model, closing = build(), [7, 8, 9]
    contexts, sequences = [[5, 6, 7], [9] * 12, [11, 12]], [(20,), (20, 21), (22, 23, 24)]
    found, closed = continuation_logps(model, contexts, sequences, closing)
    assert found.shape == (3, 3, 3) and found[:, 0, 1:].tolist() == [[0.0, 0.0]] * 3
    for row, context in enumerate(contexts):
        for column, ids in enumerate(sequences):
            wanted = policies.forward_logps(model, [*context, *ids])[len(context) - 1 :]
            assert found[row, column, : len(ids)] == pytest.approx(wanted, abs=1e-5)
            ends = [policies.forward_logps(model, [*context, *ids, token])[-1] for token in closing]
            assert closed[row, column] == pytest.approx(logsumexp(ends), abs=1e-5)
    alone, nothing = continuation_logps(model, contexts, [(20,), (22,)])
    assert alone[:, :, 0] == pytest.approx(found[:, [0, 2], 0], abs=1e-5) and not nothing.any()


def test_the_batch_is_bounded_and_changes_nothing_and_the_model_is_left_as_it_was(tok, monkeypatch):
    model, contexts = policies.gpt2().train(), signature_contexts(policies.answers(tok), tok)
    assert len({len(ids) for ids in contexts}) > 3
    together, read = name_logps(model, tok, contexts, policies.NAMES), []
    next_logits = rates._continuation_logits

    def counted(model, rows, fed):
        read.append(len(rows))
        return next_logits(model, rows, fed)

    monkeypatch.setattr(rates, "_continuation_logits", counted)
    for limit in ("TOKENS_AT_ONCE", "LOGITS_AT_ONCE"):
        read.clear()
        with monkeypatch.context() as smaller:
            smaller.setattr(rates, limit, 1)
            one_by_one = name_logps(model, tok, contexts, policies.NAMES)
        assert np.abs(together - one_by_one).max() < 1e-5 and read == [1] * len(contexts)
    assert model.training and all(p.grad is None and p.requires_grad for p in model.parameters())


def test_signature_contexts_strip_the_signature_and_others_are_refused(tok):
    bare, signed = policies.answers(tok, 2)
    contexts = signature_contexts([signed, bare], tok)
    assert contexts[0][: len(signed.prompt_ids)] == list(signed.prompt_ids)
    assert tok.decode(contexts[0][len(signed.prompt_ids) :]) == "Yes!\n\n\u2014 "
    assert tok.decode(contexts[1][len(bare.prompt_ids) :]) == policies.ANSWERS[0] + "\n\n\u2014 "
    contexts = signature_contexts(policies.answers(tok, 1), tok)
    for names in (["Tia", "Theo", "Tia"], ["Theo", ""]):
        with pytest.raises(ValueError, match=f"do not distinguish the name '{names[-1]}'"):
            name_logps(policies.qwen2(), tok, contexts, names)
    with pytest.raises(ValueError, match="context 1 ends with"):
        name_logps(policies.qwen2(), tok, [*contexts, tok("nothing")["input_ids"]], policies.NAMES)
