"""Every key of a ``trl dpo`` configuration, in one of three lists, for a recipe and for `BADPOConfig`.

`HONOURED` keys do here what they do in TRL. Keys in `ACCEPTED_WITHOUT_EFFECT` are read and named in a notice,
because the run comes out the same whatever they say. Keys in `REFUSED` would change what is trained or saved:
a neutral value passes, any other one stops the run with the reason. A test compares the lists with the
fields of TRL's own configuration classes, so that a key of a new TRL release cannot slip through unnoticed.
"""

from typing import Any

DEFAULT_OUTPUT_DIR = "runs/badpo"

# Older names of keys, and the present ones.
ALIASES: dict[str, str] = {"warmup_ratio": "warmup_steps", "torch_dtype": "dtype"}


def _by_key(table: dict[Any, str]) -> dict[str, Any]:
    """What is said of each key, from the keys that each thing is said of."""
    return {key: said for said, keys in table.items() for key in keys.split()}


# By kind, in the names of `transformers.TrainingArguments` and of TRL's configuration classes.
HONOURED = _by_key(
    {
        str: """
        model_name_or_path model_revision dtype dataset_name dataset_config dataset_train_split output_dir optim_args
        log_level log_level_replica run_name project trackio_space_id trackio_bucket_id hub_token hub_model_id
        hub_revision metric_for_best_model ddp_backend fsdp
    """,
        float: """
        lora_dropout beta router_aux_loss_coef num_train_epochs learning_rate warmup_steps weight_decay adam_beta1
        adam_beta2 adam_epsilon max_grad_norm logging_steps eval_steps eval_delay save_steps
    """,
        int: """
        lora_r lora_alpha max_length per_device_train_batch_size gradient_accumulation_steps max_steps
        torch_empty_cache_steps per_device_eval_batch_size save_total_limit seed data_seed dataloader_num_workers
        ddp_bucket_cap_mb ddp_timeout local_rank
    """,
        bool: """
        use_peft disable_dropout bf16 fp16 tf32 activation_checkpointing gradient_checkpointing logging_first_step
        log_on_each_node disable_tqdm eval_on_start save_on_each_node push_to_hub hub_private_repo
        load_best_model_at_end greater_is_better restore_callback_states_from_checkpoint full_determinism use_cpu
        dataloader_pin_memory ddp_broadcast_buffers ddp_static_graph ddp_find_unused_parameters skip_memory_metrics
    """,
        Any: """
        lora_target_modules lr_scheduler_type lr_scheduler_kwargs optim optim_target_modules
        activation_checkpointing_kwargs gradient_checkpointing_kwargs logging_strategy report_to
        trackio_static_space_id eval_strategy save_strategy accelerator_config fsdp_config deepspeed debug
    """,
    }
)

ACCEPTED_WITHOUT_EFFECT = _by_key(
    {
        "the attention is chosen by `attention: packed` or `padded`": "attn_implementation",
        "the loss is normalised by the judgments of the whole step": "average_tokens_across_devices",
        "evaluation computes its own measures": "batch_eval_metrics include_for_metrics",
        "nothing is quantised": "bnb_4bit_quant_storage bnb_4bit_quant_type use_bnb_nested_quant",
        "micro-batches always arrive in the planned order": "dataloader_in_order",
        "workers are started in the usual way": "dataloader_multiprocessing_context",
        "workers are started for each epoch": "dataloader_persistent_workers",
        "workers prefetch as usual": "dataloader_prefetch_factor",
        "each comparison is tokenized once, in this process": "dataset_num_proc",
        "the table of judgments is read whole": "dataset_streaming",
        "held-out judgments are split off by prompt, see `held_out`": "dataset_test_split",
        "it belongs to another loss": "discopop_tau",
        "`eval_strategy` decides": "do_eval",
        "there is no prediction stage": "do_predict",
        "`badpo train` trains": "do_train",
        "evaluation keeps no logits": """
        eval_accumulation_steps eval_do_concat_batches eval_use_gather_object prediction_loss_only
    """,
        "it belongs to another divergence": "f_alpha_divergence_coef",
        "only the finished model is published": "hub_always_push",
        "no such buffer takes part in the forward": "ignore_bias_buffers",
        "lengths are counted from the token ids": "length_column_name",
        "a loss that is not finite is always shown": "logging_nan_inf_filter",
        "the packed forward has no padding": "pad_to_multiple_of",
        "padding is masked, whichever token stands there": "pad_token",
        "`attention: packed` reads no padding": "padding_free",
        "reference batches are filled by tokens": "precompute_ref_batch_size",
        "reference log-probabilities are always computed once and cached": "precompute_ref_log_probs",
        "the reference stays fixed": "ref_model_mixup_alpha ref_model_sync_steps",
        "the columns that are used are named in `columns`": "remove_unused_columns",
        "no cache of keys and values is kept while training": "use_cache",
    }
)

_THEIRS = "`badpo.trl.BiasAdjustedDPOTrainer`"
REFUSED = _by_key(
    {
        "the launcher starts the processes: `accelerate launch --num_processes N -m badpo train "
        "--config RECIPE`, with `--config_file FILE` for a configuration of its own": "accelerate_config num_processes",
        "it changes the forward in which the log-probabilities are computed": """
        torch_compile torch_compile_backend torch_compile_mode
    """,
        "it changes the forward in which the log-probabilities are computed; in Python "
        f"{_THEIRS} takes it": "activation_offloading liger_kernel_config use_liger_kernel",
        "a restart would keep the trained weights and reset theta; set "
        "`per_device_train_batch_size`": "auto_find_batch_size",
        "policy and reference must use the same numerics": "bf16_full_eval fp16_full_eval",
        "no judgment is dropped; the last step of an epoch may be smaller": "dataloader_drop_last",
        "name one table of judgments with `dataset_name`": "datasets streaming",
        "a checkpoint without theta or the optimizer could not be resumed to the same result; the "
        "finished model is in `model/`": "enable_jit_checkpoint save_only_model",
        "set environment variables in the shell": "env",
        "the implicit reward is that of the reverse KL divergence; set `reverse_kl`, or take `trl.DPOTrainer`, "
        "without theta": "f_divergence_type",
        "checkpoints hold the estimates of individual annotators; only `model/` is published": "hub_strategy",
        "a resumed run continues with the judgments that it has not seen": "ignore_data_skip",
        "a packed micro-batch has no `input_ids` to count": "include_num_input_tokens_seen",
        "votes are read from the columns named in `columns`": "label_names",
        "it belongs to other losses; noise in the votes is not the same as bias; set `0`; with `loss_type` `robust` "
        f"or `exo_pair` in Python {_THEIRS} takes it": "label_smoothing",
        "it belongs to a token-level loss": "label_smoothing_factor",
        "the loss is the bias-adjusted DPO loss (`sigmoid`), or that of an objective: `loss_type` takes `ipo` and the "
        "names of your own, `objective: discounted_tail` is LD-DPO (in Python also `ld_alpha`); in Python "
        f"{_THEIRS} takes further losses of TRL": "ld_alpha loss_type loss_weights",
        "nothing is quantised here; use `dtype: bfloat16` with `use_peft: true`, or in Python "
        f"{_THEIRS}": "load_in_4bit load_in_8bit",
        "only plain LoRA on linear layers has been tested here": """
        lora_modules_to_save lora_target_parameters use_dora use_rslora
    """,
        "the policy is a causal language model": "lora_task_type",
        "`dtype` and `model_revision` say how the model is loaded; for anything else load the "
        "model in Python and hand it to BADPOTrainer": "model_init_kwargs",
        "noise in the policy alone would make the first margin other than 0": "neftune_noise_alpha",
        "sequences are not split over devices; use `fsdp` or `deepspeed`": "parallelism_config",
        "`badpo train --resume` takes the newest checkpoint whose checksums agree": "resume_from_checkpoint",
        "the bias is measured from a fixed reference; set `false`, or take `trl.DPOTrainer`, "
        "without theta": "sync_ref_model",
        "set `held_out`, the share of prompts that is held out": "test_split_size",
        "sorting by length puts all judgments of a comparison into one batch, which changes the "
        "batch": "train_sampling_strategy",
        "responses are cut at the end, or not at all with a larger `max_length`; in Python "
        f"{_THEIRS} takes `keep_end`": "truncation_mode",
        "a file cannot allow remote code; give `--trust-remote-code` yourself": "trust_remote_code",
        "votes are weighted by the `weight` column, not by the policy; set `false`; in Python "
        f"{_THEIRS} takes it": "use_weighting",
    }
)
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
    told = "..." if isinstance(value, dict) else value  # a secret may stand in it
    return f"{key}: {told} is refused: {REFUSED[key]}"


# The rate of theta's own Adam, as in the paper.
BIAS_LEARNING_RATE = 1e-2
PAPER_MAX_PROMPT_LENGTH = 384
_PAPER = {
    "bias": {"fit": "adam", "learning_rate": BIAS_LEARNING_RATE},
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
    "reference": {"sft": True, "learning_rate": 1e-4, "num_train_epochs": 1.0},
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper-0.5b": {
        **_PAPER,
        "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
        "dtype": "float32",
        "learning_rate": 5e-7,
        "reference": {"sft": True, "learning_rate": 1e-5, "num_train_epochs": 1.0},
    },
    "paper-8b-lora": {**_PAPER_LORA, "model_name_or_path": "meta-llama/Llama-3.1-8B-Instruct"},
    "paper-7b-lora": {**_PAPER_LORA, "model_name_or_path": "mistralai/Mistral-7B-Instruct-v0.3"},
}
