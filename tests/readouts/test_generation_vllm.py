"""Answers through vLLM's interface, with a stand-in that has its names and records what it is asked."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest

from badpo.data.problems import ConfigError
from badpo.readouts.generation import sample, sample_saved, saved_folders
from tests.readouts import policies

PROMPTS = [*policies.asked(policies.tokenizer(), ["Why?", "How is it done, and by whom?"]), [5, 6, 7]]


@dataclass(kw_only=True)
class SamplingParams:
    """Those of vLLM's settings that are used here, by its names and with its defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = 16
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class Engine:
    """What the stand-in was told, and what it answers: one list of token ids and a reason for each prompt."""

    answers: list = field(default_factory=list)
    arguments: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    lora_request: LoRARequest | None = None

    def start(self, **arguments):
        self.arguments = arguments
        return self

    def generate(self, prompts, sampling_params, *, use_tqdm=True, lora_request=None):
        self.asked, self.lora_request = list(sampling_params), lora_request
        return [
            SimpleNamespace(
                prompt_token_ids=list(prompt["prompt_token_ids"]),
                outputs=[SimpleNamespace(token_ids=tuple(ids), finish_reason=reason)],
            )
            for prompt, (ids, reason) in zip(prompts, self.answers, strict=True)
        ]


@pytest.fixture
def engine(monkeypatch) -> Engine:
    found = Engine()
    vllm, lora, request = ModuleType("vllm"), ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    vllm.LLM, vllm.SamplingParams, request.LoRARequest = found.start, SamplingParams, LoRARequest
    for module in (vllm, lora, request):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    policies.qwen2().save_pretrained(folder)
    policies.tokenizer().save_pretrained(folder)
    return folder


def test_the_result_is_that_of_transformers_to_the_letter(engine, saved):
    """vLLM keeps the end-of-text token among the ids, and gives no text here."""
    prompts = PROMPTS * 6
    drawn = sample(policies.qwen2(), policies.tokenizer(), prompts, 60, temperature=3.0, top_p=0.99)
    assert len({answer.ended for answer in drawn}) == 2
    engine.answers = [(answer.token_ids, "stop" if answer.ended else "length") for answer in drawn]
    assert sample_saved(saved, prompts, 60, temperature=3.0, top_p=0.99) == drawn


def test_every_prompt_has_settings_and_a_seed_of_its_own(engine, saved):
    engine.answers = [([9, 1], "stop")] * 3
    prompts = [[5], [5], [5] * 250]
    sample_saved(saved, prompts, 30, temperature=0.5, top_p=0.8, seed=42)
    first = [one.seed for one in engine.asked]
    assert len(set(first)) == 3 and all(isinstance(seed, int) for seed in first)
    # where the model has 256 positions an answer to 250 tokens has 6
    assert [one.max_tokens for one in engine.asked] == [30, 30, 6]
    (rest,) = {(one.temperature, one.top_p, *one.stop_token_ids, one.detokenize) for one in engine.asked}
    assert rest == (0.5, 0.8, 1, False)
    sample_saved(saved, prompts, 30, seed=42)
    assert [one.seed for one in engine.asked] == first
    sample_saved(saved, prompts, 30, seed=43)
    assert not set(first) & {one.seed for one in engine.asked}


def test_the_engine_reads_the_policy_as_it_was_saved(engine, saved):
    engine.answers = [([9, 1], "stop")]
    sample_saved(saved, [[5] * 20], 30)
    told = engine.arguments
    assert (told["model"], told["tokenizer"]) == (str(saved), str(saved))
    assert (told["dtype"], told["max_model_len"]) == ("float32", 50)
    assert "enable_lora" not in told and engine.lora_request is None


@pytest.mark.parametrize(("rank", "room"), [(8, 8), (12, 16), (32, 32)])
def test_an_adapter_is_asked_for_with_room_for_its_rank(engine, saved, tmp_path, rank, room):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": rank}), encoding="utf-8")
    engine.answers = [([9, 1], "stop")]
    sample_saved(saved, [[5]], 4, adapter=tmp_path)
    assert (engine.arguments["enable_lora"], engine.arguments["max_lora_rank"]) == (True, room)
    assert engine.lora_request is not None and engine.lora_request.lora_path == str(tmp_path)


def test_an_answer_for_every_prompt_is_needed(engine, saved):
    engine.answers = [([9, 1], "stop")] * 2
    generate = engine.generate
    engine.generate = lambda *given, **more: generate(*given, **more)[:1]
    with pytest.raises(ValueError, match="shorter"):
        sample_saved(saved, [[5], [6]], 4)


def test_bad_requests_are_refused_as_by_transformers(engine, saved):
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        sample_saved(saved, [[5], []], 4)
    with pytest.raises(ValueError, match="prompt 0 has 256 tokens"):
        sample_saved(saved, [[5] * 256], 4)
    with pytest.raises(ValueError, match="top_p"):
        sample_saved(saved, PROMPTS, 4, top_p=0.0)
    assert engine.arguments == {}


def test_without_vllm_it_is_said_how_to_install_it(monkeypatch, saved):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r'pip install "ba-dpo\[train,vllm\]"'):
        sample_saved(saved, PROMPTS, 4)


def test_a_policy_is_known_by_the_folder_it_was_loaded_from(saved, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(saved)
    assert saved_folders(loaded) == (saved, None)
    adapted = get_peft_model(loaded, LoraConfig(r=4, target_modules="all-linear"))
    with pytest.raises(ConfigError, match="not loaded from a folder"):
        saved_folders(adapted)
    adapted.adapter_folder = tmp_path
    assert saved_folders(adapted) == (saved, tmp_path)
    with pytest.raises(ConfigError, match="not loaded from a folder"):
        saved_folders(policies.qwen2())
