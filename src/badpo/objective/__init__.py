"""The training objective: the bias term, the rule that moves theta, and the judgment weights."""
