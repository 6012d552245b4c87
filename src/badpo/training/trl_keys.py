"""Every key of a ``trl dpo`` configuration, in one of three lists, for a recipe and for `BADPOConfig`.

`HONOURED` keys do here what they do in TRL. Keys in `ACCEPTED_WITHOUT_EFFECT` are read and named in a notice,
because the run comes out the same whatever they say. Keys in `REFUSED` would change what is trained or saved:
a neutral value passes, any other one stops the run with the reason. A test compares the lists with the
fields of TRL's own configuration classes, so that a key of a new TRL release cannot slip through unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """Why a key cannot be followed, and the values that ask for nothing.

    Attributes
    ----------
    neutral : tuple
        Values that are let through because they leave everything as it is.
    reason : str
        What would go wrong with any other value, and what to do instead.
    """

    neutral: tuple
    reason: str


HONOURED_MODEL: dict[str, Any] = {
    "model_name_or_path": str,
    "model_revision": str,
    "dtype": str,
    "model_init_kwargs": Any,
    "use_peft": bool,
    "lora_r": int,
    "lora_alpha": int,
    "lora_dropout": float,
    "lora_target_modules": Any,
}

# Older names of keys, and the present ones.
ALIASES: dict[str, str] = {"warmup_ratio": "warmup_steps", "torch_dtype": "dtype"}

# What TRL hands to ``accelerate launch``; the command line does so too.
LAUNCH: dict[str, Any] = {"num_processes": int, "accelerate_config": str}

DEFAULT_OUTPUT_DIR = "runs/badpo"

HONOURED_DATA: dict[str, Any] = {
    "dataset_name": str,
    "dataset_config": str,
    "dataset_train_split": str,
}

HONOURED_TRAINING: dict[str, Any] = {
    "output_dir": str,
    "beta": float,
    "router_aux_loss_coef": float,
    "max_length": int,
    "disable_dropout": bool,
    "per_device_train_batch_size": int,
    "gradient_accumulation_steps": int,
    "num_train_epochs": float,
    "max_steps": int,
    "learning_rate": float,
    "lr_scheduler_type": Any,
    "lr_scheduler_kwargs": Any,
    "warmup_steps": float,
    "optim": Any,
    "optim_args": str,
    "optim_target_modules": Any,
    "weight_decay": float,
    "adam_beta1": float,
    "adam_beta2": float,
    "adam_epsilon": float,
    "max_grad_norm": float,
    "bf16": bool,
    "fp16": bool,
    "tf32": bool,
    "activation_checkpointing": bool,
    "activation_checkpointing_kwargs": Any,
    "gradient_checkpointing": bool,
    "gradient_checkpointing_kwargs": Any,
    "torch_empty_cache_steps": int,
    "logging_strategy": Any,
    "logging_steps": float,
    "logging_first_step": bool,
    "log_on_each_node": bool,
    "log_level": str,
    "log_level_replica": str,
    "disable_tqdm": bool,
    "report_to": Any,
    "run_name": str,
    "project": str,
    "trackio_space_id": str,
    "trackio_bucket_id": str,
    "trackio_static_space_id": Any,
    "eval_strategy": Any,
    "eval_steps": float,
    "eval_delay": float,
    "eval_on_start": bool,
    "per_device_eval_batch_size": int,
    "save_strategy": Any,
    "save_steps": float,
    "save_on_each_node": bool,
    "save_total_limit": int,
    "push_to_hub": bool,
    "hub_token": str,
    "hub_private_repo": bool,
    "hub_model_id": str,
    "hub_revision": str,
    "load_best_model_at_end": bool,
    "metric_for_best_model": str,
    "greater_is_better": bool,
    "restore_callback_states_from_checkpoint": bool,
    "full_determinism": bool,
    "seed": int,
    "data_seed": int,
    "use_cpu": bool,
    "accelerator_config": Any,
    "dataloader_num_workers": int,
    "dataloader_pin_memory": bool,
    "ddp_bucket_cap_mb": int,
    "ddp_broadcast_buffers": bool,
    "ddp_static_graph": bool,
    "ddp_find_unused_parameters": bool,
    "ddp_backend": str,
    "ddp_timeout": int,
    "fsdp": str,
    "fsdp_config": Any,
    "deepspeed": Any,
    "debug": Any,
    "skip_memory_metrics": bool,
    "local_rank": int,
}

HONOURED: dict[str, Any] = {**HONOURED_MODEL, **HONOURED_DATA, **HONOURED_TRAINING, **LAUNCH}

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
_ONE_TABLE = "name one table of judgments with `dataset_name`"

REFUSED: dict[str, Refusal] = {
    "activation_offloading": Refusal((False,), _OTHER_FORWARD),
    "auto_find_batch_size": Refusal(
        (False,),
        "a restart would keep the trained weights and reset theta; set `per_device_train_batch_size`",
    ),
    "bf16_full_eval": Refusal((False,), _REFERENCE_NUMERICS),
    "dataloader_drop_last": Refusal(
        (False,), "no judgment is dropped; the last step of an epoch may be smaller"
    ),
    "datasets": Refusal(([], None), _ONE_TABLE),
    "enable_jit_checkpoint": Refusal((False,), _FULL_CHECKPOINT),
    "env": Refusal(({}, None), "set environment variables in the shell"),
    "f_divergence_type": Refusal(("reverse_kl",), "the implicit reward is that of the reverse KL divergence"),
    "fp16_full_eval": Refusal((False,), _REFERENCE_NUMERICS),
    "hub_strategy": Refusal(
        ("end", "every_save"),
        "checkpoints hold the estimates of individual annotators; only `model/` is published",
    ),
    "ignore_data_skip": Refusal((False,), "a resumed run continues with the judgments that it has not seen"),
    "include_num_input_tokens_seen": Refusal(
        ("no", False), "a packed micro-batch has no `input_ids` to count"
    ),
    "label_names": Refusal((None, []), "votes are read from the columns named in `columns`"),
    "label_smoothing": Refusal(
        (0, 0.0), "it belongs to other losses; noise in the votes is not the same as bias"
    ),
    "label_smoothing_factor": Refusal((0, 0.0), "it belongs to a token-level loss"),
    "ld_alpha": Refusal((None, 1, 1.0), _OTHER_LOSS),
    "liger_kernel_config": Refusal((None,), _OTHER_FORWARD),
    "load_in_4bit": Refusal((False,), _QUANTISED),
    "load_in_8bit": Refusal((False,), _QUANTISED),
    "lora_modules_to_save": Refusal((None, []), _LORA_SHAPE),
    "lora_target_parameters": Refusal((None, []), _LORA_SHAPE),
    "lora_task_type": Refusal(("CAUSAL_LM",), "the policy is a causal language model"),
    "loss_type": Refusal(("sigmoid", ["sigmoid"]), _OTHER_LOSS),
    "loss_weights": Refusal((None, [1], [1.0]), _OTHER_LOSS),
    "neftune_noise_alpha": Refusal(
        (None, 0, 0.0), "noise in the policy alone would make the first margin other than 0"
    ),
    "parallelism_config": Refusal((None,), "sequences are not split over devices; use `fsdp` or `deepspeed`"),
    "resume_from_checkpoint": Refusal(
        (None, False), "`badpo train --resume` takes the newest checkpoint whose checksums agree"
    ),
    "save_only_model": Refusal((False,), _FULL_CHECKPOINT + "; the finished model is in `model/`"),
    "streaming": Refusal((False,), _ONE_TABLE),
    "sync_ref_model": Refusal((False,), "the bias is measured from a fixed reference"),
    "test_split_size": Refusal((None,), "set `held_out`, the share of prompts that is held out"),
    "torch_compile": Refusal((False,), _OTHER_FORWARD),
    "torch_compile_backend": Refusal((None,), _OTHER_FORWARD),
    "torch_compile_mode": Refusal((None,), _OTHER_FORWARD),
    "train_sampling_strategy": Refusal(
        ("random",),
        "sorting by length puts all judgments of a comparison into one batch, which changes the batch",
    ),
    "truncation_mode": Refusal(
        ("keep_start",), "responses are cut at the end, or not at all with a larger `max_length`"
    ),
    "trust_remote_code": Refusal(
        (False,), "a file cannot allow remote code; give `--trust-remote-code` yourself"
    ),
    "use_dora": Refusal((False,), _LORA_SHAPE),
    "use_liger_kernel": Refusal((False,), _OTHER_FORWARD),
    "use_rslora": Refusal((False,), _LORA_SHAPE),
    "use_weighting": Refusal((False,), "votes are weighted by the `weight` column, not by the policy"),
}


def refusal(key: str, value) -> str | None:
    """Why ``key`` cannot have ``value``, in words; None when nothing stands against it.

    Parameters
    ----------
    key : str
        Any key; only those in `REFUSED` are ever refused.
    value : object
        True and 1 are told apart, so that a neutral number does not let a flag through.

    Examples
    --------
    >>> refusal("use_liger_kernel", False) is None
    True
    >>> refusal("label_smoothing_factor", 0.1)
    'label_smoothing_factor: 0.1 is refused: it belongs to a token-level loss'
    """
    entry = REFUSED.get(key)
    if entry is None or any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in entry.neutral
    ):
        return None
    return f"{key}: {value} is refused: {entry.reason}"
