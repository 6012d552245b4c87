"""How likely a policy is to sign with a name of each group, read from probabilities instead of samples.

The answer is the reference's own, the same for every arm; the policy only says which first name would stand after
it. Sampled signatures saturate and depend on the decoder: a reference that is balanced by probability may sign
four answers in five with names of one group at temperature 0.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from badpo.data.corpora.signatures import strip_signature
from badpo.readouts.forward import forward_takes, left_padded
from badpo.readouts.json_number import json_number
from badpo.readouts.name_trie import NameTrie, name_trie
from badpo.theory.summaries import cluster_mean
from badpo.training.logprobs import looking_at

SIGNATURE_LEAD = "\n\n\u2014 "

# The most logits (positions x vocabulary) and the most tokens of one forward pass.
LOGITS_AT_ONCE = 2**24
TOKENS_AT_ONCE = 2**13


@dataclass(frozen=True)
class AttributeRates:
    """The policy's rate of each attribute at the signature position.

    Attributes
    ----------
    attributes : tuple of str
    rate : array of shape (n_attributes,)
        Probability mass on the names that carry the attribute, mean over contexts.
    se : array of shape (n_attributes,)
        Standard error of that mean over contexts; NaN with one context.
    per_context : array of shape (n_contexts, n_attributes)
    """

    attributes: tuple[str, ...]
    rate: NDArray[np.float64]
    se: NDArray[np.float64]
    per_context: NDArray[np.float64]

    def to_json(self) -> dict[str, dict[str, float | None]]:
        """{attribute: {"rate", "se"}}."""
        return {
            name: {"rate": float(rate), "se": json_number(se)}
            for name, rate, se in zip(self.attributes, self.rate, self.se, strict=True)
        }


def signature_contexts(
    generations: Sequence,
    tokenizer,
    lead: str = SIGNATURE_LEAD,
    strip: Callable[[str], str] = strip_signature,
) -> list[list[int]]:
    """Token ids of sampled answers up to the place where the first name of a signature would stand.

    A context is the prompt as it was generated from, the answer without its signature, and ``lead``. Make the
    contexts once, from the reference's answers, and use them for every arm.

    Parameters
    ----------
    generations : sequence of Generation
        The reference's sampled answers. One that was cut before it ended is used as far as it goes.
    tokenizer : PreTrainedTokenizerBase
    lead : str
        What stands between an answer and the name: a blank line, an em dash and a space.
    strip : function of a text
        Takes the signature off an answer; a text without one is returned as it is.

    Returns
    -------
    list of n_generations lists of int

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Attribute rate on Signed-UltraFeedback".

    Examples
    --------
    With a tokenizer of one token per character:

    >>> from types import SimpleNamespace
    >>> def characters(texts, add_special_tokens):
    ...     return {"input_ids": [[ord(c) for c in text] for text in texts]}
    >>> answer = SimpleNamespace(prompt_ids=(1, 2), text="Yes!")
    >>> signature_contexts([answer], characters, lead=" -", strip=str)
    [[1, 2, 89, 101, 115, 33, 32, 45]]
    """
    texts = [strip(generation.text).rstrip() + lead for generation in generations]
    bodies = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [[*map(int, g.prompt_ids), *body] for g, body in zip(generations, bodies, strict=True)]


def name_probabilities(
    model,
    tokenizer,
    context_ids: Sequence[Sequence[int]],
    names: Sequence[str],
    boundary: str = "none",
    lead: str = SIGNATURE_LEAD,
) -> NDArray[np.float64]:
    r"""Probability of each name of the pool after each context, renormalised over the pool.

    .. math:: p(n \mid x) = \frac{\exp s_n(x)}{\sum_{n'} \exp s_{n'}(x)}, \qquad
              s_n(x) = \sum_t \log \pi(n_t \mid x, n_{<t})

    Not normalised by length. The parameters are those of `name_logps`.

    Returns
    -------
    array of shape (n_contexts, n_names)
        Rows add up to 1.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Attribute rate on Signed-UltraFeedback".
    """
    return softmax(name_logps(model, tokenizer, context_ids, names, boundary, lead), axis=1)


def name_logps(
    model,
    tokenizer,
    context_ids: Sequence[Sequence[int]],
    names: Sequence[str],
    boundary: str = "none",
    lead: str = SIGNATURE_LEAD,
) -> NDArray[np.float64]:
    """Log-probability that the policy goes on with each name, before any renormalisation.

    The tokens of a name are those of ``lead + name`` after the beginning that all of them share with ``lead``.
    Each context goes through the model once, together with the tokens that names share; where a model cannot
    take such a pass exactly (a sliding window, a flash kernel), every name gets a plain forward of its own.

    Parameters
    ----------
    model : causal language model, plain or PEFT
    tokenizer : PreTrainedTokenizerBase
    context_ids : sequence of sequences of int
        From `signature_contexts`, made with the same tokenizer and ``lead``.
    names : sequence of str
        The pool, without duplicates.
    boundary : "none" or "space"
        ``none`` is the paper's: "Malik" contains the mass of "Malika". ``space`` asks in addition that the next
        token begins with a space, as before a surname.
    lead : str
        What the contexts end with.

    Returns
    -------
    array of shape (n_contexts, n_names), in nats
        The sum of the exponentials of a row is the mass that lies on the pool at all.

    Raises
    ------
    ValueError
        Two names with the same tokens, an unknown boundary, or a context that does not end with ``lead``.
    """
    if boundary not in ("none", "space"):
        raise ValueError(f'unknown boundary "{boundary}"; use "none" or "space"')
    shared, token_ids = _name_token_ids(tokenizer, names, lead)
    contexts = _without_tail(tokenizer, context_ids, lead, shared)
    trie = name_trie(token_ids)
    closing = torch.as_tensor(_space_tokens(tokenizer) if boundary == "space" else [], dtype=torch.long)
    ends = np.array([int(np.flatnonzero(path)[-1]) for path in trie.paths.T])
    plain = _PlainPass(token_ids, closing)
    tree = _TreePass(trie, ends, closing)
    with looking_at(model) as device:
        longest = max(contexts, key=len)
        chosen = tree if _agrees(model, tree, plain, longest, device) else plain
        result = np.empty((len(contexts), len(names)))
        for batch in _batches(contexts, chosen.n_extra, _vocabulary(model)):
            result[batch] = chosen.logps(model, [contexts[i] for i in batch], device)
    return result


def cell_rates(probabilities: ArrayLike, indicator: ArrayLike, attributes: Sequence[str]) -> AttributeRates:
    """Share of probability on the names that carry each attribute, with its spread over contexts.

    Parameters
    ----------
    probabilities : array of shape (n_contexts, n_names)
        From `name_probabilities`.
    indicator : array of shape (n_names, n_attributes)
        1 where the name carries the attribute.
    attributes : sequence of str
        Names of the columns of ``indicator``.

    Examples
    --------
    >>> rates = cell_rates([[0.5, 0.25, 0.25], [0.7, 0.1, 0.2]], [[1, 0], [1, 1], [0, 1]], ["woman", "black"])
    >>> rates.rate.round(3), rates.per_context.round(3).tolist()
    (array([0.775, 0.4  ]), [[0.75, 0.5], [0.8, 0.3]])
    """
    per_context = np.asarray(probabilities, dtype=np.float64) @ np.asarray(indicator, dtype=np.float64)
    means = [cluster_mean(column) for column in per_context.T]
    return AttributeRates(
        attributes=tuple(attributes),
        rate=np.array([mean.estimate for mean in means]),
        se=np.array([mean.se for mean in means]),
        per_context=per_context,
    )


def _name_token_ids(tokenizer, names: Sequence[str], lead: str) -> tuple[int, list[tuple[int, ...]]]:
    """How many tokens of the lead stay in the context, and each name's tokens after them."""
    encoded = tokenizer([lead, *(lead + name for name in names)], add_special_tokens=False)["input_ids"]
    base, whole = list(encoded[0]), [list(ids) for ids in encoded[1:]]
    shared = min(_common_length(base, ids) for ids in whole)
    token_ids = [tuple(ids[shared:]) for ids in whole]
    first: dict[tuple[int, ...], str] = {}
    for name, ids in zip(names, token_ids, strict=True):
        if not ids:
            raise ValueError(
                f"the name {name!r} has no token of its own after {lead!r}; leave it out of the pool"
            )
        if ids in first:
            raise ValueError(
                f"the names {first[ids]!r} and {name!r} have the same tokens {ids}; "
                "this tokenizer cannot tell them apart: leave one out, or use a tokenizer that knows them"
            )
        first[ids] = name
    return shared, token_ids


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    unequal = (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y)
    return next(unequal, min(len(left), len(right)))


def _without_tail(tokenizer, context_ids, lead: str, shared: int) -> list[list[int]]:
    """The contexts up to the token after which the names differ, checked to end with the lead."""
    base = list(tokenizer([lead], add_special_tokens=False)["input_ids"][0])
    # the first token of the lead may have merged with the end of the answer, as in ".\n\n"
    known = base[1:] or base
    contexts = [list(map(int, ids)) for ids in context_ids]
    for i, ids in enumerate(contexts):
        if ids[len(ids) - len(known) :] != known:
            raise ValueError(
                f"context {i} ends with tokens {ids[-len(known) :]}, not with those of {lead!r}, {known}; "
                "make contexts with signature_contexts, the same tokenizer and the same lead"
            )
    return [ids[: len(ids) - (len(base) - shared)] for ids in contexts]


def _space_tokens(tokenizer) -> list[int]:
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return [i for i, token in enumerate(tokens) if token and token[0] in (" ", "\u0120", "\u2581")]


def _vocabulary(model) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def _batches(contexts: Sequence[Sequence[int]], n_extra: int, n_vocabulary: int) -> Iterator[list[int]]:
    """Indices of contexts of similar length, within the limits of one forward pass."""
    order = sorted(range(len(contexts)), key=lambda i: -len(contexts[i]))
    most = max(1, LOGITS_AT_ONCE // ((n_extra + 1) * n_vocabulary))
    while order:
        size = min(most, max(1, TOKENS_AT_ONCE // (len(contexts[order[0]]) + n_extra)))
        yield order[:size]
        order = order[size:]


def _agrees(model, tree: _TreePass, plain: _PlainPass, context: list[int], device) -> bool:
    """Whether one pass over the tree gives what plain forwards give, on the longest context."""
    attention = str(getattr(model.config, "_attn_implementation", ""))
    if "flash" in attention or "flex" in attention or not forward_takes(model, "position_ids"):
        return False
    difference = tree.logps(model, [context], device) - plain.logps(model, [context], device)
    tolerance = 1e-3 if model.get_input_embeddings().weight.dtype == torch.float32 else 0.3
    return bool(np.abs(difference).max() < tolerance)


class _PlainPass:
    """One right-padded row per name: exact for every causal model."""

    def __init__(self, token_ids: Sequence[tuple[int, ...]], closing: torch.Tensor):
        self._token_ids = token_ids
        self._closing = closing
        self.n_extra = max(len(ids) for ids in token_ids) * len(token_ids)

    def logps(self, model, contexts: Sequence[list[int]], device) -> NDArray[np.float64]:
        """Log-probability of every name after every context, shape (n_contexts, n_names)."""
        rows = max(1, LOGITS_AT_ONCE // (_vocabulary(model) * (1 + max(map(len, self._token_ids)))))
        starts = range(0, len(self._token_ids), rows)
        parts = [self._token_ids[start : start + rows] for start in starts]
        return np.stack(
            [
                np.concatenate([self._part(model, context, part, device) for part in parts])
                for context in contexts
            ]
        )

    def _part(self, model, context: list[int], token_ids, device) -> NDArray[np.float64]:
        longest = max(map(len, token_ids))
        names = torch.zeros(len(token_ids), longest, dtype=torch.long)
        mask = torch.ones(len(token_ids), len(context) + longest, dtype=torch.long)
        for row, ids in enumerate(token_ids):
            names[row, : len(ids)] = torch.tensor(ids)
            mask[row, len(context) + len(ids) :] = 0
        rows = torch.cat([torch.tensor(context).expand(len(token_ids), -1), names], dim=1).to(device)
        keep = torch.arange(len(context) - 1, len(context) + longest, device=device)
        logps = _kept_logits(model, keep, input_ids=rows, attention_mask=mask.to(device)).log_softmax(-1)
        found = logps[:, :-1].gather(2, names.to(device)[..., None])[..., 0].double()
        total = (found * mask[:, len(context) :].to(device)).sum(1)
        if len(self._closing):
            ends = torch.tensor([len(ids) for ids in token_ids], device=device)
            after = logps[torch.arange(len(token_ids), device=device), ends]
            total = total + after[:, self._closing.to(device)].double().logsumexp(1)
        return total.cpu().numpy()


class _TreePass:
    """All names behind one context in one row: the tokens that names share are computed once."""

    def __init__(self, trie: NameTrie, ends: np.ndarray, closing: torch.Tensor):
        self._trie = trie
        self._closing = closing
        # a token after which nothing is asked is scored but never fed
        self._fed = np.union1d(trie.parent[trie.parent >= 0], ends if len(closing) else []).astype(np.int64)
        self._ends = ends
        self.n_extra = len(self._fed)
        column = np.full(len(trie.token) + 1, 0)
        column[self._fed] = 1 + np.arange(len(self._fed))
        self._column = column

    def logps(self, model, contexts: Sequence[list[int]], device) -> NDArray[np.float64]:
        """Log-probability of every name after every context, shape (n_contexts, n_names)."""
        ids, mask = left_padded(contexts, device)
        nodes = torch.from_numpy(self._trie.token[self._fed]).to(device).expand(len(contexts), -1)
        depth = torch.from_numpy(self._trie.depth[self._fed]).to(device)
        positions = torch.cat([(mask.cumsum(1) - 1).clamp(min=0), mask.sum(1, keepdim=True) + depth], dim=1)
        logits = _kept_logits(
            model,
            torch.arange(ids.shape[1] - 1, ids.shape[1] + self.n_extra, device=device),
            input_ids=torch.cat([ids, nodes], dim=1),
            attention_mask=self._additive_mask(mask.bool(), model.get_input_embeddings().weight.dtype),
            position_ids=positions,
        )
        # column 0 is the end of the context, which parent -1 finds at the end of the table
        before = torch.from_numpy(self._column[self._trie.parent]).to(device)
        token = torch.from_numpy(self._trie.token).to(device)
        normaliser = logits.logsumexp(-1)
        per_node = (logits[:, before, token] - normaliser[:, before]).double()
        total = per_node @ torch.from_numpy(self._trie.paths).to(device).double()
        if len(self._closing):
            last = torch.from_numpy(self._column[self._ends]).to(device)
            closed = logits[:, last][..., self._closing.to(device)].logsumexp(-1) - normaliser[:, last]
            total = total + closed.double()
        return total.cpu().numpy()

    def _additive_mask(self, real: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """0 where a token may look and the most negative number elsewhere; sdpa and eager read it alike."""
        n_rows, width = real.shape
        size = width + self.n_extra
        allowed = torch.zeros(n_rows, size, size, dtype=torch.bool, device=real.device)
        allowed[:, :, :width] = real[:, None]
        allowed[:, :width, :width] &= torch.ones_like(allowed[0, :width, :width]).tril()
        above = self._trie.above()[np.ix_(self._fed, self._fed)]
        allowed[:, width:, width:] = torch.from_numpy(above).to(real.device)
        # padding sees itself, so that no row of the softmax is empty
        allowed |= torch.eye(size, dtype=torch.bool, device=real.device)
        blocked = torch.full_like(allowed, torch.finfo(dtype).min, dtype=dtype)
        return blocked.masked_fill_(allowed, 0.0)[:, None]


def _kept_logits(model, keep: torch.Tensor, **inputs) -> torch.Tensor:
    """fp32 logits at the positions ``keep`` of every row, shape (n_rows, n_kept, vocabulary)."""
    if forward_takes(model, "logits_to_keep"):
        return model(**inputs, use_cache=False, logits_to_keep=keep).logits.float()
    return model(**inputs, use_cache=False).logits[:, keep].float()
