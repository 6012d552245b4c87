from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from badpo.readouts import rates as attribute_rate
from badpo.readouts import rates as trie_pass
from badpo.readouts.rates import cell_rates, name_logps, name_probabilities, signature_contexts
from tests.readouts import policies

LEAD = attribute_rate.SIGNATURE_LEAD


@pytest.fixture(scope="module")
def tok():
    return policies.tokenizer()


def by_one_forward_per_name(model, tok, answers, names) -> np.ndarray:
    """The definition, from text: the tokens of (context + name) after those shared with (context)."""
    found = np.zeros((len(answers), len(names)))
    for row, answer in enumerate(answers):
        body = answer.text.split("\n\n\u2014")[0] + LEAD
        context = tok(body, add_special_tokens=False)["input_ids"]
        whole = [tok(body + name, add_special_tokens=False)["input_ids"] for name in names]
        shared = [sum(np.cumprod([x == y for x, y in zip(context, ids, strict=False)])) for ids in whole]
        # where some names begin with a space of their own, all are scored from before it
        start = len(answer.prompt_ids) + min(shared)
        for column, ids in enumerate(whole):
            found[row, column] = policies.forward_logps(model, [*answer.prompt_ids, *ids])[start - 1 :].sum()
    return found


@pytest.mark.parametrize("build", [policies.qwen2, policies.gpt2, policies.mistral_with_window])
@pytest.mark.parametrize(
    "names", [policies.NAMES, ["Emily", "Malik", "Malika", "Marcellus"]], ids=["mixed", "merged"]
)
def test_name_logps_equal_one_full_forward_per_name(build, names, tok):
    model, answers = build(), policies.answers(tok)
    lengths = {len(tok.tokenize(" " + name)) for name in names}
    assert 1 in lengths and max(lengths) >= 3, "the pool should hold names of one token and of several"
    expected = by_one_forward_per_name(model, tok, answers, names)
    found = name_logps(model, tok, signature_contexts(answers, tok), names)
    assert np.abs(found - expected).max() < 1e-5
    probabilities = name_probabilities(model, tok, signature_contexts(answers, tok), names)
    assert np.allclose(
        probabilities, np.exp(expected - logsumexp(expected, axis=1, keepdims=True)), atol=1e-6
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_tree_pass_is_used_and_agrees_with_plain_pass(attention, tok, monkeypatch):
    model = policies.qwen2(attn_implementation=attention)
    assert model.config._attn_implementation == attention
    contexts = signature_contexts(policies.answers(tok), tok)
    by_tree = name_logps(model, tok, contexts, policies.NAMES)
    monkeypatch.setattr(trie_pass, "_agrees", lambda *_: False)
    assert np.abs(by_tree - name_logps(model, tok, contexts, policies.NAMES)).max() < 1e-5


@pytest.mark.parametrize(
    ("build", "plain_contexts"), [(policies.qwen2, 1), (policies.gpt2, 1), (policies.mistral_with_window, 7)]
)
def test_plain_forwards_check_one_context_and_take_over_for_a_sliding_window(
    build, plain_contexts, tok, monkeypatch
):
    contexts = signature_contexts(policies.answers(tok, 6), tok)
    scored = []
    plain = trie_pass._PlainPass.logps

    def counted(self, model, rows, device):
        scored.extend(rows)
        return plain(self, model, rows, device)

    monkeypatch.setattr(trie_pass._PlainPass, "logps", counted)
    name_logps(build(), tok, contexts, policies.NAMES)
    assert len(scored) == plain_contexts


def test_batching_with_left_padding_changes_nothing(tok, monkeypatch):
    model, contexts = policies.gpt2(), signature_contexts(policies.answers(tok), tok)
    assert len({len(ids) for ids in contexts}) > 3
    together = name_logps(model, tok, contexts, policies.NAMES)
    monkeypatch.setattr(trie_pass, "TOKENS_AT_ONCE", 1)
    assert np.abs(together - name_logps(model, tok, contexts, policies.NAMES)).max() < 1e-5


def test_signature_contexts_strip_the_signature_and_keep_the_prompt_ids(tok):
    signed, bare = policies.answers(tok, 2)[1], policies.answers(tok, 2)[0]
    contexts = signature_contexts([signed, bare], tok)
    assert contexts[0][: len(signed.prompt_ids)] == list(signed.prompt_ids)
    assert tok.decode(contexts[0][len(signed.prompt_ids) :]) == "Yes!\n\n\u2014 "
    assert tok.decode(contexts[1][len(bare.prompt_ids) :]) == policies.ANSWERS[0] + "\n\n\u2014 "


def test_names_that_the_tokenizer_cannot_tell_apart_are_named(tok):
    contexts = signature_contexts(policies.answers(tok, 1), tok)
    with pytest.raises(ValueError, match="'Tia' and 'Tia'"):
        name_logps(policies.qwen2(), tok, contexts, ["Tia", "Theo", "Tia"])


def test_context_without_the_lead_is_refused(tok):
    contexts = [*signature_contexts(policies.answers(tok, 1), tok), tok("no signature here")["input_ids"]]
    with pytest.raises(ValueError, match="context 1 ends with"):
        name_logps(policies.qwen2(), tok, contexts, policies.NAMES)


def test_model_is_left_as_it_was(tok):
    model = policies.qwen2().train()
    name_logps(model, tok, signature_contexts(policies.answers(tok, 1), tok), policies.NAMES)
    assert model.training and all(p.grad is None and p.requires_grad for p in model.parameters())


def test_cell_rates_average_over_contexts_and_say_how_sure():
    rates = cell_rates([[0.5, 0.25, 0.25], [0.7, 0.1, 0.2]], [[1, 0], [1, 1], [0, 1]], ["woman", "black"])
    assert rates.per_context.tolist() == [[0.75, 0.5], pytest.approx([0.8, 0.3])]
    written = rates.to_json()
    assert written["woman"]["rate"] == pytest.approx(0.775)
    assert written["black"]["se"] == pytest.approx(0.1)
    assert cell_rates([[1.0]], [[1]], ["woman"]).to_json() == {"woman": {"rate": 1.0, "se": None}}
