"""What lays tokens out for the model: packs of trees and stars, steps, and their log-probabilities."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from badpo.data.importers.cells import is_unicode
from badpo.data.judgments import Judgments
from badpo.experiments.anchor_source import read_prompts
from badpo.training.batches import comparison_steps, grouped_steps, random_steps
from badpo.training.encoding import encode_comparisons
from badpo.training.logprobs import (
    attach,
    on_device,
    response_logps,
    scoring_attention,
)
from badpo.training.packing import bin_pack, packed_layout, plan_pack, shared_length
from tests import tiny
from tests.fuzz.inputs import HOSTILE, as_file, mutated_bytes, scalars, texts
from tests.fuzz.reader_targets import refusing
from tests.fuzz.running import Target

TOLERANCE = 5e-6
# few different tokens, so that shared beginnings, prefixes and equal responses are common
_ids = st.lists(st.integers(5, 7), min_size=1, max_size=14).map(np.array)
_maybe_empty = st.lists(st.integers(5, 7), max_size=3).map(lambda ids: np.array(ids, dtype=np.int64))
_comparisons = st.lists(st.tuples(_ids, _ids, _ids), min_size=1, max_size=5)


@functools.cache
def _model() -> Any:
    return attach(tiny.model().eval())


def _packed_forward(value: tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], str]) -> None:
    """Every scored token has the log-probability of the model's own forward."""
    comparisons, scored = value
    model = _model()
    inputs, first_scored = packed_layout(*map(list, zip(*comparisons, strict=True)), scored)
    with torch.no_grad(), scoring_attention(model, packed_layout):
        values = model(scoring=on_device(inputs, torch.device("cpu"))).numpy()
        for number, (prompt, *responses) in enumerate(comparisons):
            for side, response in enumerate(responses):
                found = values[inputs["response"] == 2 * number + side]
                expected = tiny.plain_logps(model, prompt, response).numpy()[first_scored[number] :]
                np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def _read_together(value: tuple[list[tuple[np.ndarray, np.ndarray]], int]) -> None:
    pairs, budget = value
    with torch.no_grad():
        for (prompt, response), found in zip(pairs, response_logps(_model(), pairs, budget), strict=True):
            expected = tiny.plain_logps(_model(), prompt, response).numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def _planned(comparisons: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
    """A pack is refused where a part is empty; else every token knows its own sequence."""
    if not all(len(part) for parts in comparisons for part in parts):
        try:
            plan_pack(comparisons)
        except ValueError as error:
            assert "has no tokens" in str(error)
            return
        raise AssertionError("an empty part was packed")
    pack = plan_pack(comparisons)
    assert pack.segments[0, 0] == 0 and pack.segments[-1, 1] == len(pack.input_ids)
    np.testing.assert_array_equal(pack.segments[1:, 0], pack.segments[:-1, 1])
    n_scored = [len(r) - shared_length(*pair) for _, *pair in comparisons for r in pair]
    np.testing.assert_array_equal(np.bincount(pack.response, minlength=len(n_scored)), n_scored)
    sees = np.concatenate([np.full(end - start, -1) for start, end, *_ in pack.segments])
    for number, (start, end, prefix_start, prefix_end) in enumerate(pack.segments):
        assert prefix_start <= prefix_end <= start < end
        sees[start:end] = number
        own = prefix_end - prefix_start + np.arange(end - start)
        np.testing.assert_array_equal(pack.position_ids[start:end], own)
    assert (sees >= 0).all()


def _binned(value: tuple[list[int], int]) -> None:
    lengths, budget = value
    bins = bin_pack(lengths, budget)
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in members) <= budget or len(members) == 1 for members in bins)


def _stepped(value: tuple[list[int], int, int]) -> None:
    """Every way to batch gives each vote at most once in an epoch, in steps of the right size."""
    comparison, size, draw = np.array(value[0], dtype=np.int64), value[1], value[2]
    for plan in (random_steps, grouped_steps, comparison_steps):
        steps = plan(comparison, size, np.random.default_rng(draw))
        votes = np.concatenate([*steps, np.empty(0, dtype=np.int64)])
        assert len(set(votes.tolist())) == len(votes)
        assert set(votes.tolist()) <= set(range(len(comparison)))


_texts = st.lists(st.sampled_from([*tiny.WORDS, "<end>", "<user>", *HOSTILE[:9]]), max_size=6).map(" ".join)


@st.composite
def _tables(draw: st.DrawFn) -> dict[str, Any]:
    text = _texts.filter(lambda text: "\ud800" not in text)
    as_chat = draw(st.booleans())

    def said(role: str, value: str) -> Any:
        return [{"role": role, "content": value}] if as_chat else value

    rows = [
        {"prompt": said("user", f"q {p}"), "chosen": said("assistant", a), "rejected": said("assistant", b)}
        for p, a, b in draw(st.lists(st.tuples(text, text, text), min_size=1, max_size=4))
    ]
    limits = {
        "encoding": draw(st.sampled_from(["trl", "paper"])),
        "max_length": draw(st.none() | st.integers(1, 12)),
        "max_prompt_length": draw(st.none() | st.integers(1, 5)),
    }
    return {"rows": rows, "limits": limits}


def _encoded(value: dict[str, Any]) -> None:
    """Token ids are those of both texts, the longest within the limit, and what does not fit says so."""
    judgments = Judgments.read(value["rows"])
    limits = value["limits"]
    found = encode_comparisons(judgments, _tokenizer(), **limits)
    assert len(found.prompt_ids) == judgments.n_comparisons
    for c in np.flatnonzero(found.fits):
        for ids in (found.prompt_ids[c], found.a_ids[c], found.b_ids[c]):
            assert len(ids) > 0


def _read_prompts(value: tuple[str, bytes]) -> None:
    """The questions that an anchor is measured on: texts, or an error that says what is wrong with the file."""
    ending, content = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"prompts.{ending}"
        path.write_bytes(content)
        for prompt in read_prompts(path):
            assert prompt.strip() == prompt != "" and is_unicode(prompt)


_prompt_rows = st.lists(st.fixed_dictionaries({"prompt": texts | scalars}), max_size=5)
_prompt_files = st.tuples(st.sampled_from(["csv", "jsonl", "txt"]), _prompt_rows).flatmap(
    lambda pair: st.tuples(
        st.just(pair[0]), mutated_bytes(as_file(pair[1], "csv" if pair[0] == "txt" else pair[0]))
    )
)


@functools.cache
def _tokenizer() -> Any:
    return tiny.tokenizer()


TARGETS = {
    "packs against the plain forward": Target(
        st.tuples(_comparisons, st.sampled_from(["unshared", "all"])), _packed_forward, 12
    ),
    "prompts read once": Target(
        st.tuples(st.lists(st.tuples(_ids, _ids), min_size=1, max_size=6), st.integers(1, 60)),
        _read_together,
        8,
    ),
    "packs": Target(
        st.lists(st.tuples(_ids | _maybe_empty, _ids, _ids | _maybe_empty), min_size=1, max_size=5),
        _planned,
        150,
    ),
    "bins": Target(st.tuples(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 80)), _binned, 150),
    "steps": Target(
        st.tuples(
            st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 12), st.integers(0, 2**31)
        ),
        _stepped,
        120,
    ),
    "prompts of an anchor": Target(_prompt_files, refusing(_read_prompts), 40),
    "token ids": Target(_tables(), refusing(_encoded), 10),
}
