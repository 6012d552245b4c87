"""The small tokenizer and model are deterministic, reversible and of the size that the demo needs."""

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, MistralForCausalLM

from badpo.readouts import names
from badpo_paper.corpora import bundled
from badpo_paper.settings import SCALES, build_model, build_start, build_tokenizer


@pytest.fixture(scope="module")
def texts():
    pairs = bundled.scored_pairs(1500)
    signed_texts = names.resign([*pairs["chosen"], *pairs["rejected"]], seed=0)
    return [*(names.ask_to_sign(prompt) for prompt in pairs["prompt"]), *signed_texts]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return build_tokenizer(texts)


def test_the_tokenizer_is_reproducible_and_survives_saving(texts, tokenizer, tmp_path):
    assert build_tokenizer(texts).backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    tokenizer.save_pretrained(tmp_path)
    build_model(tokenizer, seed=0, n_layers=1).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.chat_template == tokenizer.chat_template
    # decoding restores any text
    for text in (*texts[::300], "Füße, 12.5 % \N{EM DASH} naïve\n\n\tcode();", "  two  spaces "):
        ids = loaded(text)["input_ids"]
        assert ids == tokenizer(text)["input_ids"] and loaded.decode(ids) == text


def test_the_chat_template_and_the_models_of_two_families(tokenizer, texts):
    question, answer = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
    prompt = tokenizer.apply_chat_template([question], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([question, answer], tokenize=False)
    assert prompt == "<|user|>Why?<|assistant|>"
    assert whole == prompt + "So." + tokenizer.eos_token
    assert tokenizer(whole)["input_ids"][-1] == tokenizer.eos_token_id != tokenizer.pad_token_id
    for model, kind, size in (("small", LlamaForCausalLM, 1536), ("other", MistralForCausalLM, 1024)):
        built, tokenizer = build_start(texts, **SCALES["tiny"].shapes[model])
        assert type(built) is kind and len(tokenizer) == size


def test_size_and_seed_of_the_model(tokenizer):
    state = torch.get_rng_state()
    model, again, other = (build_model(tokenizer, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert 0.4e6 < sum(p.numel() for p in model.parameters()) < 0.5e6
    assert all(p.dtype == torch.float32 for p in model.parameters())
    pairs = list(zip(model.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q, _ in pairs)
    assert any(not torch.equal(p, r) for p, _, r in pairs)
    for mark in ("eos_token_id", "pad_token_id"):
        assert getattr(model.config, mark) == getattr(tokenizer, mark)
