"""A policy's own answers with what a shift asks of every token: where it may move, and where it must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessor

from badpo.anchoring.sampling import BEHIND_TOKENS, TiltedChoice


@dataclass(frozen=True)
class KeptAnswer:
    """An answer, and what a shifted policy would have done at each of its tokens.

    Attributes
    ----------
    prompt_ids, answer_ids : int arrays
    kept : bool array of shape (n_answer_tokens,)
        False where the shift may move the policy by an amount that is not known in closed form.
    shifts : tuple of (token of the answer, token ids, log-odds)
        What the shift adds to the logits of the source at a token; at all others it adds nothing.
    behind : Behind or None
        What the source makes of the same answer under its own choice; None where the answer is its own.
    """

    prompt_ids: NDArray[np.int64]
    answer_ids: NDArray[np.int64]
    kept: NDArray[np.bool_]
    shifts: tuple[tuple[int, torch.Tensor, torch.Tensor], ...] = ()
    behind: Behind | None = None


@dataclass(frozen=True)
class Behind:
    """The end of an edited answer as it follows the source's own choice, which does not depend on the edit.

    A source that hardly ever writes a name does not know how to go on behind it: the surname is spoiled, or the
    signature does not end. What follows the choice is therefore taken from the source's own answer.

    Attributes
    ----------
    own_ids : int array
        The source's own answer to the end of the same tokens behind its choice.
    first, n_tokens : int
        Where in the edited answer these tokens are, and how many.
    closing : int tensor
        Tokens that complete a choice. The first token behind one is of these; whether the choice is complete stays
        as it is.
    """

    own_ids: NDArray[np.int64]
    first: int
    n_tokens: int
    closing: torch.Tensor


def own_answer(prompt_ids, answer_ids) -> KeptAnswer:
    """An answer that a shift changes nothing about."""
    answer = np.asarray(answer_ids, dtype=np.int64)
    return KeptAnswer(np.asarray(prompt_ids, dtype=np.int64), answer, np.ones(len(answer), dtype=bool))


def edited_answer(prompt_ids, answer_ids, counterfactuals: Sequence[Sequence[int]]) -> KeptAnswer:
    """An answer that is kept where it agrees with every counterfactual: before the first difference, after the last."""
    found = own_answer(prompt_ids, answer_ids)
    for counterfactual in counterfactuals:
        other = np.asarray(counterfactual, dtype=np.int64)
        n = min(len(found.answer_ids), len(other))
        n_before = _n_shared(found.answer_ids[:n], other[:n])
        n_behind = _n_shared(found.answer_ids[::-1][: n - n_before], other[::-1][: n - n_before])
        # where something is only put in, the token that it stands before is the place of the choice
        found.kept[n_before : max(len(found.kept) - n_behind, n_before + 1)] = False
    return found


def tilted_answer(prompt_ids, answer_ids, tilted: TiltedChoice) -> KeptAnswer:
    """An answer with the shift of the choice that it makes; all of its tokens are kept."""
    found = own_answer(prompt_ids, answer_ids)
    prompt, answer = found.prompt_ids.tolist(), found.answer_ids.tolist()
    added = tilted.added([[*prompt, *answer[:token]] for token in range(len(answer))])
    shifts = tuple((token, *change) for token, change in enumerate(added) if change is not None)
    return replace(found, shifts=shifts)


def renamed_answer(prompt_ids, answer_ids, own_choice: Sequence[int], tilted: TiltedChoice) -> KeptAnswer:
    """An answer under another choice than the source's own."""
    found = tilted_answer(prompt_ids, answer_ids, tilted)
    if not found.shifts:
        return found
    first = max(token for token, *_ in found.shifts)
    end = found.answer_ids[first:]
    own_ids = np.concatenate([np.asarray(own_choice, dtype=np.int64), end])
    return replace(found, behind=Behind(own_ids, first, len(end), tilted.closing))


def divergence_from_source(policy, source, answers: Sequence[KeptAnswer]) -> torch.Tensor:
    r"""Divergence of a policy from its shifted source on some answers, in nats for an answer.

    .. math:: \frac{1}{n} \sum_{y} \sum_{t \text{ kept}} \mathrm{KL}\bigl(
              \pi_{s}(\cdot \mid x, y_{<t}) \,\|\, \pi(\cdot \mid x, y_{<t})\bigr)

    with pi_s the source with its shifts. Zero exactly where the policy is the shifted source at all kept tokens.

    Parameters
    ----------
    policy, source : causal language models
        The gradient goes to ``policy`` alone.
    answers : sequence of KeptAnswer

    Returns
    -------
    scalar tensor
    """
    ids, mask = _padded(answers, next(source.parameters()).device)
    row, place = _kept_places(answers)
    ours = policy(input_ids=ids, attention_mask=mask, use_cache=False).logits[row, place].float()
    with torch.no_grad():
        target = _shifted(source, answers, ids, mask)
    divergence = target.exp() * (target - ours.log_softmax(-1))
    return divergence.sum() / len(answers)


@torch.no_grad()
def shifted_logps(source, answers: Sequence[KeptAnswer], batch_size: int = 32) -> list[NDArray[np.float64]]:
    """Log-probability of every kept token of some answers under the source with their shifts, at temperature 1."""
    found = []
    for start in range(0, len(answers), batch_size):
        batch = answers[start : start + batch_size]
        tokens = np.concatenate([answer.answer_ids[answer.kept] for answer in batch])
        logps = _shifted(source, batch, *_padded(batch, next(source.parameters()).device))
        of_tokens = logps.gather(1, torch.from_numpy(tokens).to(logps.device)[:, None])[:, 0]
        ends = np.cumsum([answer.kept.sum() for answer in batch])[:-1]
        found += np.split(of_tokens.double().cpu().numpy(), ends)
    return found


def _shifted(source, answers: Sequence[KeptAnswer], ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of all next tokens at every kept place, shape (n_kept, n_tokens)."""
    row, place = _kept_places(answers)
    logits = source(input_ids=ids, attention_mask=mask, use_cache=False).logits[row, place].float()
    at = {where: i for i, where in enumerate(zip(row.tolist(), place.tolist(), strict=True))}
    for i, answer in enumerate(answers):
        for token, tokens, log_odds in answer.shifts:
            changed = at[i, len(answer.prompt_ids) - 1 + token]
            logits[changed, tokens.to(logits.device)] += log_odds.to(logits)
    logps = logits.log_softmax(-1)
    for i, own in _behind(source, answers).items():
        behind = answers[i].behind
        assert behind is not None
        first = at[i, len(answers[i].prompt_ids) - 1 + behind.first]
        closing = behind.closing.to(logps.device)
        complete = logps[first, closing].logsumexp(-1)
        logps[first, closing] = own[0, closing].log_softmax(-1) + complete
        logps[first + 1 : first + len(own)] = own[1:]
    return logps


def _behind(source, answers: Sequence[KeptAnswer]) -> dict[int, torch.Tensor]:
    """Log-probabilities behind the source's own choice, shape (n_behind, n_tokens), by number of the answer."""
    edited = {i: answer.behind for i, answer in enumerate(answers) if answer.behind is not None}
    if not edited:
        return {}
    own = [own_answer(answers[i].prompt_ids, behind.own_ids) for i, behind in edited.items()]
    ids, mask = _padded(own, next(source.parameters()).device)
    logits = source(input_ids=ids, attention_mask=mask, use_cache=False).logits
    ends = [len(answer.prompt_ids) + len(answer.answer_ids) - 1 for answer in own]
    return {
        i: logits[row, end - behind.n_tokens : end].float().log_softmax(-1)
        for row, (end, (i, behind)) in enumerate(zip(ends, edited.items(), strict=True))
    }


def _padded(answers: Sequence[KeptAnswer], device) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [torch.from_numpy(np.concatenate([a.prompt_ids, a.answer_ids])) for a in answers]
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(row) for row in rows], batch_first=True)
    return pad(rows, batch_first=True).to(device), mask.to(device)


def _kept_places(answers: Sequence[KeptAnswer]) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and position of the logits that give each kept token."""
    places = [np.flatnonzero(a.kept) + len(a.prompt_ids) - 1 for a in answers]
    row = np.repeat(np.arange(len(answers)), [len(found) for found in places])
    return torch.from_numpy(row), torch.from_numpy(np.concatenate(places))


def _n_shared(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    unequal = np.flatnonzero(left != right)
    return int(unequal[0]) if len(unequal) else len(left)


class TiltedName(LogitsProcessor):
    """A `TiltedChoice` whose names are all followed by what the policy writes behind its likeliest name.

    Whether a name is complete is the tilted policy's; which token completes it, and the rest of the line, are the
    policy's behind the likeliest name of the pool at that place. That takes a forward pass more for each token behind
    another name.
    """

    def __init__(self, model, tilted: TiltedChoice):
        self._model, self._tilted = model, tilted

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        """Adjusted scores; rows of ``input_ids`` are padded on the left with the tokenizer's padding token."""
        return self.adjust(self._tilted.without_padding(input_ids), scores)

    def adjust(self, rows: Sequence[list[int]], logits: torch.Tensor) -> torch.Tensor:
        """Adjusted next-token logits of rows given all their tokens so far; a new tensor where any row changes."""
        logits = self._tilted.adjust(rows, logits)
        behind = {i: found for i, ids in enumerate(rows) if (found := self._tilted.behind(ids)) is not None}
        if not behind:
            return logits
        logits = logits.log_softmax(-1)
        theirs = self._next([ids for ids, _ in behind.values()]).to(logits)
        closing = self._tilted.closing.to(logits.device)
        for own, (i, (_, n_behind)) in zip(theirs, behind.items(), strict=True):
            if n_behind:
                logits[i] = own
            else:
                logits[i, closing] = own[closing].log_softmax(-1) + logits[i, closing].logsumexp(-1)
        return logits

    @torch.no_grad()
    def _next(self, rows: Sequence[list[int]]) -> torch.Tensor:
        device = next(self._model.parameters()).device
        tokens = [torch.tensor(row) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        ids, mask = (
            pad(part, batch_first=True).to(device) for part in (tokens, [torch.ones_like(t) for t in tokens])
        )
        logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return logits[torch.arange(len(rows)), mask.sum(1) - 1].log_softmax(-1)


def named_answer(prompt_ids: Sequence[int], answer_ids: Sequence[int], tilted: TiltedChoice) -> KeptAnswer:
    """An answer with the distribution that `TiltedName` sampled each of its tokens from."""
    found = tilted_answer(prompt_ids, answer_ids, tilted)
    if not found.shifts:
        return found
    first = max(token for token, *_ in found.shifts)
    n_behind = 0
    own: list[int] = []
    prompt, answer = found.prompt_ids.tolist(), found.answer_ids.tolist()
    while first + n_behind < len(answer) and n_behind < BEHIND_TOKENS:
        behind = tilted.behind([*prompt, *answer[: first + n_behind]])
        if behind is None:
            break
        own = behind[0]
        n_behind += 1
    if not n_behind:
        return found
    last = answer[first + n_behind - 1]
    own_ids = torch.tensor([*own[len(prompt) :], last]).numpy()
    return replace(found, behind=Behind(own_ids, first, n_behind, tilted.closing))
