"""Write the model card of a trained run: declared attributes, anchor, measurements and limits.

The model card contains only aggregates and names no annotator. The model card omits means over fewer than five
annotators, which would reveal individual biases.
"""

import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml
from pydantic import JsonValue

from badpo import __version__
from badpo.data.attributes import Config
from badpo.data.privacy import FEWEST_ANNOTATORS, is_about_single_people, rounded_count
from badpo.data.problems import ConfigError
from badpo.results import formatting
from badpo.results.run_files import Run, is_continuous, read_run
from badpo.results.run_findings import anchor_of_run, gold_sentence
from badpo.theory.summaries import Interval, log_odds_distance

# `_HUB_ID` matches Hub ids, `_FILE` matches file names, and `_SETTINGS` lists recipe keys that the model card shows.
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
    """Return the model card of a run folder as Markdown with the Hub's YAML header."""
    if not any((run_folder / name).exists() for name in ("bias.json", "readouts.json", "config.yaml")):
        raise ConfigError(f'"{run_folder}" is not a run folder; name the folder of a finished run')
    run, beside = read_run(run_folder), run_folder.resolve().with_name(formatting.REFERENCE)
    reference = read_run(beside) if (beside / "readouts.json").exists() else None
    # HTML is not escaped, because the template escapes texts as Markdown
    template = formatting.page_templates().get_template("model_card.md.jinja")
    return template.render(
        header=yaml.safe_dump(_header(run), sort_keys=False, allow_unicode=True).strip(),
        title=run_folder.resolve().name,
        method=run.title,
        is_dpo=run.arm == formatting.DPO or not run.bias.parts,
        anchor=anchor_of_run(run),
        gold=gold_sentence(run),
        rows=[_attribute_row(run, reference, name, config) for name, config in run.configs.items()],
        measured=(run_folder / "readouts.json").exists(),
        has_reference=reference is not None,
        n_annotators=formatting.count_text(rounded_count(len(run.learned_annotators))),
        settings=_settings(run),
        version=__version__,
    )


@dataclass(frozen=True)
class CardRow:
    """Table row for a declared attribute; values that were not measured are NaN, and a missing gap is None.

    ``mean_theta`` is the mean bias of the annotators as text. ``distance`` is the difference between the model's rate
    and the reference's rate, in log-odds.
    """

    label: str
    definition: str
    mean_theta: str
    reference: float
    rate: float
    distance: float
    gap: Interval | None

    @property
    def gap_text(self) -> str:
        """The held-out gap with its interval."""
        if self.gap is None:
            return formatting.DASH
        number = partial(formatting.signed, places=3)
        ends = formatting.interval_text(self.gap.low, self.gap.high, number)
        return f"{number(self.gap.estimate)} ({ends})"


def _header(run: Run) -> dict[str, str | list[str]]:
    """Return the model card's YAML header for the Hub, without local paths."""
    is_adapter = (run.folder / "model" / "adapter_config.json").exists()
    header: dict[str, str | list[str]] = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ba-dpo", "badpo", "dpo", "preference-optimization"],
    }
    for key, name in (("base_model", "model_name_or_path"), ("datasets", "dataset_name")):
        value = str(run.config.get(name, ""))
        if _HUB_ID.fullmatch(value) and not _FILE.search(value) and not Path(value).exists():
            header[key] = [value] if key == "datasets" else value
    return header


def _attribute_row(run: Run, reference: Run | None, name: str, config: Config) -> CardRow:
    own, before = (one.reading("best_rates", name) if one else None for one in (run, reference))
    rate, start = (found.estimate if found else math.nan for found in (own, before))
    return CardRow(
        label=formatting.attribute_label(name, config),
        definition=formatting.attribute_definition(config),
        mean_theta=_mean_theta(run, name),
        reference=start,
        rate=rate,
        distance=math.nan if is_continuous(config) else float(log_odds_distance(rate, start)),
        gap=run.reading("heldout", name),
    )


def _mean_theta(run: Run, name: str) -> str:
    """Format the mean theta of all annotators except gold annotators, unless too few people determine the mean."""
    theta = run.theta()
    if theta is None or not run.bias.parts:
        return "not learned"
    learned = run.learned_annotators
    if is_about_single_people(learned):
        return f"not shown (fewer than {FEWEST_ANNOTATORS} annotators)"
    if name in run.bias.extra.revealing:
        return "not shown (too few people determine the value)"
    is_learned = [who in learned for who in run.bias.annotators]
    return formatting.signed(theta[is_learned, run.bias.attributes.index(name)].mean().item())


def _settings(run: Run) -> dict[str, JsonValue]:
    """Return the recipe settings that the model card shows, by name."""
    bias = {"variant": run.bias.extra.variant, **run.recipe_bias}
    found = {
        **run.config,
        "bias": bias["variant"],
        "bias_learning_rate": bias.get("learning_rate"),
    }
    known = {key: found[key] for key in _SETTINGS if found.get(key) is not None}
    return {"arm": formatting.shown(run.arm), "seed": run.seed, **known}
