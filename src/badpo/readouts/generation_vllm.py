"""Answers sampled from a saved policy by vLLM, in the form of `badpo.readouts.generation`.

vLLM is imported when answers are asked for, never before: it is large, and nothing else here needs it.
"""

from __future__ import annotations

import gc
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from badpo.data.problems import ConfigError
from badpo.readouts.generation import (
    Generation,
    as_generation,
    end_ids,
    given_prompt_ids,
    most_tokens,
    require_decoding,
)

GENERATORS = ("transformers", "vllm")
INSTALL = 'pip install "ba-dpo[train,vllm]", in an environment of its own'
# The ranks that vLLM can make room for.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
# Of the GPU memory that is free when the engine starts: the reference and the judge stay where they are.
MEMORY_SHARE = 0.85


def sample_saved(
    folder: Path,
    prompts: Sequence,
    max_new_tokens: int,
    temperature: float = 0.7,
    top_p: float = 0.9,
    seed: int = 0,
    adapter: Path | None = None,
) -> list[Generation]:
    """One answer to each prompt from a saved policy; `badpo.readouts.generation.sample` on vLLM.

    What comes back is of the same form and the same distribution, and not the same answers: vLLM draws its own random
    numbers. Every prompt has a seed of its own, made from ``seed`` and its place. The engine is started for the call
    and ended with it, so that its memory is free for the forward passes that follow.
    """
    require_decoding(temperature, top_p)
    require_vllm()
    from vllm import LLM, SamplingParams

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    prompt_ids = given_prompt_ids(prompts, tokenizer)
    most = most_tokens(config, prompt_ids, max_new_tokens)
    ends = end_ids(_generation_config(folder, config), tokenizer)
    longest = max((len(ids) + int(n) for ids, n in zip(prompt_ids, most, strict=True)), default=1)
    asked = [
        SamplingParams(
            temperature=temperature,
            top_p=top_p,
            max_tokens=int(n),
            seed=prompt_seed(seed, place),
            stop_token_ids=sorted(ends),
            # the ids are what is wanted; the text is made of them here, as it is for transformers
            detokenize=False,
            skip_special_tokens=False,
        )
        for place, n in enumerate(most)
    ]
    engine = LLM(model=str(folder), tokenizer=str(folder), **_engine_arguments(config, longest, adapter))
    try:
        found = engine.generate(
            [{"prompt_token_ids": ids} for ids in prompt_ids],
            asked,
            use_tqdm=False,
            lora_request=_lora_request(adapter),
        )
        answers = [_answer_ids(output, ids, ends) for output, ids in zip(found, prompt_ids, strict=True)]
    finally:
        del engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return [
        as_generation(tokenizer, ids, answer, ends) for ids, answer in zip(prompt_ids, answers, strict=True)
    ]


def require_vllm() -> None:
    """Refuse to go on without vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            f"answers cannot be drawn with vLLM, which is not installed: {INSTALL}; or draw them with transformers"
        )


def prompt_seed(seed: int, place: int) -> int:
    """The seed of one prompt, a function of the seed and its place alone."""
    return int(np.random.SeedSequence([seed, place]).generate_state(1)[0])


def saved_folders(policy) -> tuple[Path, Path | None]:
    """Where a policy that was loaded from files has its model, and its adapter where it has one."""
    is_adapted = hasattr(policy, "peft_config")
    base = policy.get_base_model() if is_adapted else policy
    folder, adapter = Path(base.name_or_path), getattr(policy, "adapter_folder", None)
    is_saved = bool(base.name_or_path) and (folder / "config.json").exists()
    if not is_saved or (is_adapted and adapter is None):
        raise ConfigError("vLLM reads a policy from its files, and this one was not loaded from a folder")
    return folder, adapter


def _engine_arguments(config, longest: int, adapter: Path | None) -> dict[str, Any]:
    """What the engine is started with, besides the model."""
    found: dict[str, Any] = {
        "max_model_len": longest,
        # left to itself it turns float32 into 16 bits, and the policy that answers would not be the one measured
        "dtype": str(getattr(config, "dtype", None) or "auto").removeprefix("torch."),
        # it answers one batch and ends: captured graphs would hardly be used
        "enforce_eager": True,
    }
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        found["gpu_memory_utilization"] = round(MEMORY_SHARE * free / total, 3)
    if adapter is not None:
        rank = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["r"]
        if rank > RANKS[-1]:
            raise ConfigError(f"{adapter} has rank {rank}, and vLLM takes {RANKS[-1]} at most")
        found |= {"enable_lora": True, "max_lora_rank": next(most for most in RANKS if most >= rank)}
    return found


def _lora_request(adapter: Path | None):
    if adapter is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest("policy", 1, str(adapter))


def _generation_config(folder: Path, config) -> GenerationConfig:
    if (folder / "generation_config.json").exists():
        return GenerationConfig.from_pretrained(folder)
    return GenerationConfig.from_model_config(config)


def _answer_ids(output, prompt_ids: list[int], ends: set[int]) -> list[int]:
    """The sampled tokens of one of vLLM's results, the one that ended the answer included."""
    if list(output.prompt_token_ids) != prompt_ids:
        raise RuntimeError("vLLM answered another prompt than the one it was given")
    (answer,) = output.outputs
    ids = list(answer.token_ids)
    was_ended = bool(ids) and ids[-1] in ends
    if answer.finish_reason not in ("stop", "length") or (answer.finish_reason == "stop") != was_ended:
        raise RuntimeError(
            f"vLLM's answer has {len(ids)} tokens and was ended by {answer.finish_reason!r}, and "
            f"{'ends' if was_ended else 'does not end'} with an end-of-text token"
        )
    return ids
