"""The paper's training recipes, as values for the keys of a recipe (its Table ``tab:hyperparams``)."""

from __future__ import annotations

from typing import Any

_PAPER = {
    "encoding": "paper",
    "beta": 0.1,
    "max_length": 1280,
    "max_prompt_length": 384,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 16,
    "max_steps": 1000,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
}
_PAPER_LORA = {
    **_PAPER,
    "dtype": "bfloat16",
    "use_peft": True,
    "lora_r": 32,
    "lora_alpha": 64,
    "lora_dropout": 0.0,
    "lora_target_modules": "all-linear",
    "learning_rate": 5e-6,
    "bias": {"learning_rate": 1e-2},
    "reference": {"sft": True, "learning_rate": 1e-4, "num_train_epochs": 1.0},
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper-0.5b": {
        **_PAPER,
        "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
        "dtype": "float32",
        "learning_rate": 5e-7,
        "bias": {"learning_rate": 1e-2},
        "reference": {"sft": True, "learning_rate": 1e-5, "num_train_epochs": 1.0},
    },
    "paper-8b-lora": {**_PAPER_LORA, "model_name_or_path": "meta-llama/Llama-3.1-8B-Instruct"},
    "paper-7b-lora": {**_PAPER_LORA, "model_name_or_path": "mistralai/Mistral-7B-Instruct-v0.3"},
}
