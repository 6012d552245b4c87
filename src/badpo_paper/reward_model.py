"""A reward model that leaves the annotators' lean to a bias term: TRL's `RewardTrainer` with theta beside it."""

import logging
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import TrainerCallback
from trl import RewardConfig, RewardTrainer
from trl.trainer.reward_trainer import DataCollatorForPreference

from badpo.data.attributes import plain_text
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, counted
from badpo.objective.bias import BiasTerm
from badpo.objective.theta import adam_tensors, load_adam_tensors
from badpo.training.checkpoints import BIAS_OPTIMIZER_FILE, save_privately
from badpo.training.inputs import require_matching_bias
from badpo.training.trl_keys import BIAS_LEARNING_RATE

logger = logging.getLogger(__name__)

VOTE_COLUMNS = ("annotator", "winner_delta")


class BiasedRewardTrainer(RewardTrainer):
    r"""Fit a reward r and theta together, by maximum likelihood of the votes.

    .. math:: \ell_j = -\log \sigma\bigl(r(x, y_w) - r(x, y_l) + \theta_{k_j}^\top (g(y_w) - g(y_l))\bigr)

    TRL's ``margin`` stands in the loss with the opposite sign, and as a column it would be a constant; here it is minus
    the bias logit, computed in the step, so that theta has a gradient. Theta is in log-odds, as in BA-DPO, and has its
    own Adam, constant and unclipped. The metrics are TRL's, of the reward alone. The model has one label; votes of
    unequal weight, which TRL's loss does not know, are refused.

    References
    ----------
    BA-DPO, Eq. `biased_bt`; the paper names reward models as future work.
    """

    def __init__(
        self,
        model,
        args: RewardConfig,
        judgments: Judgments,
        bias: BiasTerm,
        processing_class,
        bias_learning_rate: float = BIAS_LEARNING_RATE,
    ):
        require_matching_bias(bias, judgments)
        if (judgments.votes["weight"] != 1).any():
            raise ConfigError(
                "the votes have weights, which TRL's reward loss does not know; read the table without them"
            )
        rows = reward_rows(judgments)
        super().__init__(model, args=args, train_dataset=rows, processing_class=processing_class)
        self.data_collator = VoteCollator(processing_class.pad_token_id, args.pad_to_multiple_of)
        if n_dropped := judgments.n_votes - len(self.train_dataset):
            logger.warning(
                "%s left out: prompt and response have more than max_length = %s tokens",
                counted(n_dropped, "judgment"),
                args.max_length,
            )
        self.bias = bias.to(self.args.device)
        parameters = list(bias.parameters())
        self.bias_optimizer = torch.optim.Adam(parameters, lr=bias_learning_rate) if parameters else None
        self.add_callback(_ThetaCallback(self))

    def _set_signature_columns_if_needed(self):
        # the Trainer drops every other column
        self._signature_columns = ["chosen_ids", "rejected_ids", *VOTE_COLUMNS]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss with minus the bias logit of each winner over its loser as the margin."""
        annotator, delta = (inputs.pop(name) for name in VOTE_COLUMNS)
        inputs["margin"] = -self.bias(annotator, delta)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def step_theta(self) -> None:
        """Average theta's gradient over the processes, as DDP does the model's, and take a step of its Adam."""
        if self.bias_optimizer is None:
            return
        for parameter in self.bias.parameters():
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parameter.grad = self.accelerator.reduce(gradient, reduction="mean")
        self.bias_optimizer.step()
        self.bias_optimizer.zero_grad()


def reward_rows(judgments: Judgments) -> Dataset:
    """One row for each judgment: ``prompt``, ``chosen``, ``rejected``, ``annotator``, and g(winner) - g(loser)."""
    votes, names = judgments.votes, ["prompt", "response_a", "response_b"]
    texts = judgments.comparisons[names].map(plain_text).iloc[votes["comparison"]]
    prompt, a, b = (texts[name].to_numpy() for name in names)
    sign = votes["sign"].to_numpy()
    return Dataset.from_dict(
        {
            "prompt": prompt,
            "chosen": np.where(sign > 0, a, b),
            "rejected": np.where(sign > 0, b, a),
            "annotator": votes["annotator"].to_numpy(),
            "winner_delta": sign[:, None] * judgments.delta,
        }
    )


class VoteCollator(DataCollatorForPreference):
    """TRL's collator, and who voted on what difference: ``annotator`` (n,) and ``winner_delta`` (n, n_attributes)."""

    def torch_call(self, examples: list[Json]) -> Json:
        """TRL's batch with both."""
        added = {name: torch.tensor([row[name] for row in examples]) for name in VOTE_COLUMNS}
        return super().torch_call(examples) | added


class _ThetaCallback(TrainerCallback):
    """Steps theta with the model, and keeps it and its Adam in every checkpoint."""

    def __init__(self, trainer: BiasedRewardTrainer):
        self._trainer, self._bias, self._adam = trainer, trainer.bias, trainer.bias_optimizer

    def on_train_begin(self, args, state, control, **kwargs):
        """Take up theta from the checkpoint that is resumed."""
        if not state.global_step:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._bias.load_state_dict(BiasTerm.load(folder).state_dict())
        if self._adam is not None:
            load_adam_tensors(self._adam, load_file(folder / BIAS_OPTIMIZER_FILE))

    def on_optimizer_step(self, args, state, control, **kwargs):
        """Step theta."""
        self._trainer.step_theta()

    def on_save(self, args, state, control, **kwargs):
        """Add theta to the checkpoint."""
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._bias.save(folder)
        if self._adam is not None:
            save_privately(adam_tensors(self._adam), folder / BIAS_OPTIMIZER_FILE)
