"""The reference cache: each value is computed once, keys depend on weights, and damaged shards are replaced."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from badpo.training import reference
from badpo.training.logprobs import response_logps
from badpo.training.reference import ReferenceCache, compute_weights_key, default_cache
from tests import tiny

N_TOKENS = 60


def pairs(n: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(seed).integers
    return [(draw(2, N_TOKENS, draw(1, 5)), draw(2, N_TOKENS, draw(1, 7))) for _ in range(n)]


def same(found, expected) -> bool:
    return all(np.array_equal(f, e) for f, e in zip(found, expected, strict=True))


def stand_in(model, asked) -> list[np.ndarray]:
    """Compute values of a response that are the same in every process."""
    return [np.sqrt(response.astype(np.float32)) for _, response in asked]


def test_values_equal_the_model_and_are_computed_once(tmp_path, monkeypatch):
    model, ids = tiny.model(), np.array([5, 6, 7, 8])
    # the last two pairs have the same tokens with another length of the prompt
    asked = [*pairs(6), (ids[:1], ids[1:]), (ids[:2], ids[2:])]
    cache = ReferenceCache(tmp_path, "key")
    found = cache.logps(model, [*asked, asked[0]])
    assert cache.n_computed == 8
    assert same(found, response_logps(model, [*asked, asked[0]]))
    with monkeypatch.context() as computing:
        computing.setattr(reference, "response_logps", stand_in)
        assert same(cache.logps(model, asked[::-1]), found[:8][::-1])
        assert cache.n_computed == 8
        cache.logps(model, [*asked, *pairs(2, seed=1)])
        assert cache.n_computed == 10

    # another instance with the same key and code computes nothing
    monkeypatch.setattr(reference, "response_logps", None)
    second = ReferenceCache(tmp_path, "key")
    mapped = second.logps("a model", asked[2:])
    assert same(mapped, found[2:8]) and second.n_computed == 0
    for values in mapped:
        assert isinstance(values.base.base, pa.FloatArray) and values.dtype == np.float32
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    with pytest.raises(TypeError):
        ReferenceCache(tmp_path, "another key").logps("a model", asked)
    monkeypatch.setattr(reference, "scoring_code", lambda: "another version")
    with pytest.raises(TypeError):
        ReferenceCache(tmp_path, "key").logps("a model", asked)


def test_two_processes_can_write_at_the_same_time(tmp_path, monkeypatch):
    asked = pairs(40)
    both_compute = threading.Barrier(2)

    def compute(model, missing):
        both_compute.wait(timeout=10)
        return stand_in(model, missing)

    monkeypatch.setattr(reference, "response_logps", compute)

    def is_right(part: list) -> bool:
        return same(ReferenceCache(tmp_path, "key").logps("a model", part), stand_in(None, part))

    for parts in [(asked[:20], asked[:20]), (asked[10:35], asked[15:])]:
        with ThreadPoolExecutor(2) as writers:
            assert list(writers.map(is_right, parts)) == [True, True]

    monkeypatch.setattr(reference, "response_logps", None)
    assert is_right(asked)
    # equal values of both writers are one shard, overlapping values are two shards, and no temporary file remains
    names = [path.name for path in ReferenceCache(tmp_path, "key").folder.iterdir()]
    assert len(names) == 3 and all(name.startswith("shard-") for name in names)


def adapted(alpha: int = 8, seed: int = 0):
    """Make a model with an adapter that changes its outputs."""
    model = tiny.model()
    torch.manual_seed(seed)
    options = dict(r=2, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(model, LoraConfig(lora_alpha=alpha, **options))


def configured(**settings):
    """Copy the weights into a model with other settings."""
    model = tiny.model()
    other = type(model)(type(model.config)(**(model.config.to_dict() | settings)))
    other.load_state_dict(model.state_dict())
    return other


def test_the_key_depends_exactly_on_what_changes_the_values(tmp_path):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    changed = tiny.model()
    list(changed.parameters())[-1].data.view(-1)[0] += 1e-6
    models = [
        *(tiny.model(), tiny.model(seed=1), changed, tiny.model().bfloat16()),
        *(configured(rope_parameters={"rope_type": "default", "rope_theta": 100.0}),),
        *(configured(rope_parameters=rope), configured(use_sliding_window=True, sliding_window=8)),
        *(adapted(), adapted(alpha=16), adapted(seed=1)),
    ]
    keys = [compute_weights_key(model, "fp32") for model in models] + [
        compute_weights_key(models[0], "bf16-autocast")
    ]
    assert len(set(keys)) == len(keys)
    models[0].save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32")
    loaded.config.use_cache = False
    loaded.config.attention_dropout = 0.1
    assert compute_weights_key(loaded, "fp32") == keys[0]
    with models[-1].disable_adapter():
        assert compute_weights_key(models[-1], "fp32") == keys[0]


def test_the_default_folder_is_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "badpo" / "reference"


@pytest.mark.parametrize("damage", ["a changed byte", "a lost end", "nothing left"])
def test_damaged_and_missing_shards_are_computed_again_with_identical_bits(
    tmp_path, monkeypatch, caplog, damage
):
    monkeypatch.setattr(reference, "RESPONSES_PER_SHARD", 2)
    model, asked = tiny.model(), pairs(7)
    whole = [values.copy() for values in ReferenceCache(tmp_path, "key").logps(model, asked)]
    folder = ReferenceCache(tmp_path, "key").folder
    shards = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(shards) == 4
    names = {path.name for path in shards}
    content = shards[1].read_bytes()
    damaged = {"a changed byte": content[:-1] + b"\x7f", "a lost end": content[:-3], "nothing left": b""}
    shards[1].write_bytes(damaged[damage])
    shards[3].unlink()
    for n_computed, n_told in ((3, 1), (0, 0)):
        caplog.clear()
        cache = ReferenceCache(tmp_path, "key")
        assert same(cache.logps(model, asked), whole)
        assert cache.n_computed == n_computed
        assert [shards[1].name in text for text in caplog.messages] == [True] * n_told
        assert {path.name for path in folder.iterdir()} == names
