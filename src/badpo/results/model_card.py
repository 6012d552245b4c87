"""The model card of a trained run: what was declared, what it is anchored to, what was measured, what is not known.

Everything in it is an aggregate. It names no annotator and prints no mean over fewer than five of them, because the
mean of one annotator's bias is that annotator's bias.
"""

import math
import re
from functools import partial
from pathlib import Path

import yaml

from badpo import __version__
from badpo.data.files import Json
from badpo.data.privacy import FEWEST_ANNOTATORS, is_about_single_people, rounded_count
from badpo.data.problems import ConfigError
from badpo.results.run_files import Run, is_continuous, read_run
from badpo.results.verdicts import anchor_of_run, gold_sentence
from badpo.results.words import (
    DPO,
    REFERENCE,
    attribute_definition,
    attribute_label,
    count_text,
    page_templates,
    shown,
    signed,
)
from badpo.theory.summaries import log_odds_distance

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_FILE = re.compile(r"\.(csv|tsv|parquet|jsonl?|arrow|ya?ml)$", re.IGNORECASE)
_SETTINGS = (
    "bias",
    "beta",
    "learning_rate",
    "bias_learning_rate",
    "max_steps",
    "steps",
    "batching",
    "batch_size",
    "encoding",
)


def model_card(run_folder: Path) -> str:
    """The model card of a run as Markdown with the Hub's YAML header, from the files of its folder alone."""
    if not any((run_folder / name).exists() for name in ("bias.json", "readouts.json", "config.yaml")):
        raise ConfigError(f'"{run_folder}" holds no run; name the folder of a finished run')
    run, beside = read_run(run_folder), run_folder.resolve().with_name(REFERENCE)
    reference = read_run(beside) if (beside / "readouts.json").exists() else None
    # Markdown: the texts are escaped as Markdown below
    template = page_templates(autoescape=False).get_template("model_card.md.jinja")
    return template.render(
        header=yaml.safe_dump(_header(run), sort_keys=False, allow_unicode=True).strip(),
        title=run_folder.resolve().name,
        method=run.title,
        is_dpo=run.arm == DPO or not run.bias.parts,
        anchor=anchor_of_run(run),
        gold=gold_sentence(run),
        rows=[_attribute_row(run, reference, name, config) for name, config in run.configs.items()],
        measured=(run_folder / "readouts.json").exists(),
        has_reference=reference is not None,
        n_annotators=count_text(rounded_count(len(run.learned_annotators))),
        settings=_settings(run),
        version=__version__,
    )


def _header(run: Run) -> Json:
    """The YAML header that the Hub reads. A local folder or file is not named: its path is nobody's business."""
    is_adapter = (run.folder / "model" / "adapter_config.json").exists()
    header: Json = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ba-dpo", "badpo", "dpo", "preference-optimization"],
    }
    for key, name in (("base_model", "model_name_or_path"), ("datasets", "dataset_name")):
        value = str(run.config.get(name, ""))
        if _HUB_ID.fullmatch(value) and not _FILE.search(value) and not Path(value).exists():
            header[key] = [value] if key == "datasets" else value
    return header


def _attribute_row(run: Run, reference: Run | None, name: str, config: Json) -> Json:
    """What is known of a declared attribute; NaN where it was not measured."""
    own, before = (one.reading("best_rates", name) if one else None for one in (run, reference))
    rate, start = (found.estimate if found else math.nan for found in (own, before))
    return {
        "label": attribute_label(name, config),
        "definition": attribute_definition(config),
        "lean": _lean(run, name),
        "reference": start,
        "rate": rate,
        "apart": math.nan if is_continuous(config) else float(log_odds_distance(rate, start)),
        "gap": run.reading("heldout", name),
        "number": partial(signed, places=3),
    }


def _lean(run: Run, name: str) -> str:
    """The mean learned theta of those who are not gold, unless they are so few that it is about single people."""
    theta = run.theta()
    if theta is None or not run.bias.parts:
        return "not learned"
    learned = run.learned_annotators
    if is_about_single_people(learned):
        return f"not shown (fewer than {FEWEST_ANNOTATORS} annotators)"
    is_learned = [who in learned for who in run.bias.annotators]
    return signed(theta[is_learned, run.bias.attributes.index(name)].mean().item())


def _settings(run: Run) -> Json:
    bias = {"variant": run.bias.extra.variant, **run.recipe_bias}
    found = {
        **run.config,
        "bias": bias["variant"],
        "bias_learning_rate": bias.get("learning_rate"),
    }
    told = {key: found[key] for key in _SETTINGS if found.get(key) is not None}
    return {"arm": shown(run.arm), "seed": run.seed, **told}
