"""The supervised stage that makes a reference: one response per prompt, mean loss over response tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from badpo.training.config import computes_in_bf16, without_double_precision
from badpo.training.logprobs import attach, on_device, response_layout, scoring_attention
from badpo.training.packing import Pair


def supervised_arguments(folder: Path, **options: Any) -> transformers.TrainingArguments:
    """The supervised stage's arguments: cosine with 10 % warm-up, no checkpoints, and the Trainer's own ``options``.

    Without ``bf16`` among the options its precision is that of a preference stage that is told nothing either.
    """
    settings: dict[str, Any] = {
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,
        "use_cpu": without_double_precision(),
        "remove_unused_columns": False,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "ddp_find_unused_parameters": False,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 0,
        **options,
    }
    settings.setdefault("bf16", computes_in_bf16(settings["use_cpu"]))
    return transformers.TrainingArguments(output_dir=str(folder / "checkpoints"), **settings)


def balanced_rows(values: NDArray[np.float64], seed: int) -> NDArray[np.intp]:
    """Rows of a training set in which every combination of attribute values is equally frequent.

    There are as many rows as before: of a frequent combination some are left out, of a rare one some stand more than
    once. Rows that an attribute does not apply to stay as they are.

    Parameters
    ----------
    values : array of shape (n_rows, n_attributes)
        0 or 1; NaN where an attribute does not apply to a row.
    seed : int
        Decides which rows are left out and which stand more than once.

    Returns
    -------
    array of int
        Row numbers, ascending. The counts of two combinations differ by one at most.

    Raises
    ------
    ValueError
        A combination has no row to take.

    References
    ----------
    BA-DPO, appendix `app:anchor_target`, the third procedure: with a reference that is balanced on the attribute,
    reference anchoring and target anchoring at one half are the same.

    Examples
    --------
    >>> balanced_rows(np.array([[1.0], [0.0], [0.0], [0.0], [np.nan]]), seed=0).tolist()
    [0, 0, 2, 3, 4]
    """
    applies = ~np.isnan(values).any(axis=1)
    rng = np.random.default_rng(seed)
    cells = list(itertools.product((0.0, 1.0), repeat=values.shape[1]))
    share, rest = divmod(int(applies.sum()), len(cells))
    taken = [np.flatnonzero(~applies)]
    for number, cell in enumerate(cells):
        rows = np.flatnonzero((values == cell).all(axis=1))
        if not len(rows):
            raise ValueError(f"no row has the values {tuple(int(value) for value in cell)}")
        times, more = divmod(share + (number < rest), len(rows))
        taken += [np.repeat(rows, times), rng.choice(rows, size=more, replace=False)]
    return np.sort(np.concatenate(taken))


class SupervisedTrainer(transformers.Trainer):
    """Fine-tunes on responses through the same forward as the preference stage.

    The loss of an optimizer step is the mean negative log-likelihood over all its response tokens, whatever the
    micro-batches and processes. The output embedding is applied at response tokens only.
    """

    def __init__(self, model, args: transformers.TrainingArguments, pairs: Sequence[Pair], callbacks=None):
        layout = response_layout(attach(model), pairs)
        self._layout = layout

        def collate(rows: list[Pair]) -> dict:
            return {"scoring": on_device(layout(rows), torch.device("cpu"))}

        # a list is a data set
        super().__init__(
            model=model, args=args, train_dataset=list(pairs), data_collator=collate, callbacks=callbacks
        )
        self.model_accepts_loss_kwargs = True
        if hasattr(self, "loss_is_scaled_for_ga"):
            self.loss_is_scaled_for_ga = True

    def train(self, *args, **kwargs):
        """As `transformers.Trainer.train`, under the attention that the packed rows need."""
        with scoring_attention(self.model, self._layout):
            return super().train(*args, **kwargs)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of a step and its number of response tokens over all processes."""
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        n_tokens = torch.tensor(float(sum(len(b["scoring"]["target"]) for b in batches)), device=device)
        return batches, self.accelerator.reduce(n_tokens, reduction="sum")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Negative log-likelihood of the response tokens, over the step's number of them."""
        logps = model(scoring=inputs["scoring"])
        # DDP averages gradients over processes, while the count is already the sum over them
        return -logps.sum() / num_items_in_batch * self.args.world_size

    def floating_point_ops(self, inputs) -> int:
        """Not counted."""
        return 0
