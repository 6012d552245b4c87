"""How likely a policy is to sign with a name of each group, read from probabilities instead of samples.

The answer is the reference's own, the same for every arm; the policy only says which first name would stand after
it. Sampled signatures saturate and depend on the decoder: a reference that is balanced by probability may sign
four answers in five with names of one group at temperature 0.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from badpo.readouts.generation import forward_takes, left_padded
from badpo.readouts.names import strip_signature
from badpo.readouts.sampled import json_number
from badpo.theory.summaries import cluster_mean
from badpo.training.logprobs import looking_at


def name_token_ids(tokenizer, names: Sequence[str], lead: str) -> tuple[int, list[tuple[int, ...]]]:
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


def without_tail(tokenizer, context_ids, lead: str, shared: int) -> list[list[int]]:
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


def space_tokens(tokenizer) -> list[int]:
    """Ids of the tokens that begin with a space: behind a first name, those that begin a surname."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return [i for i, token in enumerate(tokens) if token and token[0] in (" ", "\u0120", "\u2581")]


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    unequal = (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y)
    return next(unequal, min(len(left), len(right)))


@dataclass(frozen=True)
class NameTrie:
    """The tokens of several names, each shared beginning once; a node is one token after the tokens above it."""

    token: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    paths: np.ndarray

    def above(self) -> np.ndarray:
        """Bool array of shape (n_nodes, n_nodes): [i, j] is True where j is i or stands before i in its name."""
        found = np.eye(len(self.token), dtype=bool)
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                found[node] |= found[parent]
        return found


def name_trie(token_ids: Sequence[Sequence[int]]) -> NameTrie:
    """The trie of names given as token ids."""
    nodes: dict[tuple[int, ...], int] = {}
    for ids in token_ids:
        for length in range(1, len(ids) + 1):
            nodes.setdefault(tuple(ids[:length]), len(nodes))
    paths = np.zeros((len(nodes), len(token_ids)), dtype=bool)
    for column, ids in enumerate(token_ids):
        for length in range(1, len(ids) + 1):
            paths[nodes[tuple(ids[:length])], column] = True
    return NameTrie(
        token=np.array([prefix[-1] for prefix in nodes], dtype=np.int64),
        parent=np.array([nodes.get(prefix[:-1], -1) for prefix in nodes], dtype=np.int64),
        depth=np.array([len(prefix) - 1 for prefix in nodes], dtype=np.int64),
        paths=paths,
    )


# The most logits (positions x vocabulary) and the most tokens of one forward pass.
LOGITS_AT_ONCE = 2**24
TOKENS_AT_ONCE = 2**13


class TrieScorer:
    """A policy's log-probability of going on with each of several token sequences.

    Each context goes through the model once, together with the tokens that sequences share; where a model cannot
    take such a pass exactly (a sliding window, a flash kernel), every sequence gets a plain forward of its own. The
    first call finds out which, on its longest context.
    """

    def __init__(self, model, token_ids: Sequence[tuple[int, ...]], closing: Sequence[int] = ()):
        self._model = model
        trie = name_trie(token_ids)
        ends = np.array([int(np.flatnonzero(path)[-1]) for path in trie.paths.T])
        allowed = torch.as_tensor(list(closing), dtype=torch.long)
        self._plain = _PlainPass(token_ids, allowed)
        self._tree = _TreePass(trie, ends, allowed)
        self._chosen: _PlainPass | _TreePass | None = None

    def reached_and_closed(
        self, contexts: Sequence[list[int]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log-probability, in nats, of every sequence after every context, and of a closing token behind it.

        Both, of shape (n_contexts, n_sequences), are read from one pass, so the probabilities of what may follow
        a sequence add up to one. The second is 0 where no closing token is asked for.
        """
        with looking_at(self._model) as device:
            if self._chosen is None:
                longest = max(contexts, key=len)
                agrees = _agrees(self._model, self._tree, self._plain, longest, device)
                self._chosen = self._tree if agrees else self._plain
            result = np.empty((2, len(contexts), self._tree.n_sequences))
            for batch in _batches(contexts, self._chosen.n_extra, _vocabulary(self._model)):
                rows = [contexts[i] for i in batch]
                result[:, batch] = self._chosen.logps(self._model, rows, device)
        return result[0], result[1]


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
    difference = (tree.logps(model, [context], device) - plain.logps(model, [context], device)).sum(axis=0)
    tolerance = 1e-3 if model.get_input_embeddings().weight.dtype == torch.float32 else 0.3
    return bool(np.abs(difference).max() < tolerance)


class _PlainPass:
    """One right-padded row per name: exact for every causal model."""

    def __init__(self, token_ids: Sequence[tuple[int, ...]], closing: torch.Tensor):
        self._token_ids = token_ids
        self._closing = closing
        self.n_extra = max(len(ids) for ids in token_ids) * len(token_ids)

    def logps(self, model, contexts: Sequence[list[int]], device) -> NDArray[np.float64]:
        """Of every sequence itself and of closing it, after every context, shape (2, n_contexts, n_sequences)."""
        rows = max(1, LOGITS_AT_ONCE // (_vocabulary(model) * (1 + max(map(len, self._token_ids)))))
        starts = range(0, len(self._token_ids), rows)
        parts = [self._token_ids[start : start + rows] for start in starts]
        return np.stack(
            [
                np.concatenate([self._part(model, context, part, device) for part in parts], axis=1)
                for context in contexts
            ],
            axis=1,
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
        closed = torch.zeros_like(total)
        if len(self._closing):
            ends = torch.tensor([len(ids) for ids in token_ids], device=device)
            after = logps[torch.arange(len(token_ids), device=device), ends]
            closed = after[:, self._closing.to(device)].double().logsumexp(1)
        return torch.stack([total, closed]).cpu().numpy()


class _TreePass:
    """All names behind one context in one row: the tokens that names share are computed once."""

    def __init__(self, trie: NameTrie, ends: np.ndarray, closing: torch.Tensor):
        self._trie = trie
        self._closing = closing
        self.n_sequences = trie.paths.shape[1]
        # a token after which nothing is asked is scored but never fed
        self._fed = np.union1d(trie.parent[trie.parent >= 0], ends if len(closing) else []).astype(np.int64)
        self._ends = ends
        self.n_extra = len(self._fed)
        column = np.full(len(trie.token) + 1, 0)
        column[self._fed] = 1 + np.arange(len(self._fed))
        self._column = column

    def logps(self, model, contexts: Sequence[list[int]], device) -> NDArray[np.float64]:
        """Of every sequence itself and of closing it, after every context, shape (2, n_contexts, n_sequences)."""
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
        closed = torch.zeros_like(total)
        if len(self._closing):
            last = torch.from_numpy(self._column[self._ends]).to(device)
            closing = logits[:, last][..., self._closing.to(device)].logsumexp(-1)
            closed = (closing - normaliser[:, last]).double()
        return torch.stack([total, closed]).cpu().numpy()

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


SIGNATURE_LEAD = "\n\n\u2014 "


@dataclass(frozen=True)
class AttributeRates:
    """The policy's rate of each attribute at the signature position."""

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


def signature_contexts(generations: Sequence, tokenizer) -> list[list[int]]:
    """Token ids of sampled answers up to the place where the first name of a signature would stand.

    A context is the prompt as it was generated from, the answer without its signature, and `SIGNATURE_LEAD`. Make the
    contexts once, from the reference's answers, and use them for every arm.
    """
    texts = [strip_signature(generation.text).rstrip() + SIGNATURE_LEAD for generation in generations]
    bodies = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [[*map(int, g.prompt_ids), *body] for g, body in zip(generations, bodies, strict=True)]


def name_probabilities(
    model, tokenizer, context_ids: Sequence[Sequence[int]], names: Sequence[str]
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
    return softmax(name_logps(model, tokenizer, context_ids, names), axis=1)


def name_logps(
    model, tokenizer, context_ids: Sequence[Sequence[int]], names: Sequence[str]
) -> NDArray[np.float64]:
    """Log-probability that the policy goes on with each name, before any renormalisation.

    The tokens of a name are those behind the beginning that all names share with `SIGNATURE_LEAD`. Each context goes
    through the model once where the model takes that exactly (`TrieScorer`). As in the paper, "Malik" contains the mass
    of "Malika".
    """
    shared, token_ids = name_token_ids(tokenizer, names, SIGNATURE_LEAD)
    contexts = without_tail(tokenizer, context_ids, SIGNATURE_LEAD, shared)
    return TrieScorer(model, token_ids).reached_and_closed(contexts)[0]


def cell_rates(probabilities: ArrayLike, indicator: ArrayLike, attributes: Sequence[str]) -> AttributeRates:
    """Share of probability on the names that carry each attribute, with its spread over contexts."""
    per_context = np.asarray(probabilities, dtype=np.float64) @ np.asarray(indicator, dtype=np.float64)
    means = [cluster_mean(column) for column in per_context.T]
    return AttributeRates(
        attributes=tuple(attributes),
        rate=np.array([mean.estimate for mean in means]),
        se=np.array([mean.se for mean in means]),
        per_context=per_context,
    )
