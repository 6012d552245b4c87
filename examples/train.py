"""Train with BA-DPO instead of TRL's DPOTrainer: python examples/train.py MODEL [votes.csv] [folder]."""

import sys

from badpo import BADPOConfig, BADPOTrainer, Judgments

model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"
table = sys.argv[2] if len(sys.argv) > 2 else "examples/votes.csv"
folder = sys.argv[3] if len(sys.argv) > 3 else "runs/train-example"

# read the votes, and declare an attribute toward which the annotators may be biased
judgments = Judgments.read(table, attributes="length:ratio=1.5")
train, held_out = judgments.split(held_out=0.2)

args = BADPOConfig(
    folder,
    bias="shared_mean",  # a shared bias and a deviation for each annotator; "none" is DPO
    batching="grouped",
    max_steps=20,
    per_device_train_batch_size=8,
    report_to="none",
)
trainer = BADPOTrainer(model, args=args, train_dataset=train, eval_dataset=held_out)
trainer.train()

print(trainer.bias.summary()["theta_mean"])
print({name: value for name, value in trainer.evaluate().items() if "accuracies" in name})
trainer.save_model()  # an ordinary model without parameters of annotators
print(f"next: badpo evaluate {folder}")
