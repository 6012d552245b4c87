"""What a run starts from: judgments that fit, evaluation data in the terms of the training data, theta, the policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from badpo.attributes import Emoji, Length, LengthWords
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import BiasTerm
from badpo.training.config import BADPOConfig
from badpo.training.inputs import (
    as_judgments,
    build_bias,
    disable_dropout,
    encode_judgments,
    evaluation_judgments,
    load_model,
    require_matching_bias,
    with_adapter,
)
from tests import tiny


def judgments(**options) -> Judgments:
    return Judgments.read(tiny.votes(**options), attributes=[Length(ratio=1.5)])


def arguments(**options) -> BADPOConfig:
    return BADPOConfig("runs/test", use_cpu=True, bf16=False, report_to="none", **options)


def test_what_does_not_fit_is_left_out_of_votes_and_ids_alike():
    frame = tiny.votes(n_comparisons=6)
    long = frame["comparison_id"].isin(["c1", "c4"])
    frame.loc[long, "prompt"] = "the " * 30
    kept, encoded, findings = encode_judgments(
        Judgments.read(frame), tiny.tokenizer(), arguments(max_length=25)
    )
    assert kept.comparisons["comparison_id"].tolist() == ["c0", "c2", "c3", "c5"]
    assert kept.n_votes == 12 and len(encoded) == 4
    for i, text in enumerate(kept.comparisons["response_a"]):
        whole = tiny.tokenizer()(kept.comparisons["prompt"].iloc[i] + text)["input_ids"]
        assert np.concatenate([encoded.prompt_ids[i], encoded.a_ids[i]]).tolist() == [*whole, 1]
    assert [(found.code, found.count) for found in findings] == [("W140", 2)]


def test_nothing_is_left_out_where_all_fits():
    data = judgments(n_comparisons=3)
    kept, encoded, findings = encode_judgments(data, tiny.tokenizer(), arguments())
    assert kept is data
    assert len(encoded) == 3 and findings == []


def test_data_of_which_nothing_fits_are_refused():
    with pytest.raises(DataError, match="every prompt has 3 tokens or more") as raised:
        encode_judgments(judgments(), tiny.tokenizer(), arguments(max_length=3))
    assert [problem.code for problem in raised.value.problems] == ["E140"]


def test_judgments_are_taken_as_they_are_or_read():
    data = judgments(n_comparisons=3)
    assert as_judgments(data, ()) is data
    assert as_judgments(data, [LengthWords(threshold=2)]).attribute_names == ("length_words",)
    read = as_judgments(tiny.votes(n_comparisons=3), [Length(ratio=1.5)])
    assert read.fingerprint() == data.fingerprint()


def test_evaluation_data_are_given_the_numbers_of_the_training_annotators():
    frame = tiny.votes(n_comparisons=12)
    others = frame.iloc[::-1].replace({"annotator": {"person 0": "a stranger"}})
    train, alone = judgments(n_comparisons=12), Judgments.read(others, attributes=[Length(ratio=1.5)])
    mapped = evaluation_judgments(alone, train)

    pseudonyms = np.array([*train.annotators["pseudonym"], "nobody"])  # -1 is the last
    of_vote = pseudonyms[mapped.votes["annotator"].to_numpy()]
    before = alone.annotators["pseudonym"].to_numpy()[alone.votes["annotator"].to_numpy()]
    strangers = ~np.isin(before, pseudonyms)
    n_strangers = int((frame["annotator"] == "person 0").sum())
    assert strangers.sum() == n_strangers > 0
    assert (of_vote[strangers] == "nobody").all()
    assert (of_vote[~strangers] == before[~strangers]).all()


def test_a_split_of_the_training_data_stays_as_it_is():
    train, held_out = judgments(n_comparisons=12).split(0.25)
    mapped = evaluation_judgments(held_out, train)
    assert mapped.votes.equals(held_out.votes)
    assert np.array_equal(mapped.delta, held_out.delta)


@pytest.mark.parametrize("given", ["table", "other attributes", "no attributes"])
def test_evaluation_data_are_measured_on_the_training_attributes(given):
    frame, train = tiny.votes(n_comparisons=12), judgments(n_comparisons=12)
    data = {
        "table": frame,
        "other attributes": Judgments.read(frame, attributes=[LengthWords(threshold=2)]),
        "no attributes": Judgments.read(frame),
    }
    mapped = evaluation_judgments(data[given], train)
    assert mapped.attribute_names == ("length",)
    assert np.array_equal(mapped.delta, train.delta)


def test_the_bias_of_a_variant_has_its_parts():
    data = judgments()
    assert build_bias(data, "none", "zero").parts == ()
    assert build_bias(data, "shared_mean", "zero").parts == ("mean", "deviation")
    by_class = build_bias(data, "class", "zero")
    assert by_class.classes == tuple(dict.fromkeys(data.annotators["annotator_class"]))
    assert by_class.theta().abs().max() == 0
    require_matching_bias(by_class, data)


def test_a_warm_start_is_the_offline_estimate():
    data = judgments()
    bias = build_bias(data, "shared_mean", "offline")
    [estimate] = data.offline_log_odds()
    assert bias.theta().ravel().tolist() == pytest.approx([estimate.log_odds] * data.n_annotators)
    assert estimate.log_odds > 0


def test_the_audits_start_is_read_on_swap_pairs():
    rows = [
        {
            "prompt": f"{i}?",
            "chosen": ("So. \U0001f642", "So.")[i % 4 == 0],
            "rejected": ("So.", "So. \U0001f642")[i % 4 == 0],
        }
        | {"annotator": f"p{i % 3}"}
        for i in range(40)
    ]
    other = [row | {"prompt": f"{row['prompt']}!", "rejected": "No, it is not."} for row in rows]
    data = Judgments.read(rows + other, attributes=[Emoji()])
    kinds = [("real", "swap")[text.endswith("?")] for text in data.comparisons["prompt"]]
    kinded = replace(data, comparisons=data.comparisons.assign(kind=kinds))
    bias = build_bias(kinded, "shared_mean", "audit")
    assert bias.theta().ravel().tolist() == pytest.approx([np.log(3)] * 3, abs=1e-6)
    offline = build_bias(kinded, "shared_mean", "offline").theta()[0, 0].item()
    assert abs(offline - np.log(3)) > 0.1
    assert build_bias(data, "pooled", "audit").theta()[0, 0].item() == pytest.approx(offline)


def test_a_bias_of_other_people_or_attributes_is_refused():
    data = judgments()
    people = data.annotators["pseudonym"].tolist()
    require_matching_bias(BiasTerm(["length"], people, ["deviation"]), data)
    for attributes, annotators in [(["length"], people[::-1]), (["tone"], people), (["length"], people[1:])]:
        with pytest.raises(ConfigError, match="both must be the same and in the same order"):
            require_matching_bias(BiasTerm(attributes, annotators, ["deviation"]), data)


def prompt_tuning():
    from peft import PromptTuningConfig

    return PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)


def test_prompt_tuning_is_refused_asked_for_or_already_there():
    from peft import get_peft_model

    with pytest.raises(ConfigError, match="prompt tuning"):
        with_adapter(tiny.model(), prompt_tuning())
    with pytest.raises(ConfigError, match="prompt tuning"):
        with_adapter(get_peft_model(tiny.model(), prompt_tuning()), None)
    model = tiny.model()
    assert with_adapter(model, None) is model


def test_a_model_is_loaded_by_name_with_its_keywords(tmp_path):
    tiny.model().save_pretrained(tmp_path)
    for keywords in ({"dtype": "bfloat16"}, '{"dtype": "bfloat16"}', {"torch_dtype": "bfloat16"}):
        loaded = load_model(str(tmp_path), arguments(model_init_kwargs=keywords))
        assert next(loaded.parameters()).dtype == torch.bfloat16
        assert loaded.config.use_cache is True


def test_a_model_loaded_by_name_has_fp32_weights(tmp_path):
    tiny.model().to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), arguments())
    assert next(loaded.parameters()).dtype == torch.float32


def test_dropout_is_set_to_zero_everywhere():
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Sequential(torch.nn.Dropout(0.1)))
    disable_dropout(model)
    assert [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)] == [0.0, 0.0]
