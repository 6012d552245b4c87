"""Inputs of a run: judgments that fit the limit, evaluation data, bias terms and models."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PromptTuningConfig, get_peft_model

from badpo.attributes import Emoji, Length, LengthWords, Markdown
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.training import inputs
from badpo.training.config import BADPOConfig
from badpo.training.encoding import encode_comparisons
from tests import tiny
from tests.training.tiny_runs import judgments, trained

GOLD = ["person 1", "person 3"]


def people(data: Judgments) -> list[str]:
    return data.annotators["pseudonym"].tolist()


def arguments(**options) -> BADPOConfig:
    return BADPOConfig("runs/test", use_cpu=True, bf16=False, report_to="none", **options)


# -- judgments -------------------------------------------------------------------------------------------------------


def test_comparisons_that_exceed_the_limit_are_removed_from_votes_and_token_ids():
    frame, tokenizer = tiny.votes(n_comparisons=6), tiny.tokenizer()
    frame.loc[frame["comparison_id"].isin(["c1", "c4"]), "prompt"] = "the " * 30
    data = Judgments.read(frame)
    kept, encoded, findings = inputs.encode_judgments(data, tokenizer, arguments(max_length=25))
    assert kept.comparisons["comparison_id"].tolist() == ["c0", "c2", "c3", "c5"]
    assert kept.n_votes == 12 and len(encoded) == 4
    for i, text in enumerate(kept.comparisons["response_a"]):
        whole = tokenizer(kept.comparisons["prompt"].iloc[i] + text)["input_ids"]
        assert np.concatenate(encoded.pairs[2 * i]).tolist() == [*whole, 1]
    assert [(found.code, found.count) for found in findings] == [("W140", 2)]
    whole, encoded, findings = inputs.encode_judgments(data, tokenizer, arguments())
    assert whole is data and len(encoded) == 6 and findings == []
    as_paper = arguments(encoding="paper", max_prompt_length=3)
    _, encoded, _ = inputs.encode_judgments(data, tokenizer, as_paper)
    expected = encode_comparisons(data.comparisons, tokenizer, "paper", None, 3)
    for pair, wanted in zip(encoded.pairs, expected.pairs, strict=True):
        assert all(map(np.array_equal, pair, wanted))
    with pytest.raises(DataError, match="(?s)E140.*every prompt has 3 tokens or more"):
        inputs.encode_judgments(data, tokenizer, arguments(max_length=3))


def test_evaluation_data_have_the_annotator_indices_and_attributes_of_the_training_data():
    frame = tiny.votes(n_comparisons=12)
    others = frame.iloc[::-1].replace({"annotator": {"person 0": "a stranger"}})
    train, alone = judgments(n_comparisons=12), Judgments.read(others, attributes=[Length(ratio=1.5)])
    mapped = inputs.read_evaluation(alone, train)
    names = np.array([*people(train), "nobody"])  # -1 is the last
    before = np.array(people(alone))[alone.votes["annotator"]]
    expected = np.where(np.isin(before, names), before, "nobody")
    assert names[mapped.votes["annotator"]].tolist() == expected.tolist() and "nobody" in expected
    held_out = train.split(0.25)[1]
    assert inputs.read_evaluation(held_out, train).votes.equals(held_out.votes)
    measured = (Judgments.read(frame, attributes=given) for given in ([LengthWords(threshold=2)], []))
    for data in (frame, *measured):
        mapped = inputs.read_evaluation(data, train)
        assert mapped.attribute_names == ("length",)
        assert np.array_equal(mapped.delta, train.delta)


def test_attributes_whose_theta_few_people_determine_are_found():
    rows = [
        {
            "prompt": f"q{i}",
            "response_a": a,
            "response_b": "So it is.",
            "winner": "a",
            "annotator": f"w{k}",
        }
        for k in range(8)
        for i, a in enumerate(["**So** it is." if k == 0 else "No.", "So it may well be, as it is."])
    ]
    data = Judgments.read(rows, attributes=[Markdown(), Length(ratio=1.5)])
    bias = BiasTerm(data.attribute_names, data.annotators["pseudonym"].tolist(), ["mean"])
    assert inputs.find_revealing_attributes(data, bias) == ["markdown"]
    mask = torch.tensor([0.0] * 4 + [1.0] * 4)
    gold = BiasTerm(data.attribute_names, data.annotators["pseudonym"].tolist(), ["mean"], mask=mask)
    assert "length" in inputs.find_revealing_attributes(data, gold)
    assert inputs.find_revealing_attributes(replace(data, has_identities=False), bias) == []


# -- theta -----------------------------------------------------------------------------------------------------------


def test_a_bias_term_has_the_annotators_and_attributes_of_its_judgments():
    data = judgments()
    by_class = inputs.build_bias(data, "class", "zero")
    assert by_class.classes == tuple(dict.fromkeys(data.annotators["annotator_class"]))
    assert by_class.parts == VARIANTS["class"]
    inputs.require_matching_bias(by_class, data)
    names = people(data)
    others = [(["length"], names[::-1]), (["tone"], names), (["length"], names[1:])]
    for attributes, annotators in others:
        with pytest.raises(ConfigError, match="must be the same and in the same order"):
            inputs.require_matching_bias(BiasTerm(attributes, annotators, ["deviation"]), data)
    pooled = BiasTerm(data.attribute_names, names, VARIANTS["pooled"])
    with pytest.raises(ConfigError, match="names 2 annotators, but the mask of the bias term has 0"):
        inputs.require_matching_bias(pooled, data, pseudonyms(GOLD))


def test_warm_starts_equal_the_offline_estimate_and_the_estimate_on_swap_pairs():
    rows = []
    for i in range(40):
        answers = ("So.", "So. \U0001f642") if i % 4 == 0 else ("So. \U0001f642", "So.")
        row = {"prompt": f"{i}?", "chosen": answers[0], "rejected": answers[1], "annotator": f"p{i % 3}"}
        rows += [row, row | {"prompt": f"{i}?!", "rejected": "No, it is not."}]
    data = Judgments.read(rows, attributes=[Emoji()])
    kinds = [("real", "swap")[text.endswith("?")] for text in data.comparisons["prompt"]]
    kinded = replace(data, comparisons=data.comparisons.assign(kind=kinds))
    theta = inputs.build_bias(kinded, "shared_mean", "audit").theta().ravel().tolist()
    assert theta == pytest.approx([np.log(3)] * 3, abs=1e-6)
    offline, estimate = inputs.build_bias(kinded, "shared_mean", "offline"), data.offline_log_odds()[0]
    assert offline.theta().ravel().tolist() == pytest.approx([estimate.log_odds] * 3)
    assert abs(estimate.log_odds - np.log(3)) > 0.1 and estimate.log_odds > 0
    assert inputs.build_bias(data, "pooled", "audit").theta()[0, 0].item() == pytest.approx(
        estimate.log_odds
    )


# -- gold annotators: who they are, where theta starts, and that theirs stays at zero --------------------------------


def test_gold_annotators_are_named_by_ids_or_pseudonyms():
    frame = tiny.votes()
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    gold = inputs.find_gold_annotators(data, GOLD)
    np.testing.assert_array_equal(gold, np.isin(people(data), pseudonyms(GOLD)))
    np.testing.assert_array_equal(inputs.find_gold_annotators(data, pseudonyms(GOLD)), gold)
    assert gold.sum() == 2 and not inputs.find_gold_annotators(data, []).any()
    words = frame[["response_a", "response_b"]].map(lambda text: len(text.split()))
    differs = words.max(axis=1) >= 1.5 * words.min(axis=1)
    n = int((differs & frame["annotator"].isin(GOLD)).sum())
    assert inputs.count_gold_votes(data, gold) == {"length": n}


@pytest.mark.parametrize(
    ("named", "told"),
    [
        (["person 1", "a stranger"], "gold_annotators: ann_.* cast no vote in this table"),
        ([f"person {k}" for k in range(5)], "all 5 annotators are gold.*bias: none"),
        (GOLD, "2 gold annotators have no vote .* differ on markdown"),
    ],
)
def test_gold_annotators_that_do_not_identify_the_shared_bias_are_refused(named, told):
    data = Judgments.read(tiny.votes(), attributes=[Length(ratio=1.5), Markdown()])
    with pytest.raises(ConfigError, match=told) as raised:
        inputs.find_gold_annotators(data, named)
    assert "stranger" not in str(raised.value)
    assert pseudonyms(["person 1"])[0] not in str(raised.value)


def test_a_warm_start_with_gold_annotators_is_relative_to_them():
    """Long answers are better by 0.8, and the other annotators add 1.2: only the 1.2 is a bias."""
    rng = np.random.default_rng(0)
    n = 1500
    frame = tiny.votes(n_comparisons=n, n_annotators=8, per_comparison=4)
    a, b = (frame[side].str.split().str.len() for side in ("response_a", "response_b"))
    quality = np.repeat(rng.normal(0, 1, n), 4)
    log_odds = quality + (0.8 + 1.2 * ~frame["annotator"].isin(GOLD)) * np.sign(a - b)
    frame["winner"] = np.where(rng.random(len(frame)) < 1 / (1 + np.exp(-log_odds)), "a", "b")
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    gold = inputs.find_gold_annotators(data, GOLD)
    leans = inputs.estimate_bias_from_gold(data, gold)
    assert leans[~gold].mean() == pytest.approx(1.2, abs=0.2)
    assert not leans[gold].any()
    made = (inputs.build_bias(data, variant, "offline", GOLD) for variant in ("shared_mean", "pooled"))
    shared, pooled = (bias.theta().detach().numpy() for bias in made)
    assert shared == pytest.approx(leans, abs=1e-6)
    assert pooled[~gold] == pytest.approx(leans[~gold].mean(), abs=1e-6)
    assert not pooled[gold].any()


def test_a_warm_start_requires_comparisons_shared_with_gold_annotators():
    frame = tiny.votes(n_comparisons=40, n_annotators=4, per_comparison=2)
    frame = frame.drop(columns="annotator_class")
    frame["annotator"] = [f"person {2 * (c % 2) + j}" for c in range(40) for j in range(2)]
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    with pytest.raises(
        ConfigError, match="no comparison connects the gold annotators with the other.*warm_start: zero"
    ):
        inputs.build_bias(data, "pooled", "offline", ["person 0", "person 1"])


@pytest.mark.parametrize("variant", ["pooled", "per_annotator", "shared_mean", "class"])
def test_the_theta_of_gold_annotators_stays_at_zero_and_other_thetas_move(tmp_path, variant):
    run = trained(tmp_path, bias=variant, gold_annotators=GOLD)
    gold = np.isin(run.bias.annotators, pseudonyms(GOLD))
    theta = run.bias.theta().detach().numpy()
    assert gold.sum() == 2 and not theta[gold].any() and theta[~gold].all()
    run.save_model()
    assert BiasTerm.load(tmp_path).extra["gold_votes"] == inputs.count_gold_votes(run.judgments, gold)


# -- the policy ------------------------------------------------------------------------------------------------------


def test_prompt_tuning_is_refused_for_new_and_existing_adapters():
    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    for model, asked in ((tiny.model(), prompts), (get_peft_model(tiny.model(), prompts), None)):
        with pytest.raises(ConfigError, match="prompt tuning"):
            inputs.add_adapter(model, asked)
    model = tiny.model()
    assert inputs.add_adapter(model, None) is model


@pytest.mark.parametrize(
    "keywords", [None, {"dtype": "bfloat16"}, '{"dtype": "bfloat16"}', {"torch_dtype": "bfloat16"}]
)
def test_a_model_is_loaded_by_name_with_its_keywords_and_by_default_in_fp32(tmp_path, keywords):
    tiny.model().to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = inputs.load_model(str(tmp_path), arguments(model_init_kwargs=keywords))
    assert next(loaded.parameters()).dtype == (torch.bfloat16 if keywords else torch.float32)


def test_a_compiled_or_quantized_model_or_reference_is_refused():
    in_place, quantized = tiny.model(), tiny.model()
    in_place.compile()
    quantized.is_quantized = True
    for refused in (in_place, torch.compile(tiny.model()), quantized):
        with pytest.raises(ConfigError, match="^model is (compiled by torch.compile|quantized)"):
            inputs.load_model(refused, arguments())
        with pytest.raises(ConfigError, match="^ref_model is (compiled by torch.compile|quantized)"):
            inputs.load_reference(refused, tiny.model(), arguments())
