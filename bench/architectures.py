"""What badpo does with each architecture of transformers: `python -m bench.architectures`.

Every model is tiny and random. Its trainer packs it, pads it and says why, or refuses it and says why; where it trains,
the gradients of its first step are compared with plain forwards of each prompt and response by the model's own class,
and with TRL's trainer where that trains it. Nothing may be trained with other gradients.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench import timing
from bench.workloads import COLUMNS, Workload, word_tokenizer

PAGE = Path("docs/results/architectures.md")
# Of a gradient's entry from a plain forward's and from TRL's, relative to the largest entry, in fp32.
LARGEST_DIFFERENCE = 2e-5
# What TRL's head leaves out of the class's own logits, so that its gradients are not those of the model.
TRL_LEAVES_OUT = {
    "modernbert-decoder": "the layer before the output embedding",
    "bert as a decoder": "the layer before the output embedding",
    "recurrent_gemma": "the soft cap",
}
MOVED = 0.02
N_COMPARISONS, MICRO_BATCH, N_MICRO = 8, 4, 2
N_WORDS = 64
WITHOUT_AUXILIARY_LOSS = {"router_aux_loss_coef": 0.0}

STANDARD = (
    "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 olmo olmo2 olmo3 smollm3 glm glm4 granite starcoder2 "
    "stablelm cohere cohere2 nemotron exaone4 helium arcee ernie4_5 seed_oss ministral ministral3 diffllama "
    "hunyuan_v1_dense apertus vaultgemma bitnet jais2 cwm nanochat persimmon gpt_neox biogpt"
)
# What is drawn: a name, with its settings; `type` is the type of its configuration, where the name does not say it.
SETTINGS = yaml.safe_load("""
parts:
- &special {vocab_size: 64, pad_token_id: 0, bos_token_id: 1, eos_token_id: 1}
- &plain {<<: *special, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4,
          max_position_embeddings: 128, initializer_range: 0.2}
- &sizes {<<: *plain, num_key_value_heads: 2, head_dim: 8}
- &heads {<<: *plain, num_key_value_heads: 4, head_dim: 8}
- &gpt2 {<<: *special, n_embd: 32, n_layer: 2, n_head: 4, n_positions: 128, initializer_range: 0.2}
- &opt {<<: *special, hidden_size: 32, ffn_dim: 48, num_hidden_layers: 2, num_attention_heads: 4,
        max_position_embeddings: 128, init_std: 0.2}
- &experts {num_experts: 4, num_experts_per_tok: 2}
- &local {num_local_experts: 4, num_experts_per_tok: 2}
- &small {<<: *experts, moe_intermediate_size: 16, shared_expert_intermediate_size: 16}
- &routed {n_routed_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 16, n_shared_experts: 1,
           first_k_dense_replace: 1, n_group: 1, topk_group: 1}
- &latent {<<: [*routed, *heads], q_lora_rank: 16, kv_lora_rank: 16, qk_rope_head_dim: 8, qk_nope_head_dim: 8,
           v_head_dim: 8}
- &mamba2 {mamba_n_heads: 8, mamba_d_head: 8, mamba_d_state: 8, mamba_n_groups: 1, mamba_expand: 2,
           mamba_chunk_size: 16}
- &linear {layer_types: [linear_attention, full_attention]}
- &pictures {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}
- &rope {rope_theta: 1.0e+4}
architectures:
  llama, llama3 positions: {<<: *sizes, type: llama, rope_parameters: {<<: *rope, rope_type: llama3, factor: 4.0,
    low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position_embeddings: 32}}
  llama, yarn: {<<: *sizes, type: llama, rope_parameters: {<<: *rope, rope_type: yarn, factor: 4.0}}
  llama, dynamic NTK: {<<: *sizes, type: llama, max_position_embeddings: 24,
    rope_parameters: {<<: *rope, rope_type: dynamic, factor: 2.0}}
  phi3, longrope: {<<: *sizes, type: phi3, original_max_position_embeddings: 24, rope_parameters: {<<: *rope,
    rope_type: longrope, short_factor: [1.0, 1.0, 1.0, 1.0], long_factor: [4.0, 4.0, 4.0, 4.0]}}
  mistral, window: {<<: *sizes, type: mistral, sliding_window: 16}
  gemma3, window: {<<: *sizes, type: gemma3_text, sliding_window: 16}
  olmo3, window: {<<: *sizes, type: olmo3, sliding_window: 16, layer_types: [sliding_attention, full_attention]}
  gpt2: *gpt2
  gptj: {<<: *gpt2, rotary_dim: 4}
  codegen: {<<: *gpt2, rotary_dim: 4}
  gpt_bigcode: *gpt2
  gpt_neo: {<<: *special, hidden_size: 32, num_layers: 2, num_heads: 4, window_size: 16, max_position_embeddings: 128,
    attention_types: [[[global, local], 1]], initializer_range: 0.2}
  falcon: *plain
  falcon, alibi: {<<: *plain, type: falcon, alibi: true, multi_query: false}
  bloom: {<<: *special, hidden_size: 32, n_layer: 2, n_head: 4, initializer_range: 0.2}
  mpt: {<<: *special, d_model: 32, n_layers: 2, n_heads: 4, max_seq_len: 128, initializer_range: 0.2}
  opt: {<<: *opt, word_embed_proj_dim: 32}
  opt, projected: {<<: *opt, type: opt, word_embed_proj_dim: 16, do_layer_norm_before: false}
  xglm: {<<: *special, d_model: 32, ffn_dim: 48, num_layers: 2, attention_heads: 4, max_position_embeddings: 128,
    init_std: 0.2}
  ctrl: {<<: *gpt2, dff: 48}
  modernbert-decoder: {<<: *heads, global_attn_every_n_layers: 1}
  bert as a decoder: {<<: *heads, type: bert, is_decoder: true}
  roberta as a decoder: {<<: *heads, type: roberta, is_decoder: true}
  mixtral: {<<: [*local, *sizes]}
  phimoe: {<<: [*local, *sizes]}
  granitemoe: {<<: [*local, *sizes]}
  granitemoeshared: {<<: [*local, *sizes], shared_intermediate_size: 16}
  gpt_oss: {<<: [*local, *sizes]}
  qwen2_moe: {<<: [*small, *sizes]}
  qwen3_moe: {<<: [*small, *sizes]}
  olmoe: {<<: [*experts, *sizes]}
  flex_olmo: {<<: [*experts, *sizes]}
  deepseek_v2: *latent
  deepseek_v3: *latent
  glm4_moe: {<<: [*routed, *sizes]}
  ernie4_5_moe: {<<: *sizes, moe_num_experts: 4, moe_k: 2, moe_intermediate_size: 16, moe_num_shared_experts: 1}
  hunyuan_v1_moe: {<<: *sizes, num_experts: 4, moe_topk: 2, moe_intermediate_size: 16, num_shared_expert: 1}
  llama4_text: &llama4 {<<: *sizes, num_local_experts: 4, num_experts_per_tok: 1, intermediate_size_mlp: 48}
  llama4: {text_config: *llama4, vision_config: {<<: *pictures, image_size: 28, patch_size: 14, vision_output_dim: 16,
    projector_input_dim: 16, projector_output_dim: 16}}
  olmo_hybrid: *sizes
  qwen3_next: {<<: [*small, *linear, *sizes], linear_num_value_heads: 4, linear_num_key_heads: 2,
    linear_key_head_dim: 8, linear_value_head_dim: 8}
  minimax: {<<: [*local, *linear, *sizes], block_size: 16}
  jamba: {<<: [*experts, *sizes], attn_layer_period: 2, attn_layer_offset: 1, expert_layer_period: 2,
    expert_layer_offset: 1, mamba_d_state: 8, mamba_d_conv: 4, mamba_expand: 2, mamba_dt_rank: 4,
    use_mamba_kernels: false}
  bamba: {<<: [*mamba2, *sizes], attn_layer_indices: [1]}
  falcon_h1: {<<: [*mamba2, *sizes], mamba_d_ssm: 64}
  granitemoehybrid: {<<: [*local, *mamba2, *sizes], shared_intermediate_size: 16, layer_types: [mamba, attention]}
  lfm2: {<<: *sizes, layer_types: [conv, full_attention]}
  recurrent_gemma: {<<: *sizes, num_hidden_layers: 3, lru_width: 32, attention_window_size: 16}
  mamba: {<<: *special, hidden_size: 32, state_size: 8, num_hidden_layers: 2, use_mambapy: false}
  mamba2: {<<: *special, hidden_size: 32, state_size: 8, num_hidden_layers: 2, num_heads: 8, head_dim: 8, n_groups: 1,
    chunk_size: 16}
  qwen2_5_vl:
    text_config: {<<: *sizes, rope_parameters: {<<: *rope, rope_type: default, mrope_section: [1, 1, 2]}}
    vision_config: {depth: 1, hidden_size: 16, num_heads: 2, intermediate_size: 16, out_hidden_size: 32}
  gemma3: {text_config: *sizes, vision_config: {<<: *pictures, image_size: 28, patch_size: 14}}
  bert, reads ahead: {<<: *heads, type: bert}
  xlnet: {<<: *special, d_model: 32, n_layer: 2, n_head: 4, d_inner: 48}
  t5: {<<: *special, d_model: 32, d_kv: 8, d_ff: 48, num_layers: 2, num_heads: 4}
""")
ARCHITECTURES: dict[str, dict[str, Any]] = dict.fromkeys(STANDARD.split(), SETTINGS["parts"][2])
ARCHITECTURES |= SETTINGS["architectures"]

HEAD = """\
# Architectures

What badpo does with {n} architectures of transformers, written by

    python -m bench.architectures

The models are tiny, with random weights in fp32. `outcome`: `packed`, `padded` (one row for each response) or
`refused`, with the `reason` in the trainer's words. `error`: largest difference of an entry of the first step's
gradients from plain forwards of each prompt and response by the model's own class, relative to the largest entry;
`from_trl`: from the gradients of TRL's loss (router's auxiliary loss off), where TRL trains the model.
`self_test_values` and `self_test_gradient` are what the start-up test found, relative too. The command fails where
anything is trained and `error` or `from_trl` is above {largest:.0e}.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", choices=list(ARCHITECTURES), action="append")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", default=PAGE, help="the page to write")
    options = parser.parse_args()
    timing.quiet()
    timing.pin_threads()
    rows = [measured(name) for name in options.only or ARCHITECTURES]
    head = HEAD.format(n=len(ARCHITECTURES), largest=LARGEST_DIFFERENCE)
    page, options.markdown = options.markdown, None
    timing.report("Outcomes", rows, options)
    if not options.only:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(head + timing.as_markdown("Outcomes", rows, timing.machine()))
    if wrong := [row["architecture"] for row in rows if is_wrong(row)]:
        raise SystemExit(f"trained with other gradients: {', '.join(wrong)}")


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether a model was trained with gradients that are not its own forward's, or not TRL's for no known reason."""
    compared = ["error"] if row["architecture"] in TRL_LEAVES_OUT else ["error", "from_trl"]
    return any(row[name] is not None and not row[name] <= LARGEST_DIFFERENCE for name in compared)


def measured(name: str) -> dict[str, Any]:
    """An architecture's outcome, and its gradients beside plain forwards and TRL's."""
    import torch

    from badpo.data.problems import ConfigError
    from badpo.training.packing import packed_comparisons
    from badpo.training.self_test import choose_layout
    from bench.peers import ON_PROCESSOR, TRL, Ours, exact_gradients, relative_difference

    row = {"architecture": name, "outcome": "refused", "reason": "", "error": None, "from_trl": None}
    row |= {"self_test_values": None, "self_test_gradient": None}
    reference = random_model(name)
    models = moved(reference), reference
    with tempfile.TemporaryDirectory() as folder:
        try:
            ours = Ours(
                *(votes(), word_tokenizer(N_WORDS), models, "random", MICRO_BATCH, N_MICRO, Path(folder)),
                settings=ON_PROCESSOR | WITHOUT_AUXILIARY_LOSS,
            )
        except ConfigError as error:
            return row | {"reason": str(error)}
        layout, reason, [test] = choose_layout(ours.trainer.model.train(), "packed", ours.trainer.encoded)
        gradients = ours.first_gradients()
        row |= {
            "outcome": "packed" if layout is packed_comparisons else "padded",
            "reason": reason or "",
            "error": relative_difference(gradients, exact_gradients(ours, models, torch.float32)),
            "self_test_values": test.differences[0],
            "self_test_gradient": test.differences[1],
        }
        try:
            peer = TRL(ours, models, Path(folder), **WITHOUT_AUXILIARY_LOSS)
            row["from_trl"] = relative_difference(gradients, peer.first_gradients())
            if name in TRL_LEAVES_OUT:
                row["reason"] = f"{row['reason']} (TRL leaves out {TRL_LEAVES_OUT[name]})".strip()
        except Exception as error:
            # whatever stops TRL is not ours to judge
            row["reason"] = f"{row['reason']} (TRL does not train it: {type(error).__name__})".strip()
    return row


def random_model(name: str):
    """A tiny model with random weights, of the class that transformers gives to its configuration."""
    import torch
    import transformers

    from badpo.training.inputs import disable_dropout

    settings = copy.deepcopy(ARCHITECTURES[name])
    config = transformers.AutoConfig.for_model(settings.pop("type", name), **settings)
    for kind in ("CausalLM", "ImageTextToText", "Seq2SeqLM"):
        auto = getattr(transformers, f"AutoModelFor{kind}")
        if type(config) in auto._model_mapping:
            torch.manual_seed(0)
            model = auto.from_config(config)
            # TRL turns off dropout in modules only
            disable_dropout(model)
            return model
    raise ValueError(f"transformers has no language model for {name}")


def moved(reference):
    """The model with some noise on its weights, so that margins are not 0."""
    import torch

    policy = copy.deepcopy(reference)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += MOVED * parameter.std(correction=0) * torch.randn_like(parameter)
    return policy


def votes() -> Workload:
    """One vote on each of a few comparisons; a half of them begin with the same words."""
    import pandas as pd

    rng = np.random.default_rng(0)

    def words(n: int) -> str:
        return "".join(f"w{i} " for i in rng.integers(0, N_WORDS - 3, n))

    rows = []
    for i in range(N_COMPARISONS):
        shared = words(int(rng.integers(2, 8))) if i % 2 else ""
        a, b = (shared + words(int(rng.integers(3, 30))) for _ in "ab")
        rows.append(
            (f"c{i}", words(int(rng.integers(3, 12))), a, b, "ab"[int(rng.integers(2))], f"person {i % 3}")
        )
    return Workload(pd.DataFrame(rows, columns=COLUMNS), np.arange(N_COMPARISONS))


if __name__ == "__main__":
    main()
