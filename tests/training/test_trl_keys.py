"""The lists cover TRL's configuration exactly, and neutral values of refused keys are accepted."""

import dataclasses
import types
import typing

import pytest
from trl import DatasetMixtureConfig, DPOConfig, ModelConfig, ScriptArguments

from badpo.training.config import RENAMED, BADPOConfig
from badpo.training.trl_keys import ACCEPTED_WITHOUT_EFFECT, HONOURED, REFUSED, refusal
from bench.trl_keys import HONOURED_TRAINING, PAGE, page

TRL_CLASSES = (ScriptArguments, DPOConfig, ModelConfig, DatasetMixtureConfig)
TRL_FIELDS = {field.name: field for owner in TRL_CLASSES for field in dataclasses.fields(owner)}
# TRL's parser reads this block itself, and passes the other keys to accelerate launch.
PARSER_KEYS = {"env", "num_processes", "accelerate_config"}
OURS = {field.name for field in dataclasses.fields(BADPOConfig)}
# An older Trainer has only the old names of these keys; a recipe with the new names is then refused with a remedy.
NEWER = set(RENAMED.values()) - OURS


def test_every_key_of_trl_is_in_one_list_and_in_the_documentation():
    listed = [*HONOURED, *ACCEPTED_WITHOUT_EFFECT, *REFUSED]
    assert len(listed) == len(set(listed)), "a key stands in two lists"
    assert set(listed) - NEWER == set(TRL_FIELDS) | PARSER_KEYS
    assert HONOURED_TRAINING - NEWER <= OURS
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("key", sorted(HONOURED.keys() - NEWER))
def test_the_type_of_an_honoured_key_equals_trl(key):
    owner = next(cls for cls in TRL_CLASSES if key in {field.name for field in dataclasses.fields(cls)})
    annotation = typing.get_type_hints(owner)[key]
    kinds = set(typing.get_args(annotation)) if isinstance(annotation, types.UnionType) else {annotation}
    kinds -= {types.NoneType}
    simple = len(kinds) == 1 and kinds <= {int, float, bool, str}
    assert HONOURED[key] is (kinds.pop() if simple else typing.Any)


@pytest.mark.parametrize("key", sorted(set(REFUSED) - PARSER_KEYS))
def test_the_default_of_a_refused_key_is_accepted(key):
    field = TRL_FIELDS[key]
    default = field.default_factory() if field.default is dataclasses.MISSING else field.default
    assert refusal(key, default) is None


def test_another_value_of_a_refused_key_is_refused_with_the_reason():
    for key, reason in REFUSED.items():
        for value in ("other", 0.25, ["sigmoid", "sft"]):
            assert refusal(key, value) == f"{key}: {value} is refused: {reason}"
    assert refusal("torch_compile", True) and refusal("ld_alpha", 0)
    assert refusal("label_smoothing", 0) is None
