"""What a vote costs, given the policy's margin: the bias term and the weights of the judgments."""
