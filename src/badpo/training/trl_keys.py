"""Every key of a ``trl dpo`` configuration, in one of three lists, for a recipe and for `BADPOConfig`.

`HONOURED` keys do here what they do in TRL. Keys in `ACCEPTED_WITHOUT_EFFECT` are read and named in a notice,
because the run comes out the same whatever they say. Keys in `REFUSED` would change what is trained or saved:
a neutral value passes, any other one stops the run with the reason. A test compares the lists with the
fields of TRL's own configuration classes, so that a key of a new TRL release cannot slip through unnoticed.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

DEFAULT_OUTPUT_DIR = "runs/badpo"

# Older names of keys, and the present ones.
ALIASES: dict[str, str] = {"warmup_ratio": "warmup_steps", "torch_dtype": "dtype"}

# By kind, in the names of `transformers.TrainingArguments` and of TRL's configuration classes.
_BY_KIND: dict[Any, str] = {
    str: """
        model_name_or_path model_revision dtype dataset_name dataset_config dataset_train_split
        output_dir optim_args log_level log_level_replica run_name project trackio_space_id
        trackio_bucket_id hub_token hub_model_id hub_revision metric_for_best_model ddp_backend fsdp
    """,
    float: """
        lora_dropout beta router_aux_loss_coef num_train_epochs learning_rate warmup_steps weight_decay
        adam_beta1 adam_beta2 adam_epsilon max_grad_norm logging_steps eval_steps eval_delay save_steps
    """,
    int: """
        lora_r lora_alpha max_length per_device_train_batch_size gradient_accumulation_steps max_steps
        torch_empty_cache_steps per_device_eval_batch_size save_total_limit seed data_seed
        dataloader_num_workers ddp_bucket_cap_mb ddp_timeout local_rank
    """,
    bool: """
        use_peft disable_dropout bf16 fp16 tf32 activation_checkpointing gradient_checkpointing
        logging_first_step log_on_each_node disable_tqdm eval_on_start save_on_each_node push_to_hub
        hub_private_repo load_best_model_at_end greater_is_better restore_callback_states_from_checkpoint
        full_determinism use_cpu dataloader_pin_memory ddp_broadcast_buffers ddp_static_graph
        ddp_find_unused_parameters skip_memory_metrics
    """,
    Any: """
        model_init_kwargs lora_target_modules lr_scheduler_type lr_scheduler_kwargs optim
        optim_target_modules activation_checkpointing_kwargs gradient_checkpointing_kwargs logging_strategy
        report_to trackio_static_space_id eval_strategy save_strategy accelerator_config fsdp_config
        deepspeed debug
    """,
}
HONOURED: dict[str, Any] = {name: kind for kind, names in _BY_KIND.items() for name in names.split()}

ACCEPTED_WITHOUT_EFFECT: dict[str, str] = {
    "attn_implementation": "the attention is chosen by `attention: packed` or `padded`",
    "average_tokens_across_devices": "the loss is normalised by the judgments of the whole step",
    "batch_eval_metrics": "evaluation computes its own measures",
    "bnb_4bit_quant_storage": "nothing is quantised",
    "bnb_4bit_quant_type": "nothing is quantised",
    "dataloader_in_order": "micro-batches always arrive in the planned order",
    "dataloader_multiprocessing_context": "workers are started in the usual way",
    "dataloader_persistent_workers": "workers are started for each epoch",
    "dataloader_prefetch_factor": "workers prefetch as usual",
    "dataset_num_proc": "each comparison is tokenized once, in this process",
    "dataset_streaming": "the table of judgments is read whole",
    "dataset_test_split": "held-out judgments are split off by prompt, see `held_out`",
    "discopop_tau": "it belongs to another loss",
    "do_eval": "`eval_strategy` decides",
    "do_predict": "there is no prediction stage",
    "do_train": "`badpo train` trains",
    "eval_accumulation_steps": "evaluation keeps no logits",
    "eval_do_concat_batches": "evaluation keeps no logits",
    "eval_use_gather_object": "evaluation keeps no logits",
    "f_alpha_divergence_coef": "it belongs to another divergence",
    "hub_always_push": "only the finished model is published",
    "ignore_bias_buffers": "no such buffer takes part in the forward",
    "include_for_metrics": "evaluation computes its own measures",
    "length_column_name": "lengths are counted from the token ids",
    "logging_nan_inf_filter": "a loss that is not finite is always shown",
    "pad_to_multiple_of": "the packed forward has no padding",
    "pad_token": "padding is masked, whichever token stands there",
    "padding_free": "`attention: packed` reads no padding",
    "precompute_ref_batch_size": "reference batches are filled by tokens",
    "precompute_ref_log_probs": "reference log-probabilities are always computed once and cached",
    "prediction_loss_only": "evaluation keeps no logits",
    "ref_model_mixup_alpha": "the reference stays fixed",
    "ref_model_sync_steps": "the reference stays fixed",
    "remove_unused_columns": "the columns that are used are named in `columns`",
    "use_bnb_nested_quant": "nothing is quantised",
    "use_cache": "no cache of keys and values is kept while training",
}

_OTHER_LOSS = "the loss is the bias-adjusted DPO loss (`sigmoid`)"
_OTHER_FORWARD = (
    "it changes the forward in which the log-probabilities are computed; it has not been tested here"
)
_FULL_CHECKPOINT = "a checkpoint without theta or the optimizer could not be resumed to the same result"
_REFERENCE_NUMERICS = "policy and reference must use the same numerics"
_QUANTISED = (
    "training on a quantised base has not been tested here; use `dtype: bfloat16` with `use_peft: true`"
)
_LORA_SHAPE = "only plain LoRA on linear layers has been tested here"
_LAUNCHER = (
    "the launcher starts the processes: `accelerate launch --num_processes N -m badpo train --config RECIPE`, "
    "with `--config_file FILE` for a configuration of its own"
)
_ONE_TABLE = "name one table of judgments with `dataset_name`"

REFUSED: dict[str, str] = {
    "accelerate_config": _LAUNCHER,
    "activation_offloading": _OTHER_FORWARD,
    "auto_find_batch_size": "a restart would keep the trained weights and reset theta; set "
    "`per_device_train_batch_size`",
    "bf16_full_eval": _REFERENCE_NUMERICS,
    "dataloader_drop_last": "no judgment is dropped; the last step of an epoch may be smaller",
    "datasets": _ONE_TABLE,
    "enable_jit_checkpoint": _FULL_CHECKPOINT,
    "env": "set environment variables in the shell",
    "f_divergence_type": "the implicit reward is that of the reverse KL divergence",
    "fp16_full_eval": _REFERENCE_NUMERICS,
    "hub_strategy": "checkpoints hold the estimates of individual annotators; only `model/` is published",
    "ignore_data_skip": "a resumed run continues with the judgments that it has not seen",
    "include_num_input_tokens_seen": "a packed micro-batch has no `input_ids` to count",
    "label_names": "votes are read from the columns named in `columns`",
    "label_smoothing": "it belongs to other losses; noise in the votes is not the same as bias",
    "label_smoothing_factor": "it belongs to a token-level loss",
    "ld_alpha": _OTHER_LOSS,
    "liger_kernel_config": _OTHER_FORWARD,
    "load_in_4bit": _QUANTISED,
    "load_in_8bit": _QUANTISED,
    "lora_modules_to_save": _LORA_SHAPE,
    "lora_target_parameters": _LORA_SHAPE,
    "lora_task_type": "the policy is a causal language model",
    "loss_type": _OTHER_LOSS,
    "loss_weights": _OTHER_LOSS,
    "neftune_noise_alpha": "noise in the policy alone would make the first margin other than 0",
    "num_processes": _LAUNCHER,
    "parallelism_config": "sequences are not split over devices; use `fsdp` or `deepspeed`",
    "resume_from_checkpoint": "`badpo train --resume` takes the newest checkpoint whose checksums agree",
    "save_only_model": _FULL_CHECKPOINT + "; the finished model is in `model/`",
    "streaming": _ONE_TABLE,
    "sync_ref_model": "the bias is measured from a fixed reference",
    "test_split_size": "set `held_out`, the share of prompts that is held out",
    "torch_compile": _OTHER_FORWARD,
    "torch_compile_backend": _OTHER_FORWARD,
    "torch_compile_mode": _OTHER_FORWARD,
    "train_sampling_strategy": "sorting by length puts all judgments of a comparison into one batch, which changes the "
    "batch",
    "truncation_mode": "responses are cut at the end, or not at all with a larger `max_length`",
    "trust_remote_code": "a file cannot allow remote code; give `--trust-remote-code` yourself",
    "use_dora": _LORA_SHAPE,
    "use_liger_kernel": _OTHER_FORWARD,
    "use_rslora": _LORA_SHAPE,
    "use_weighting": "votes are weighted by the `weight` column, not by the policy",
}
# Values that ask for what is done anyway; nothing, False and what is empty do so for every key.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "f_divergence_type": ("reverse_kl",),
    "hub_strategy": ("end", "every_save"),
    "include_num_input_tokens_seen": ("no",),
    "label_smoothing": (0,),
    "label_smoothing_factor": (0,),
    "ld_alpha": (1,),
    "lora_task_type": ("CAUSAL_LM",),
    "loss_type": ("sigmoid", ["sigmoid"]),
    "loss_weights": ([1],),
    "neftune_noise_alpha": (0,),
    "num_processes": (1,),
    "train_sampling_strategy": ("random",),
    "truncation_mode": ("keep_start",),
}


def refusal(key: str, value) -> str | None:
    """Why ``key`` cannot have ``value``, in words; None when nothing stands against it."""
    asks_for_nothing = value is None or value is False or value in ([], {}, *NEUTRAL.get(key, ()))
    if key not in REFUSED or asks_for_nothing:
        return None
    return f"{key}: {value} is refused: {REFUSED[key]}"


def kernels_are_fetched() -> bool:
    """Whether `transformers` would fetch a kernel, which is code, from the Hub: where the package for that is there."""
    return find_spec("kernels") is not None


def implementations() -> tuple[str, ...]:
    """Implementations of attention and of experts that are code installed here; any other is a kernel on the Hub."""
    flash = () if kernels_are_fetched() else ("flash_attention_2", "flash_attention_3")
    return ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm", *flash)


PAPER_MAX_PROMPT_LENGTH = 384
_PAPER = {
    "encoding": "paper",
    "beta": 0.1,
    "max_length": 1280,
    "max_prompt_length": PAPER_MAX_PROMPT_LENGTH,
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
