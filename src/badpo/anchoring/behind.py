"""What stands behind a tilted name: what the policy writes behind its likeliest one, so that it does not matter which.

A policy that hardly ever signs with a name does not know how to go on behind it: the surname is spoiled, or the
signature does not end. Tilted toward such names it would sign less often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import LogitsProcessor

from badpo.anchoring.kept_answers import Behind, KeptAnswer, tilted_answer
from badpo.anchoring.sampling import BEHIND_TOKENS, TiltedChoice


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
