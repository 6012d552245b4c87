"""Operations that training steps need, from a model's parameters and from what goes through it.

Of these and the time that a step takes comes the share of a card's peak that is put to use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.peers import Ours

# Dense bf16 multiply-adds of tensor cores, 10^12 operations a second, from the makers' data sheets.
PEAK_TFLOPS = {
    "B200": 2250.0,
    "GH200": 989.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "H100 NVL": 835.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "RTX 4090": 165.0,
    "RTX 3090": 71.0,
}


@dataclass(frozen=True)
class Reading:
    """What goes through the model in some optimizer steps.

    Attributes
    ----------
    n_steps : int
    tokens : int
        Tokens fed, without padding.
    attended : int
        Pairs of a token and one that it sees, itself among them.
    scored : int
        Tokens whose log-probability is computed.
    """

    n_steps: int
    tokens: int
    attended: int
    scored: int


def plain_reading(ours: Ours, skip: int = 0) -> Reading:
    """Both responses of every judgment, each behind its prompt, from step ``skip`` on: TRL's rows without padding."""
    import numpy as np

    encoded, comparison = ours.trainer.encoded, ours.trainer.judgments.votes["comparison"].to_numpy()
    votes = comparison[np.concatenate(ours.steps[skip:])]
    prompts = np.array([len(ids) for ids in encoded.prompt_ids])[votes]
    rows = np.zeros(0, dtype=np.int64)
    scored = 0
    for side in (encoded.a_ids, encoded.b_ids):
        responses = np.array([len(ids) for ids in side])[votes]
        rows = np.append(rows, prompts + responses)
        scored += int(responses.sum())
    return Reading(len(ours.steps) - skip, int(rows.sum()), int((rows * (rows + 1) // 2).sum()), scored)


def our_reading(ours: Ours, skip: int = 0) -> Reading:
    """The packs of every step from ``skip`` on, each comparison once in a step."""
    import numpy as np

    from badpo.training.packing import packed_layout

    encoded, comparison = ours.trainer.encoded, ours.trainer.judgments.votes["comparison"].to_numpy()
    tokens = attended = scored = 0
    for votes in ours.steps[skip:]:
        members = np.unique(comparison[votes])
        parts = ([ids[c] for c in members] for ids in (encoded.prompt_ids, encoded.a_ids, encoded.b_ids))
        inputs, _ = packed_layout(*parts)
        q_start, q_end, prefix_start, prefix_end = inputs["segments"].T
        own, before = q_end - q_start, prefix_end - prefix_start
        tokens += len(inputs["input_ids"])
        attended += int((own * before + own * (own + 1) // 2).sum())
        scored += len(inputs["target"])
    return Reading(len(ours.steps) - skip, tokens, attended, scored)


@dataclass(frozen=True)
class ModelCost:
    """Operations of a forward and backward, two for a multiply-add.

    Attributes
    ----------
    per_token, per_pair, per_scored : float
        For a token fed, for a pair of tokens of which one sees the other, and for a token scored.
    """

    per_token: float
    per_pair: float
    per_scored: float

    @classmethod
    def of(cls, model) -> ModelCost:
        r"""From a model's parameters, with or without an adapter.

        A matrix that is trained costs its size in the forward and twice that in the backward, for its inputs'
        gradient and for its own; a frozen one has no gradient of its own. Attention costs, in every layer, the product
        of query and key and that of weight and value: :math:`2 \cdot 2 \cdot \text{heads} \cdot \text{head\_dim}`
        forward and twice that backward.
        """
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        config = inner.config
        table, head = inner.get_input_embeddings().weight, inner.get_output_embeddings().weight
        in_body = [p for p in inner.parameters() if p is not table and p is not head]
        heads = config.num_attention_heads
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
        return cls(
            per_token=float(sum(_passes(p) * 2 * p.numel() for p in in_body)),
            per_pair=3.0 * 4 * config.num_hidden_layers * width,
            per_scored=float(_passes(head) * 2 * head.numel()),
        )

    def operations(self, reading: Reading) -> float:
        """Operations of one step, on average."""
        of_all = (
            self.per_token * reading.tokens
            + self.per_pair * reading.attended
            + self.per_scored * reading.scored
        )
        return of_all / reading.n_steps


def _passes(parameter) -> int:
    return 3 if parameter.requires_grad else 2


def peak_flops(name: str) -> float | None:
    """Dense bf16 operations a second of a card, None where the table does not have it."""
    words = name.replace("-", " ").split()
    for card, tera in PEAK_TFLOPS.items():
        wanted = card.split()
        if any(words[i : i + len(wanted)] == wanted for i in range(len(words))):
            return tera * 1e12
    return None
