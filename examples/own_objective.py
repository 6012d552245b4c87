"""Train with a custom loss that gives less weight to unlikely votes.

Usage: python examples/own_objective.py MODEL [votes.csv]
"""

import sys

from torch import Tensor

from badpo import BADPOConfig, BADPOTrainer, Judgments
from badpo.attributes import Length
from badpo.objective.objectives import VoteWeights


class Bounded(VoteWeights):
    """Loss (1 - p^q) / q of a vote with probability p; it is bounded, so random votes have a small effect."""

    def __init__(self, q: float = 0.7):
        self.q = q

    def losses(self, margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
        """Return the loss of each vote; with q near 0 it is BA-DPO's loss, and with q = 1 it is 1 - p."""
        log_p = -super().losses(margins, bias_logits, sign)
        return (1 - (self.q * log_p).exp()) / self.q


if __name__ == "__main__":
    model, table = (*sys.argv[1:], "examples/votes.csv")[:2]
    judgments = Judgments.read(table, attributes=[Length(ratio=1.5)])
    args = BADPOConfig(
        "runs/own-objective", max_steps=10, per_device_train_batch_size=8, report_to="none"
    )
    trainer = BADPOTrainer(model, args=args, train_dataset=judgments, objective=Bounded(q=0.7))
    print(trainer.train())
    print(trainer.bias.summary()["theta_mean"])
