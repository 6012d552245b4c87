"""Compute the probability that a policy signs its answers with each name.

Every policy reads the same answers of the reference and assigns a probability to each first name after each answer.
Counts of sampled signatures saturate and depend on the decoder; name probabilities do neither. At temperature 0.7, a
reference with balanced probabilities can sign four of five answers with names of one group.
"""

from collections.abc import Iterator, Sequence
from os.path import commonprefix

import numpy as np
import torch
from scipy.special import softmax
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from badpo.readouts.generation import Generation, TokenIds, pad_rows, run_forward
from badpo.readouts.names import strip_signature
from badpo.theory import Floats
from badpo.training.logprobs import evaluation_mode

SIGNATURE_LEAD = "\n\n\u2014 "


def name_token_ids(
    tokenizer: PreTrainedTokenizerBase, names: Sequence[str]
) -> tuple[int, list[tuple[int, ...]]]:
    """Return how many tokens of `SIGNATURE_LEAD` all names share, and the remaining tokens of each name."""
    texts = [SIGNATURE_LEAD + name for name in ("", *names)]
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    shared = len(commonprefix(encoded))
    token_ids = [tuple(ids[shared:]) for ids in encoded[1:]]
    for place, ids in enumerate(token_ids):
        if not ids or token_ids.index(ids) < place:
            raise ValueError(
                f"the tokens {ids} do not distinguish the name {names[place]!r} from the other names; "
                "remove the name, or use another tokenizer"
            )
    return shared, token_ids


def trim_contexts(
    tokenizer: PreTrainedTokenizerBase, context_ids: Sequence[TokenIds], shared: int
) -> list[list[int]]:
    """Truncate each context, which must end with `SIGNATURE_LEAD`, after the last token that all names share."""
    encoded = tokenizer([SIGNATURE_LEAD], add_special_tokens=False)["input_ids"]
    base = list(encoded[0])
    # the tokenizer may merge the beginning of SIGNATURE_LEAD with the end of the answer into one token, such as ".\n\n"
    known, n_tail = base[1:] or base, len(base) - shared
    contexts = [list(map(int, ids)) for ids in context_ids]
    for i, ids in enumerate(contexts):
        if ids[len(ids) - len(known) :] != known:
            raise ValueError(
                f"context {i} ends with the tokens {ids[-len(known) :]}, but the tokens of {SIGNATURE_LEAD!r} are "
                f"{known}; create the contexts with signature_contexts and the same tokenizer"
            )
    return [ids[: len(ids) - n_tail] for ids in contexts]


def space_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of all tokens that begin with a space; after a first name, such a token begins a surname."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return [i for i, token in enumerate(tokens) if token and token[0] in (" ", "\u0120", "\u2581")]


# Limits for one forward pass: the number of logits (positions times vocabulary) and the number of tokens.
# If several sequences continue a context, the context's tokens count once for each sequence.
LOGITS_AT_ONCE = 2**24
TOKENS_AT_ONCE = 2**16


def continuation_logps(
    model: PreTrainedModel,
    contexts: Sequence[list[int]],
    token_ids: Sequence[tuple[int, ...]],
    closing: Sequence[int] = (),
) -> tuple[Floats, Floats]:
    """Compute the log-probabilities in nats of several token sequences after each context.

    The model processes each context once, and all sequences reuse the context's key-value cache. For causal models,
    reusing the cache is exact.

    Returns
    -------
    array of shape (n_contexts, n_sequences, longest sequence)
        Log-probability of every token; 0 after the end of a sequence.
    array of shape (n_contexts, n_sequences)
        Log-probability of a token of ``closing`` after each sequence; 0 if ``closing`` is empty.
    """
    found = np.zeros((len(contexts), len(token_ids), max(map(len, token_ids))))
    closed = np.zeros(found.shape[:2])
    with evaluation_mode(model) as device:
        tensors = [torch.tensor(ids) for ids in token_ids]
        sequences = pad_sequence(tensors, batch_first=True).to(device)
        ends = torch.tensor([len(ids) for ids in token_ids], device=device)
        is_own = torch.arange(sequences.shape[1], device=device) < ends[:, None]
        fed = sequences if closing else sequences[:, :-1]
        n_vocabulary = model.get_input_embeddings().weight.shape[0]
        for rows in _batches(contexts, sequences.shape, n_vocabulary):
            first, onward = _continuation_logits(model, [contexts[i] for i in rows], fed)
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
    """Yield batches of context indices; the contexts in a batch have similar lengths and fit into one forward pass."""
    order = sorted(range(len(contexts)), key=lambda i: -len(contexts[i]))
    n_sequences, longest = shape
    most = max(1, LOGITS_AT_ONCE // (n_sequences * longest * n_vocabulary))
    while order:
        n_tokens = n_sequences * (len(contexts[order[0]]) + longest)
        size = min(most, max(1, TOKENS_AT_ONCE // n_tokens))
        yield order[:size]
        order = order[size:]


def _continuation_logits(
    model: PreTrainedModel, contexts: Sequence[list[int]], fed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 logits after every context and after every token of every continuation."""
    ids, mask = pad_rows(contexts, fed.device, "left")
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output = run_forward(model, ids, mask, positions, last_only=True)
    first = output.logits[:, -1].float()
    n_sequences, n_tokens = fed.shape
    if not n_tokens:
        return first, first.new_empty(len(ids), n_sequences, 0, first.shape[1])
    past = output.past_key_values
    past.batch_repeat_interleave(n_sequences)
    mask = mask.repeat_interleave(n_sequences, 0)
    last = positions[:, -1:].repeat_interleave(n_sequences, 0)
    mask = torch.cat([mask, mask.new_ones(len(mask), n_tokens)], dim=1)
    after = last + 1 + torch.arange(n_tokens, device=fed.device)
    onward = run_forward(model, fed.repeat(len(ids), 1), mask, after, past)
    return first, onward.logits.float().unflatten(0, (len(ids), n_sequences))


def signature_contexts(
    generations: Sequence[Generation], tokenizer: PreTrainedTokenizerBase
) -> list[list[int]]:
    """Return the token ids of sampled answers up to the point where a signature's first name would begin.

    A context contains the prompt, the answer without its signature, and `SIGNATURE_LEAD`. Create the contexts once from
    the reference's answers, and use these contexts for all policies.
    """
    texts = [strip_signature(g.text).rstrip() + SIGNATURE_LEAD for g in generations]
    bodies = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [[*map(int, g.prompt_ids), *body] for g, body in zip(generations, bodies, strict=True)]


def name_probabilities(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    context_ids: Sequence[TokenIds],
    names: Sequence[str],
) -> Floats:
    r"""Compute each name's probability after each context, normalized over the names, as a (n_contexts, n_names) array.

    .. math:: p(n \mid x) = \frac{\exp s_n(x)}{\sum_{n'} \exp s_{n'}(x)}, \qquad
              s_n(x) = \sum_t \log \pi(n_t \mid x, n_{<t})

    The probabilities are not normalized by length. The tokens of a name follow the tokens that all names share with
    `SIGNATURE_LEAD`. As in the paper, the probability of "Malik" includes that of "Malika".

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Attribute rate on Signed-UltraFeedback".
    """
    return np.asarray(softmax(name_logps(model, tokenizer, context_ids, names), axis=1))


def name_logps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    context_ids: Sequence[TokenIds],
    names: Sequence[str],
) -> Floats:
    """Compute the log-probability of each name after each context, before normalization."""
    shared, token_ids = name_token_ids(tokenizer, names)
    contexts = trim_contexts(tokenizer, context_ids, shared)
    return np.asarray(continuation_logps(model, contexts, token_ids)[0].sum(axis=-1))
