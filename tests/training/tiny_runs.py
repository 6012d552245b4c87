"""Short runs of badpo's and TRL's trainers on small judgments and models."""

from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer
from tests import tiny


def judgments(**options) -> Judgments:
    return Judgments.read(tiny.votes(**options), attributes=[Length(ratio=1.5)])


# Arguments of all trainers: quiet runs in fp32 on the processor.
PLAIN = dict(use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", disable_tqdm=True)
STEPS = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=6, seed=7)
STEPS |= dict(learning_rate=1e-3, bias_learning_rate=1e-2, logging_steps=1, save_strategy="no")


def config(folder, **options) -> BADPOConfig:
    places = dict(output_dir=str(folder), reference_cache=str(folder / "cache"))
    return BADPOConfig(**(PLAIN | STEPS | places | options))


def trainer(folder, data=None, model=None, ref_model=None, bias_term=None, **options) -> BADPOTrainer:
    names = {"eval_dataset", "peft_config", "objective", "processing_class"}
    names |= {"columns", "attributes", "optimizers"}
    arguments = {name: value for name, value in options.items() if name in names}
    settings = {name: value for name, value in options.items() if name not in names}
    return BADPOTrainer(
        model if model is not None else tiny.model(),
        ref_model,
        config(folder, **settings),
        train_dataset=data if data is not None else judgments(),
        bias=bias_term,
        **({"processing_class": tiny.tokenizer()} | arguments),
    )


def lora(**options):
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **options)


def trained(folder, data=None, **options) -> BADPOTrainer:
    run = trainer(folder, data, **options)
    run.train()
    return run


def trl_trainer(rows: list[dict], folder, tokenizer, model=tiny.model, **options) -> DPOTrainer:
    """Train by TRL on chosen and rejected responses with another model as the reference."""
    args = DPOConfig(str(folder), per_device_train_batch_size=len(rows), **PLAIN, **options)
    data = Dataset.from_list(rows)
    return DPOTrainer(model(), model(seed=1), args, train_dataset=data, processing_class=tokenizer)


def untimed(metrics: dict) -> dict:
    """Remove metrics about time."""
    return {k: v for k, v in metrics.items() if not k.endswith(("_runtime", "_per_second"))}
