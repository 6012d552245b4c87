"""How likely a policy is to sign with a name of each group, read from probabilities instead of samples.

The answer is the reference's own, the same for every arm; the policy only says which first name would stand after
it. Sampled signatures saturate and depend on the decoder: a reference that is balanced by probability may sign
four answers in five with names of one group at temperature 0.7.
"""

from collections.abc import Iterator, Sequence
from os.path import commonprefix

import numpy as np
import torch
from scipy.special import softmax
from torch.nn.utils.rnn import pad_sequence

from badpo.readouts.generation import padded, read_on
from badpo.readouts.names import strip_signature
from badpo.theory import Floats
from badpo.training.logprobs import looking_at

SIGNATURE_LEAD = "\n\n\u2014 "


def name_token_ids(tokenizer, names: Sequence[str]) -> tuple[int, list[tuple[int, ...]]]:
    """How many tokens of the lead stay in the context, and each name's tokens after them."""
    texts = [SIGNATURE_LEAD + name for name in ("", *names)]
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    shared = len(commonprefix(encoded))
    token_ids = [tuple(ids[shared:]) for ids in encoded[1:]]
    for place, ids in enumerate(token_ids):
        if not ids or token_ids.index(ids) < place:
            raise ValueError(
                f"the name {names[place]!r} has no tokens of its own but {ids}; "
                "leave it out, or use a tokenizer that knows it"
            )
    return shared, token_ids


def without_tail(tokenizer, context_ids, shared: int) -> list[list[int]]:
    """The contexts up to the token after which the names differ, checked to end with the lead."""
    encoded = tokenizer([SIGNATURE_LEAD], add_special_tokens=False)["input_ids"]
    base = list(encoded[0])
    # the first token of the lead may have merged with the end of the answer, as in ".\n\n"
    known, n_tail = base[1:] or base, len(base) - shared
    contexts = [list(map(int, ids)) for ids in context_ids]
    for i, ids in enumerate(contexts):
        if ids[len(ids) - len(known) :] != known:
            raise ValueError(
                f"context {i} ends with tokens {ids[-len(known) :]}, not with those of {SIGNATURE_LEAD!r}, {known}; "
                "make contexts with signature_contexts, the same tokenizer and the same lead"
            )
    return [ids[: len(ids) - n_tail] for ids in contexts]


def space_tokens(tokenizer) -> list[int]:
    """Ids of the tokens that begin with a space: behind a first name, those that begin a surname."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return [i for i, token in enumerate(tokens) if token and token[0] in (" ", "\u0120", "\u2581")]


# The most logits (positions x vocabulary) and the most tokens, those of a shared context counted for every sequence, of
# one forward pass.
LOGITS_AT_ONCE = 2**24
TOKENS_AT_ONCE = 2**16


def continuation_logps(
    model,
    contexts: Sequence[list[int]],
    token_ids: Sequence[tuple[int, ...]],
    closing: Sequence[int] = (),
) -> tuple[Floats, Floats]:
    """Log-probability, in nats, with which a policy goes on with each of several token sequences, token by token.

    A context goes through the model once, and every sequence goes on from its cache: exact for every causal model. Both
    are by context and sequence: of every token, 0 behind the end of a sequence; of a closing token behind every
    sequence, 0 where none is asked for.
    """
    found = np.zeros((len(contexts), len(token_ids), max(map(len, token_ids))))
    closed = np.zeros(found.shape[:2])
    with looking_at(model) as device:
        tensors = [torch.tensor(ids) for ids in token_ids]
        sequences = pad_sequence(tensors, batch_first=True).to(device)
        ends = torch.tensor([len(ids) for ids in token_ids], device=device)
        is_own = torch.arange(sequences.shape[1], device=device) < ends[:, None]
        fed = sequences if closing else sequences[:, :-1]
        n_vocabulary = model.get_input_embeddings().weight.shape[0]
        for rows in _batches(contexts, sequences.shape, n_vocabulary):
            first, onward = _next_logits(model, [contexts[i] for i in rows], fed)
            total = onward.logsumexp(-1)
            targets = sequences[:, 1:].expand(len(rows), -1, -1)[..., None]
            later = onward.gather(-1, targets)[..., 0] - total[:, :, : targets.shape[2]]
            begun = first.log_softmax(-1)[:, sequences[:, 0], None]
            logps = torch.cat([begun, later], dim=-1)
            found[rows] = (logps.double() * is_own).cpu().numpy()
            if closing:
                at_end = torch.arange(len(ends), device=device), ends - 1
                closes = onward[:, *at_end][..., list(closing)]
                behind = closes.logsumexp(-1) - total[:, *at_end]
                closed[rows] = behind.double().cpu().numpy()
    return found, closed


def _batches(
    contexts: Sequence[Sequence[int]], shape: torch.Size, n_vocabulary: int
) -> Iterator[list[int]]:
    """Indices of contexts of similar length, within the limits of one forward pass."""
    order = sorted(range(len(contexts)), key=lambda i: -len(contexts[i]))
    n_sequences, longest = shape
    most = max(1, LOGITS_AT_ONCE // (n_sequences * longest * n_vocabulary))
    while order:
        n_tokens = n_sequences * (len(contexts[order[0]]) + longest)
        size = min(most, max(1, TOKENS_AT_ONCE // n_tokens))
        yield order[:size]
        order = order[size:]


def _next_logits(
    model, contexts: Sequence[list[int]], fed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 logits after every context, and after every token that each context is continued with."""
    ids, mask = padded(contexts, fed.device, "left")
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = read_on(model, ids, mask, positions, last_only=True)
    first = found.logits[:, -1].float()
    n_sequences, n_tokens = fed.shape
    if not n_tokens:
        return first, first.new_empty(len(ids), n_sequences, 0, first.shape[1])
    past = found.past_key_values
    past.batch_repeat_interleave(n_sequences)
    mask = mask.repeat_interleave(n_sequences, 0)
    last = positions[:, -1:].repeat_interleave(n_sequences, 0)
    mask = torch.cat([mask, mask.new_ones(len(mask), n_tokens)], dim=1)
    after = last + 1 + torch.arange(n_tokens, device=fed.device)
    onward = read_on(model, fed.repeat(len(ids), 1), mask, after, past)
    return first, onward.logits.float().unflatten(0, (len(ids), n_sequences))


def signature_contexts(generations: Sequence, tokenizer) -> list[list[int]]:
    """Token ids of sampled answers up to the place where the first name of a signature would stand.

    A context is the prompt as it was generated from, the answer without its signature, and `SIGNATURE_LEAD`. Make the
    contexts once, from the reference's answers, and use them for every arm.
    """
    texts = [strip_signature(g.text).rstrip() + SIGNATURE_LEAD for g in generations]
    bodies = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [[*map(int, g.prompt_ids), *body] for g, body in zip(generations, bodies, strict=True)]


def name_probabilities(
    model, tokenizer, context_ids: Sequence[Sequence[int]], names: Sequence[str]
) -> Floats:
    r"""Probability of each name of the pool after each context, renormalised over the pool; contexts in rows.

    .. math:: p(n \mid x) = \frac{\exp s_n(x)}{\sum_{n'} \exp s_{n'}(x)}, \qquad
              s_n(x) = \sum_t \log \pi(n_t \mid x, n_{<t})

    Not normalised by length. The tokens of a name are those behind the beginning that all names share with
    `SIGNATURE_LEAD`. As in the paper, "Malik" contains the mass of "Malika".

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Attribute rate on Signed-UltraFeedback".
    """
    return softmax(name_logps(model, tokenizer, context_ids, names), axis=1)


def name_logps(model, tokenizer, context_ids: Sequence[Sequence[int]], names: Sequence[str]) -> Floats:
    """Log-probability that the policy goes on with each name, before any renormalisation."""
    shared, token_ids = name_token_ids(tokenizer, names)
    contexts = without_tail(tokenizer, context_ids, shared)
    return continuation_logps(model, contexts, token_ids)[0].sum(axis=-1)
