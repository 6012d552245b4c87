r"""A policy's choice of a name tilted while it writes, and nothing else.

Where a choice starts, behind the lead of a signature, the policy's probabilities of all choices are read in one pass
over their token trie. The tilted policy chooses y with

.. math:: \pi_s(y) = \pi(y) \exp(s^\top g_y) \Big/ Z, \qquad
          Z = \frac{\sum_{y'} \pi(y') \exp(s^\top g_{y'})}{\sum_{y'} \pi(y')}

so the choices together keep the probability that they have, whatever else the policy may write there keeps its own,
and every other token of the answer is the policy's. A choice counts once it is complete: for a first name, when the
next token begins with a space. "Malik" then holds nothing of "Malika", and the beginning of a longer word that happens
to spell a name (Jay, Jayden) is left alone; with names that a policy hardly ever writes, such beginnings are much of
what their tokens alone would count, and tilting them up would cost signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit, logsumexp
from transformers import LogitsProcessor

from badpo.readouts.generation import sample
from badpo.readouts.rates import SIGNATURE_LEAD, TrieScorer, name_token_ids, space_tokens, without_tail

# What is written behind a name on its line is over within so many tokens.
BEHIND_TOKENS = 16
# Places of a choice whose probabilities are kept while an answer goes through the tokens of its name.
PLACES_KEPT = 1024


class ChoiceScorer:
    """A policy's probabilities of several names after a lead, as events that exclude each other."""

    def __init__(
        self,
        model,
        tokenizer,
        names: Sequence[str],
    ):
        self.tokenizer, self.closing = tokenizer, space_tokens(tokenizer)
        if not self.closing:
            raise ValueError(
                "no token of this tokenizer begins with a space, so no name would ever be complete before a surname"
            )
        self.n_lead_tokens, paths = name_token_ids(tokenizer, names, SIGNATURE_LEAD)
        nodes: dict[tuple[int, ...], int] = {}
        for path in paths:
            for length in range(1, len(path) + 1):
                nodes.setdefault(path[:length], len(nodes))
        self.nodes = nodes
        self.parent = np.array([nodes.get(prefix[:-1], -1) for prefix in nodes], dtype=np.int64)
        self.ends = np.array([nodes[path] for path in paths], dtype=np.int64)
        self._scorer = TrieScorer(model, list(nodes), self.closing)
        tokens = [prefix[-1] for prefix in nodes]
        self._closes = np.isin(tokens, self.closing)

    def read(
        self, contexts: Sequence[list[int]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Probabilities at every node of the choices' trie."""
        reached, closed = self._scorer.reached_and_closed(contexts)
        at_start = np.zeros((len(contexts), 1))
        onward = np.exp(reached - np.concatenate([reached, at_start], axis=1)[:, self.parent])
        # going on to a longer name by a token that would complete this one
        longer = np.zeros((len(contexts), len(self.parent) + 1))
        np.add.at(longer.T, self.parent[self._closes], onward[:, self._closes].T)
        complete = np.exp(closed[:, self.ends]) - longer[:, self.ends]
        # a name that is always left for a longer one leaves rounding error of either sign
        return reached, onward, np.where(complete > 1e-6, complete, 0.0)

    def name_logps(self, context_ids: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """Log-probability of completing every name and none that it begins, shape (n_contexts, n_names).

        ``context_ids`` are those of `badpo.readouts.rates.signature_contexts` with the same lead.
        """
        contexts = without_tail(self.tokenizer, context_ids, SIGNATURE_LEAD, self.n_lead_tokens)
        reached, _, complete = self.read(contexts)
        with np.errstate(divide="ignore"):
            return reached[:, self.ends] + np.log(complete)


class TiltedChoice(LogitsProcessor):
    """Tilts the choice of a name in `generate` and in `badpo.readouts.generation.sample`.

    At the place of a choice and inside its tokens, the next-token probabilities become those of the module's tilted
    policy; everywhere else the logits are returned as they are. Exact at temperature 1 without top-k or top-p; other
    decoding options act on the tilted policy afterwards, as they do on any policy. Names count in the tokens that the
    tokenizer gives them behind the lead; another spelling of the same text in tokens is left alone.
    """

    def __init__(
        self,
        model,
        tokenizer,
        names: Sequence[str],
        carries: ArrayLike,
        shift: ArrayLike,
        pool_shift: float = 0.0,
    ):
        self._pool_shift = pool_shift
        self._scorer = ChoiceScorer(model, tokenizer, names)
        indicator = np.asarray(carries, dtype=np.float64).reshape(len(names), -1)
        self._log_weights = indicator @ np.atleast_1d(np.asarray(shift, dtype=np.float64))
        self._closing = np.array(self._scorer.closing)
        self.closing = torch.from_numpy(self._closing)
        self._closes = set(self._closing.tolist())
        self._tokenizer = tokenizer
        self._lead_ids = list(tokenizer([SIGNATURE_LEAD], add_special_tokens=False)["input_ids"][0])[
            : self._scorer.n_lead_tokens
        ]
        self._lead_text = tokenizer.decode(self._lead_ids, clean_up_tokenization_spaces=False)
        self._deepest = max(map(len, self._scorer.nodes))
        self._paths = list(self._scorer.nodes)
        self._ends = set(self._scorer.ends.tolist())
        self._children = _children(self._scorer.nodes)
        self._kept: dict[tuple[int, ...], tuple[NDArray, NDArray, int]] = {}

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        """Tilted scores; rows of ``input_ids`` are padded on the left with the tokenizer's padding token."""
        return self.adjust(self.without_padding(input_ids), scores)

    def without_padding(self, input_ids: torch.LongTensor) -> list[list[int]]:
        """Rows without the tokenizer's padding tokens on their left."""
        pad = self._tokenizer.pad_token_id
        rows = []
        for ids in input_ids.tolist():
            start = next((i for i, token in enumerate(ids) if token != pad), len(ids))
            rows.append(ids[start:])
        return rows

    def adjust(self, rows: Sequence[list[int]], logits: torch.Tensor) -> torch.Tensor:
        """Tilted next-token logits of rows given all their tokens so far; a new tensor where any row changes."""
        places = {i: place for i, ids in enumerate(rows) if (place := self._place(ids)) is not None}
        if not places:
            return logits
        self._read(sorted({context for context, _ in places.values()}))
        logits = logits.clone()
        for i, place in places.items():
            tokens, log_odds = self._change(*place)
            logits[i, tokens.to(logits.device)] += log_odds.to(logits)
        return logits

    def added(self, contexts: Sequence[list[int]]) -> list[tuple[torch.Tensor, torch.Tensor] | None]:
        """What is added to the next-token logits: (token ids, log-odds) for each context, None outside a choice."""
        places = [self._place(ids) for ids in contexts]
        self._read(sorted({place[0] for place in places if place is not None}))
        return [None if place is None else self._change(*place) for place in places]

    def behind(self, ids: list[int]) -> tuple[list[int], int] | None:
        """The same tokens under the policy's likeliest name, where the next one is behind a name on its line."""
        if self._lead_ids[-1] not in ids[-(BEHIND_TOKENS + self._deepest + 1) :]:
            return None
        for n_behind in range(min(BEHIND_TOKENS, len(ids))):
            rest = ids[len(ids) - n_behind :]
            place = self._place(ids[: len(ids) - n_behind])
            if place is None or place[1] not in self._ends:
                continue
            if rest and (rest[0] not in self._closes or "\n" in self._tokenizer.decode(rest)):
                return None
            context, node = place
            self._read([context])
            likeliest = self._kept[context][2]
            return None if likeliest in (node, -1) else ([*context, *self._paths[likeliest], *rest], n_behind)
        return None

    def _change(self, context: tuple[int, ...], node: int) -> tuple[torch.Tensor, torch.Tensor]:
        going_on, completing, _ = self._kept[context]
        children = self._children.get(node, [])
        tokens = np.array([token for token, _ in children], dtype=np.int64)
        log_odds = going_on[[child for _, child in children]]
        if completing[node] != 0:
            # a token that goes on to a longer name does that, and does not complete this one
            closing = np.setdiff1d(self._closing, tokens)
            tokens = np.concatenate([tokens, closing])
            log_odds = np.concatenate([log_odds, np.full(len(closing), completing[node])])
        return torch.from_numpy(tokens), torch.from_numpy(log_odds)

    def _place(self, ids: list[int]) -> tuple[tuple[int, ...], int] | None:
        """The context of the choice that the next token belongs to and the node reached; None outside a choice."""
        for depth in range(min(self._deepest + 1, len(ids))):
            context, path = ids[: len(ids) - depth], tuple(ids[len(ids) - depth :])
            node = self._scorer.nodes.get(path, -1)
            if (depth == 0 or node >= 0) and self._at_lead(context):
                return tuple(context), node
        return None

    def _at_lead(self, ids: list[int]) -> bool:
        # the first token of the lead may have merged with the end of the answer, as in ".\n\n"
        known = self._lead_ids[1:] or self._lead_ids
        if ids[len(ids) - len(known) :] != known:
            return False
        tail = ids[-len(self._lead_ids) :]
        return self._tokenizer.decode(tail, clean_up_tokenization_spaces=False).endswith(self._lead_text)

    def _read(self, contexts: Sequence[tuple[int, ...]]) -> None:
        """Keep, for each context, by how much the log-probability of every node and of every name changes."""
        new = [context for context in contexts if context not in self._kept]
        if not new:
            return
        if len(self._kept) + len(new) > PLACES_KEPT:
            self._kept = {context: self._kept[context] for context in contexts if context in self._kept}
        everywhere = self._scorer.read([list(context) for context in new])
        for context, reached, onward, complete in zip(new, *everywhere, strict=True):
            ends, parent = self._scorer.ends, self._scorer.parent
            with np.errstate(divide="ignore"):
                names = reached[ends] + np.log(complete)
            if np.isneginf(names).all():
                # no choice is ever completed here, so there is nothing to tilt
                self._kept[context] = (np.zeros(len(reached)), np.zeros(len(reached) + 1), -1)
                continue
            normaliser = logsumexp(names + self._log_weights) - logsumexp(names)
            weight = self._log_weights - normaliser + self._pool_shift
            completing = np.zeros(len(reached) + 1)
            completing[ends] = weight
            # by which factor a node's probability grows; -1 is the place itself, which keeps its own
            factor = np.ones(len(reached) + 1)
            factor[ends] += complete * np.expm1(weight)
            for node in range(len(reached) - 1, -1, -1):
                factor[parent[node]] += onward[node] * (factor[node] - 1)
            going_on = np.log(np.maximum(factor[:-1], np.finfo(np.float64).tiny))
            self._kept[context] = (going_on, completing, int(ends[np.argmax(names)]))


def _children(nodes: dict[tuple[int, ...], int]) -> dict[int, list[tuple[int, int]]]:
    """(next token, node) of every node that has nodes below it; -1 is the place where the choice starts."""
    found: dict[int, list[tuple[int, int]]] = {}
    for prefix, node in nodes.items():
        found.setdefault(nodes.get(prefix[:-1], -1), []).append((prefix[-1], node))
    return found


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Kept(Generic[Answer]):
    """Answers of the tilted policy, one per prompt.

    Attributes
    ----------
    answers : list of n_prompts answers
        None for a prompt of which every draw was rejected.
    carries : array of shape (n_prompts, n_attributes)
        g of each kept answer; NaN where there is none.
    n_drawn : int
        Answers drawn from the policy in all.
    n_without : int
        Prompts without an answer. Leaving them out makes the rate lean toward prompts that accept easily.
    """

    answers: list[Answer | None]
    carries: NDArray[np.float64]
    n_drawn: int
    n_without: int

    @property
    def acceptance_rate(self) -> float:
        """Answers kept for each answer drawn."""
        return (len(self.answers) - self.n_without) / self.n_drawn


def acceptance_probability(carries: ArrayLike, shift: ArrayLike) -> NDArray[np.float64]:
    r"""Probability with which rejection keeps an answer that carries these attributes.

    .. math:: \exp(s^\top g - \max_{g'} s^\top g'), \qquad \max_{g'} s^\top g' = \sum_i \max(s_i, 0)
    """
    indicator = np.asarray(carries, dtype=np.float64)
    moved = np.atleast_1d(np.asarray(shift, dtype=np.float64))
    if indicator.ndim != 2 or indicator.shape[1] != len(moved):
        raise ValueError(f"carries of shape {indicator.shape} and {len(moved)} shifts do not belong together")
    if not np.isin(indicator, (0.0, 1.0)).all() or not np.isfinite(moved).all():
        raise ValueError("an answer carries an attribute (1) or not (0), and shifts are finite")
    return np.exp(indicator @ moved - np.maximum(moved, 0).sum())


def rejection_sample(
    draw: Callable[[Sequence[int], int], Sequence[Answer]],
    carries: Callable[[Answer], Sequence[float] | None],
    shift: ArrayLike,
    n_prompts: int,
    most_draws: int,
    seed: int = 0,
) -> Kept[Answer]:
    """One exact answer of the tilted policy for each prompt, by drawing until one is accepted.

    The first draw decides whether the answer is one that the attributes are a choice of, and stays where it is not;
    from then on only those that are can be accepted. The tilt thus never turns to another kind of answer.

    Parameters
    ----------
    draw : function of (prompts, round)
        One fresh answer of the policy for each of these prompts (their numbers); rounds differ in randomness.
    carries : function of an answer
        1 or 0 for each attribute; None for an answer that they are no choice of, which is kept as it comes.
    shift : array of shape (n_attributes,)
        s in log-odds.
    n_prompts : int
    most_draws : int
        Answers drawn for a prompt at most; a prompt that accepted none of them stays without one.
    seed : int
        Of the decisions to accept; those of a prompt depend on its number alone.

    Returns
    -------
    Kept
        Exact for the prompts that have an answer; ``carries`` is NaN for an answer that is no choice. A prompt waits
        1 / (its acceptance rate) draws on average.

    Raises
    ------
    ValueError
        No prompt, or fewer draws than one.

    References
    ----------
    BA-DPO, Appendix `app:anchor_target`: "for an attribute of the whole text ... a rejection step".

    Examples
    --------
    A policy that shouts in every other round, tilted so far that no shout is kept:

    >>> kept = rejection_sample(
    ...     lambda prompts, number: ["Yes!" if number % 2 == 0 else "Yes." for _ in prompts],
    ...     lambda answer: [float("!" in answer)], shift=[-60.0], n_prompts=2, most_draws=5
    ... )
    >>> kept.answers, kept.acceptance_rate
    (['Yes.', 'Yes.'], 0.5)
    """
    if n_prompts < 1 or most_draws < 1:
        raise ValueError(f"{n_prompts} prompts and {most_draws} draws: at least one of each is needed")
    moved = np.atleast_1d(np.asarray(shift, dtype=np.float64))
    chances = np.stack([np.random.default_rng([seed, i]).random(most_draws) for i in range(n_prompts)])
    answers: list[Answer | None] = [None] * n_prompts
    values = np.full((n_prompts, len(moved)), np.nan)
    waiting, n_drawn = list(range(n_prompts)), 0
    for number in range(most_draws):
        drawn = draw(waiting, number)
        n_drawn += len(waiting)
        cells = [carries(answer) for answer in drawn]
        is_choice = np.array([cell is not None for cell in cells])
        found = np.full((len(drawn), len(moved)), np.nan)
        for i in np.flatnonzero(is_choice):
            found[i] = cells[i]
        accepted = np.full(len(drawn), number == 0)
        chance = acceptance_probability(found[is_choice], moved)
        accepted[is_choice] = chances[waiting, number][is_choice] < chance
        for place in np.flatnonzero(accepted).tolist():
            answers[waiting[place]], values[waiting[place]] = drawn[place], found[place]
        waiting = [prompt for prompt, done in zip(waiting, accepted, strict=True) if not done]
        if not waiting:
            break
    return Kept(answers, values, n_drawn, len(waiting))


# A first name and the blank behind it are over within so many tokens.
NAME_TOKENS = 12
# A share that is nearer than this to the one that is held is the same, as far as a few hundred draws can tell.
CLOSE = 0.005
MOST_TRIES = 5


def completed_share(
    policy,
    tokenizer,
    contexts: Sequence[Sequence[int]],
    names: Container[str],
    temperature: float,
    top_p: float,
    seed: int,
    adjust: Callable | None = None,
) -> float:
    """Share of begun signatures that go on with a name of the pool when they are sampled."""
    written = sample(policy, tokenizer, contexts, NAME_TOKENS, temperature, top_p, seed=seed, adjust=adjust)
    firsts = [answer.text.split(maxsplit=1)[:1] for answer in written]
    n_names = sum(bool(first) and first[0] in names for first in firsts)
    return (n_names + 0.5) / (len(firsts) + 1)


def shift_of_the_pool(held: float, share_at: Callable[[float], float]) -> float:
    """Shift of the pool, in log-odds, at which signatures are completed as often as is held.

    Parameters
    ----------
    held : float
        Share to hold.
    share_at : function of shift to share
        With the same random numbers at every shift.

    Returns
    -------
    float
        The nearest of a few tries.

    Examples
    --------
    >>> from scipy.special import expit
    >>> round(shift_of_the_pool(0.98, lambda shift: expit(2.0 + shift)), 2)
    1.89
    """
    tried = [0.0]
    shares = [share_at(0.0)]
    while abs(shares[-1] - held) > CLOSE and len(tried) < MOST_TRIES:
        # one for one in log-odds
        tried.append(tried[-1] + float(logit(held) - logit(shares[-1])))
        shares.append(share_at(tried[-1]))
    return tried[int(np.argmin(np.abs(np.array(shares) - held)))]
