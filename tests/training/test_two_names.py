"""A script for TRL's `DPOTrainer` runs with two changed names, and notices report the differences."""

import json
import types

import pytest
from datasets import Dataset
from transformers import ProcessorMixin, T5Config, T5ForConditionalGeneration
from trl import DPOConfig, TrlParser

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo.training.config import BADPOConfig
from badpo.training.inputs import VISION
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.runs.recipes import as_chat, as_trl
from tests.training.tiny_runs import judgments, trained, trainer, trl_trainer, untimed

ROWS = as_trl(tiny.votes()).drop(columns="annotator")
TEMPLATE = (
    "{% if tools %}{{ tools[0]['name'] + ' ' + tools[0]['of'][0] + ' ' }}{% endif %}{% for m in messages %}"
    "{{ '<user> ' if capital else '<assistant> ' }}{{ m['content'] + ' <end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def told(run: BADPOTrainer) -> list[str]:
    return [finding.code for finding in run.findings]


# -- what is trained where nothing is declared ------------------------------------------------------------------------


def test_without_annotators_and_attributes_the_default_is_a_pooled_length_bias_with_a_notice(
    tmp_path, caplog
):
    unused = dict(padding_free=True, dataset_num_proc=2, remove_unused_columns=True)
    run = trained(tmp_path, Dataset.from_pandas(ROWS), eval_dataset=ROWS, **unused)
    said = [finding.what.split()[0] for finding in run.findings if finding.code == "N204"]
    assert said == ["dataset_num_proc", "padding_free"]
    assert run.bias.parts == ("mean",) and run.bias.attributes == ("length",)
    assert [attribute.config for attribute in run.judgments.attributes] == [
        attribute.config for attribute in judgments().attributes
    ]
    [notice] = [record for record in caplog.records if "was chosen" in record.getMessage()]
    assert notice.levelname == "WARNING" and '"pooled" toward length (ratio=1.5)' in notice.getMessage()
    dpo = trainer(tmp_path / "dpo", ROWS, bias="none")
    assert told(run).count("N163") == 1 and not {"N161", "N163"} & {*told(dpo)}
    assert run.aux_loss_enabled is False and run.ref_model is None
    assert {"trl", "dpo", "ba-dpo"} <= set(run.model.model_tags)
    declared = trainer(tmp_path / "declared", ROWS, attributes="length")
    assert "N161" in told(declared) and "trl" not in declared.model.model_tags


def test_columns_map_the_annotators_in_all_data_sets(tmp_path, caplog):
    rows = as_trl(tiny.votes()).rename(columns={"annotator": "rater_code", "prompt": "question"})
    columns = {"annotator": "rater_code", "prompt": "question"}
    run = trainer(tmp_path, rows, columns=columns, eval_dataset=rows)
    assert run.bias.parts == ("mean", "deviation") and len(run.bias.annotators) == 5
    assert run.eval_dataset.judgments.votes["annotator"].min() == 0
    with pytest.raises(ConfigError, match="columns cannot be combined with Judgments.*Judgments.read"):
        trainer(tmp_path, judgments(), columns=columns)
    assert "columns read" not in caplog.text
    trainer(tmp_path, as_trl(tiny.votes()).rename(columns={"annotator": "worker_id"}))
    assert 'columns read: annotator from "worker_id"' in caplog.text


# -- the same token ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "objects", "file"])
def test_tools_and_options_of_the_template_give_the_token_ids_of_trl(tmp_path, form):
    rows = as_trl(as_chat(tiny.votes(per_comparison=1))).drop(columns="annotator").to_dict("records")
    for i, row in enumerate(rows):
        tools = [{"name": ["cat", "dog"][i % 2], "of": ["red" if i % 3 else "blue"]}]
        row["tools"] = json.dumps(tools) if form == "json" else tools
        row["chat_template_kwargs"] = {"capital": bool(i % 2)}
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TEMPLATE
    path, data = tmp_path / "rows.jsonl", Dataset.from_list(rows)
    data.to_json(path)
    run = trainer(tmp_path, path if form == "file" else data, processing_class=tokenizer)
    theirs = trl_trainer(rows, tmp_path / "trl", tokenizer).train_dataset
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    for i in range(len(rows)):
        assert run.train_dataset[i] == {name: theirs[i][name] for name in names}, i
    assert "W107" not in told(run) and len({*map(str, theirs["prompt_ids"])}) > 1
    twice = [rows[0], rows[0] | {"chat_template_kwargs": {"capital": True}}]
    with pytest.raises(DataError, match="(?s)E147.*differ in chat_template_kwargs"):
        trainer(tmp_path, twice, processing_class=tokenizer)


def test_a_tool_call_is_described_in_the_text(tmp_path):
    call = [{"role": "assistant", "tool_calls": [{"name": "clock", "arguments": {"of": "home"}}]}]
    said = [{"role": "assistant", "content": "then"}]
    rows = [{"prompt": [{"role": "user", "content": "the"}], "chosen": call, "rejected": said}]
    for data in (rows, Dataset.from_list(rows, on_mixed_types="use_json")):
        with pytest.raises(DataError, match="the assistant message calls a tool and has no text"):
            trainer(tmp_path, data)


# -- data sets --------------------------------------------------------------------------------------------------------


def test_a_stream_is_read_completely_unless_the_reference_is_precomputed(tmp_path):
    stream = Dataset.from_pandas(ROWS).to_iterable_dataset()
    run = trained(tmp_path, stream, eval_dataset={"part": stream})
    assert told(run).count("N162") == 1 and len(run.train_dataset) == len(ROWS)
    assert "eval_part_loss" in run.evaluate() and "eval_loss" in run.evaluate(eval_dataset=stream)
    asked = dict(precompute_ref_log_probs=True)
    run = trainer(tmp_path / "whole", ROWS, **asked)
    for ask in (
        lambda: trainer(tmp_path, stream, **asked),
        lambda: trainer(tmp_path, ROWS, eval_dataset={"part": stream}, **asked),
        lambda: run.evaluate(eval_dataset=stream),
    ):
        with pytest.raises(ConfigError, match="not supported with IterableDataset, as in TRL"):
            ask()


def test_a_new_data_set_can_be_evaluated_after_training_if_the_start_model_has_a_name(tmp_path):
    tiny.model().save_pretrained(tmp_path / "start")
    late, early = (tmp_path / name for name in ("late", "early"))
    start, new = str(tmp_path / "start"), tiny.votes(seed=9)
    run = trained(late, ROWS, model=start)
    known = trained(early, ROWS, model=start, eval_dataset=new)
    assert untimed(run.evaluate(new)) == untimed(known.evaluate())
    tiny.model(seed=3).save_pretrained(tmp_path / "start")
    with pytest.raises(ConfigError, match="predict is not supported: the evaluation keeps no logits"):
        run.predict(new)
    with pytest.raises(ConfigError, match="cannot compute reference log-prob"):
        run.evaluate(tiny.votes(seed=10))


# -- arguments --------------------------------------------------------------------------------------------------------


def test_every_option_of_trl_s_parser_is_accepted():
    ours, theirs = (
        {flag: action for action in TrlParser((kind,))._actions for flag in action.option_strings}
        for kind in (BADPOConfig, DPOConfig)
    )
    assert set(theirs) <= set(ours)
    flags = ["--no_remove_unused_columns", "--output_dir", "runs/x", "--use_cpu", "--loss_type", "ipo"]
    (args,) = TrlParser((BADPOConfig,)).parse_args_into_dataclasses(flags)
    assert args.loss_type == ["ipo"] and args.remove_unused_columns is False


FOLLOWED = [({}, "VoteWeights"), ({"loss_type": "ipo"}, "IdentityPreference")]
FOLLOWED += [({"ld_alpha": 0.4}, "DiscountedTail"), ({"ld_alpha": 1.0}, "VoteWeights")]
REFUSED = [{"loss_type": ["sigmoid", "sft"]}, {"loss_type": "ipo", "ld_alpha": 0.4}, {"ld_alpha": 2.0}]


@pytest.mark.parametrize(("asked", "expected"), [*FOLLOWED, *((one, None) for one in REFUSED)])
def test_losses_of_trl_select_objectives(tmp_path, asked, expected):
    if expected is None:
        with pytest.raises(ConfigError, match="is refused: the loss is the bias-adjusted DPO loss"):
            trainer(tmp_path, **asked)
    else:
        assert type(trainer(tmp_path, **asked).objective).__name__ == expected


# -- models that read more than text ----------------------------------------------------------------------------------


def test_vision_models_are_refused_with_the_name_of_the_other_trainer(tmp_path, monkeypatch):
    size = dict(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=64)
    T5ForConditionalGeneration(T5Config(**size)).save_pretrained(tmp_path / "other")
    monkeypatch.setattr(ProcessorMixin, "__init__", lambda self: None)
    processor = types.new_class("Processor", (ProcessorMixin,))()
    pictured = ROWS.assign(images=[["x.png"]] * len(ROWS))
    for given in (
        dict(model=str(tmp_path / "other")),
        dict(processing_class=processor),
        dict(data=Judgments.read(pictured)),
        dict(data=ROWS.assign(image="cat.png")),
        dict(eval_dataset=pictured),
    ):
        with pytest.raises(ValueError) as caught:
            trainer(tmp_path / "run", **given)
        assert VISION in str(caught.value), given
