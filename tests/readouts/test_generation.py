"""Answers by transformers against sampling one by one, and by vLLM's interface against those."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from badpo.data.problems import ConfigError
from badpo.readouts import generation
from badpo.readouts.generation import next_tokens, sample, sample_saved, saved_folders
from tests.readouts import policies

TEXTS = ["Why?", "Why is the river high in spring, and who closes the path along it?", "How much rice?"]
PROMPTS = policies.asked(policies.tokenizer(), TEXTS)


@pytest.fixture(scope="module")
def tok():
    return policies.tokenizer()


def one_by_one(model, prompt_ids, uniforms, temperature, top_p, found, end_id=1):
    """The same sampling without a cache, without padding, one prompt at a time.

    Where two tokens are equally likely but for rounding, either may stand first: it goes on with the one ``found``.
    """
    ids = list(prompt_ids)
    for step, u in enumerate(uniforms):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double().numpy() / temperature
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        order = np.argsort(-probabilities, kind="stable")
        kept = order[: int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1]
        cumulative = np.cumsum(probabilities[kept]) / probabilities[kept].sum()
        token = int(kept[np.searchsorted(cumulative, u, side="right")])
        other = found[step] if step < len(found) else token
        is_tie = abs(probabilities[other] / probabilities[token] - 1) < 1e-4
        ids.append(other if is_tie else token)
        if ids[-1] == end_id:
            break
    return ids[len(prompt_ids) :]


@pytest.mark.parametrize(
    ("build", "n", "decoding"),
    [
        (policies.qwen2, 30, (0.7, 0.9)),
        (policies.gpt2, 30, (0.7, 0.9)),
        (policies.mistral_with_window, 30, (0.7, 0.9)),
        # some end early, and keep the end token
        (policies.qwen2, 60, (3.0, 0.99)),
    ],
)
def test_batched_answers_equal_answers_one_by_one(build, n, decoding, tok):
    model = build()
    found = sample(model, tok, PROMPTS * (n // 10), n, *decoding, batch=9)
    for i, answer in enumerate(found):
        uniforms = np.random.default_rng([0, i]).random(n)
        alone = one_by_one(model, answer.prompt_ids, uniforms, *decoding, answer.token_ids)
        assert list(answer.token_ids) == alone
        assert (answer.token_ids[-1] == 1) == answer.ended
        assert 1 not in answer.token_ids[:-1] and "<end>" not in answer.text
        assert answer.ended or len(answer.token_ids) == n
    assert n == 30 or {answer.ended for answer in found} == {True, False}


def test_same_seed_same_answers_whatever_the_batch_and_the_global_state(tok):
    model = policies.qwen2()
    torch.manual_seed(1)
    first = sample(model, tok, PROMPTS * 3, 20, seed=5, batch=64)
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(1).get_state())
    torch.manual_seed(2)
    assert sample(model, tok, PROMPTS * 3, 20, seed=5, batch=2) == first
    assert sample(model, tok, PROMPTS * 3, 20, seed=6) != first


def test_nothing_is_read_on_where_all_answers_have_ended(tok):
    model, calls = policies.qwen2(), []
    model.generation_config.eos_token_id = list(range(330))
    model.register_forward_hook(lambda *told: calls.append(told))
    found = sample(model, tok, PROMPTS, 30)
    assert [len(answer.token_ids) for answer in found] == [1] * 3 and len(calls) == 1


def test_answers_stop_where_the_model_has_no_more_positions(tok):
    found = sample(policies.gpt2(), tok, [[5] * 200] * 9 + [[5] * 250], 30)
    assert not any(answer.ended for answer in found)
    assert [len(answer.token_ids) for answer in found] == [30] * 9 + [6]


def test_temperature_zero_takes_the_most_probable_token(tok):
    model = policies.qwen2()
    ids = sample(model, tok, PROMPTS[:1], 5, temperature=0)[0]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*ids.prompt_ids, *ids.token_ids]])).logits[0]
    assert logits[len(ids.prompt_ids) - 1 : -1].argmax(-1).tolist() == list(ids.token_ids)


@pytest.mark.parametrize("top_p", [0.5, 0.9, 1.0])
def test_tokens_are_drawn_with_their_probabilities(top_p):
    """A grid of random numbers gives each token its share of the nucleus."""
    torch.manual_seed(0)
    logits = 0.7 * torch.randn(500)
    probabilities = (logits.double() / 0.7).softmax(0).numpy()
    order = np.argsort(-probabilities)
    kept = order[: int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1]
    assert top_p < 0.9 or len(kept) > generation.NUCLEUS_START
    expected = np.zeros(500)
    expected[kept] = probabilities[kept] / probabilities[kept].sum()
    grid = (torch.arange(4000).double() + 0.5) / 4000
    drawn = next_tokens(logits.expand(4000, -1), grid, 0.7, top_p)
    assert np.abs(np.bincount(drawn, minlength=500) / 4000 - expected).max() < 1.1 / 4000


# -- by vLLM: a stand-in that has its names and records what it is asked -----------------------------------------


class Engine:
    """What the stand-in was told, and what it answers: token ids for each prompt."""

    def __init__(self):
        self.answers, self.arguments = [], {}

    def start(self, **arguments):
        self.arguments = arguments
        return self

    def generate(self, prompts, asked, use_tqdm, lora_request):
        self.asked, self.lora_request = asked, lora_request
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)]) for ids in self.answers]


@pytest.fixture
def engine(monkeypatch) -> Engine:
    found = Engine()
    vllm, lora, request = ModuleType("vllm"), ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    vllm.LLM, vllm.SamplingParams = found.start, SimpleNamespace
    request.LoRARequest = lambda *told: told
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


def test_the_result_is_that_of_transformers_to_the_letter(engine, saved, tok):
    """vLLM keeps the end-of-text token among the ids, and gives no text here."""
    drawn = sample(policies.qwen2(), tok, PROMPTS * 6, 60, temperature=3.0, top_p=0.99)
    assert len({answer.ended for answer in drawn}) == 2
    engine.answers = [answer.token_ids for answer in drawn]
    assert sample_saved(saved, PROMPTS * 6, 60, temperature=3.0, top_p=0.99) == drawn
    with pytest.raises(ValueError, match="shorter"):
        sample_saved(saved, PROMPTS * 7, 60)


def test_every_prompt_has_settings_and_a_seed_of_its_own(engine, saved):
    engine.answers, prompts = [[9, 1]] * 3, [[5], [5], [5] * 250]
    sample_saved(saved, prompts, 30, temperature=0.5, top_p=0.8, seed=42)
    first = [one.seed for one in engine.asked]
    assert len(set(first)) == 3 and all(isinstance(seed, int) for seed in first)
    # where the model has 256 positions an answer to 250 tokens has 6
    assert [one.max_tokens for one in engine.asked] == [30, 30, 6]
    (rest,) = {(one.temperature, one.top_p, *one.stop_token_ids, one.detokenize) for one in engine.asked}
    assert rest == (0.5, 0.8, 1, False)
    for seed, is_same in ((42, True), (43, False)):
        sample_saved(saved, prompts, 30, seed=seed)
        assert (set(first) & {one.seed for one in engine.asked} == set(first)) == is_same


@pytest.mark.parametrize(("rank", "room"), [(None, None), (8, 8), (12, 16), (32, 32)])
def test_the_engine_reads_the_policy_as_it_was_saved(engine, saved, tmp_path, rank, room):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": rank}), encoding="utf-8")
    engine.answers = [[9, 1]]
    sample_saved(saved, [[5] * 20], 30, adapter=tmp_path if rank else None)
    told = engine.arguments
    assert (told["model"], told["tokenizer"]) == (str(saved), str(saved))
    assert (told["dtype"], told["max_model_len"]) == ("float32", 50)
    assert (told.get("enable_lora"), told.get("max_lora_rank")) == (True if rank else None, room)
    assert engine.lora_request == (("policy", 1, str(tmp_path)) if rank else None)


def test_bad_requests_are_refused_alike(engine, saved, tok):
    for draw in (
        lambda *given, **more: sample(policies.qwen2(), tok, *given, **more),
        lambda *given, **more: sample_saved(saved, *given, **more),
    ):
        with pytest.raises(ValueError, match="prompt 1 has no tokens"):
            draw([[5], []], 4)
        with pytest.raises(ValueError, match="prompt 1 has 256 tokens"):
            draw([[5], [5] * 256], 4)
        with pytest.raises(ValueError, match="top_p"):
            draw(PROMPTS, 4, top_p=0.0)
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
    for policy in (adapted, policies.qwen2()):
        with pytest.raises(ConfigError, match="not loaded from a folder"):
            saved_folders(policy)
    adapted.adapter_folder = tmp_path
    assert saved_folders(adapted) == (saved, tmp_path)
