"""The folder of a corpus: its votes, the start model, the reference, and what its runs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from badpo.data.judgments import Judgments
from badpo.readouts.names import resign
from badpo.readouts.rates import signature_contexts
from badpo.runs.evaluate import Stage
from badpo.runs.run import Progress, Ticker, weights_of
from badpo.runs.start import kept_reference, load_policy, majority_responses
from badpo.training.checkpoints import whole_folder
from badpo.training.recipe import Recipe, read_recipe
from badpo_paper.materials import Material
from badpo_paper.settings import Scale
from badpo_paper.suites import Corpus


@dataclass(eq=False)
class CorpusStage(Stage):
    """What the runs on a corpus share."""

    corpus: Corpus = field(kw_only=True)
    folder: Path = field(kw_only=True)
    keys: Mapping[str, Any] = field(kw_only=True)
    planted: NDArray[np.float64] | None = field(kw_only=True, default=None)

    @property
    def is_trained(self) -> bool:
        """Whether the reference is there."""
        return (Path(self.start) / "config.json").exists()

    @cached_property
    def weights(self) -> str:
        """Checksum of the reference's weights."""
        return weights_of(Path(self.start))

    @cached_property
    def contexts(self) -> list[list[int]]:
        """The reference's answers up to the place where a first name would stand."""
        return signature_contexts(self.written, self.tokenizer)


def unopened_stage(corpus: Corpus, scale: Scale, data: Path | None, folder: Path) -> CorpusStage:
    """The stage of a corpus, whose reference may not be there yet; nothing is written."""
    material = scale.material(corpus, data).require_unseen()
    train, held_out = material.split()
    start = folder / "reference" / "model"
    keys = {
        **{
            name: value
            for name, value in recipe_keys(corpus, scale, material, folder).items()
            if name != "reference"
        },
        "model_name_or_path": str(start),
    }
    return CorpusStage(
        read_recipe(overrides=keys),
        train,
        held_out,
        str(start),
        material.prompts,
        scale.decoding,
        corpus=corpus,
        folder=folder,
        keys=keys,
        planted=material.planted,
    )


def recipe_keys(corpus: Corpus, scale: Scale, material: Material, folder: Path) -> dict[str, Any]:
    """Keys of the recipe of a corpus's reference: places, votes, and what the scale says."""
    return {
        "model_name_or_path": str(folder / "start"),
        **scale.keys(corpus, material),
        "dataset_name": str(material.table or folder / "votes.parquet"),
        "output_dir": str(folder),
        "reference_cache": str(folder / "reference" / "cache"),
        "attributes": [dict(attribute.config) for attribute in material.judgments.attributes],
        "held_out": material.held_out,
    }


def open_stage(
    corpus: Corpus, scale: Scale, data: Path | None, folder: Path, progress: Progress
) -> CorpusStage:
    """The stage of a corpus, its reference trained unless ``folder`` holds it.

    The reference of a signed corpus is trained on the majority's choices, each with a newly drawn signature: uniform
    over the four cells, so that it starts balanced and all of the lean arrives through the preference stage.
    """
    stage = unopened_stage(corpus, scale, data, folder)
    material = scale.material(corpus, data)
    recipe = read_recipe(overrides=recipe_keys(corpus, scale, material, folder))
    args, responses = recipe.arguments(), supervised_responses(stage)
    is_kept = kept_reference(recipe, stage.train, args, responses) is not None
    if not is_kept:
        if scale.made is not None:
            model, tokenizer = scale.made(corpus, material)
            with whole_folder(folder / "start") as unfinished:
                model.save_pretrained(unfinished)
                tokenizer.save_pretrained(unfinished)
        load_policy(recipe, stage.train, args, responses, [Ticker("reference", progress)])
    # after the reference, so that a model that cannot be loaded leaves nothing
    if material.table is None and not (is_kept and (folder / "votes.parquet").exists()):
        material.judgments.to_parquet(folder / "votes.parquet")
    return stage


def supervised_responses(stage: CorpusStage) -> list[str] | None:
    """What the reference is trained on, one response to each comparison; None for the majority's choices."""
    if stage.corpus.kind != "signed":
        return None
    return resign(majority_responses(stage.train), seed=0)


def reference_recipe(stage: CorpusStage, scale: Scale, data: Path | None) -> Recipe:
    """The recipe that the reference of a stage is trained by."""
    material = scale.material(stage.corpus, data)
    return read_recipe(overrides=recipe_keys(stage.corpus, scale, material, stage.folder))


def declared(judgments: Judgments, names: tuple[str, ...]) -> Judgments:
    """The judgments with some of their attributes; all of them where none is named."""
    if not names:
        return judgments
    places = [judgments.attribute_names.index(name) for name in names]
    attributes = tuple(judgments.attributes[place] for place in places)
    return replace(judgments, attributes=attributes, delta=judgments.delta[:, places])
