"""The folder of a corpus: its votes, the start model, the reference, and what its runs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from badpo.data.judgments import Judgments
from badpo.readouts.names import resign
from badpo.readouts.rates import signature_contexts
from badpo.runs.evaluate import Stage
from badpo.runs.run import Progress, Ticker
from badpo.runs.start import kept_reference, load_policy, majority_responses
from badpo.training.checkpoints import whole_folder
from badpo.training.recipe import Recipe, read_recipe
from badpo_paper.datasets import Dataset
from badpo_paper.settings import Scale
from badpo_paper.suites import Corpus


@dataclass(eq=False)
class CorpusStage(Stage):
    """What the runs on a corpus share.

    Attributes
    ----------
    corpus : Corpus
    folder : Path
    keys : mapping
        Keys of a run's recipe, which starts from the reference.
    dataset : Dataset
    reference : Recipe
        That of the reference itself.
    """

    corpus: Corpus = field(kw_only=True)
    folder: Path = field(kw_only=True)
    keys: Mapping[str, Any] = field(kw_only=True)
    dataset: Dataset = field(kw_only=True)
    reference: Recipe = field(kw_only=True)

    @cached_property
    def contexts(self) -> list[list[int]]:
        """The reference's answers up to the place where a first name would stand."""
        return signature_contexts(self.written, self.tokenizer)

    @property
    def responses(self) -> list[str] | None:
        """What the reference is trained on, one response to each comparison; None for the majority's choices.

        Those of a signed corpus are signed anew, uniform over the four cells: the reference starts balanced, and all of
        the lean arrives through the preference stage.
        """
        return resign(majority_responses(self.train), seed=0) if self.corpus.kind == "signed" else None

    def kept_reference(self) -> Path | None:
        """The reference's model where it is there; refused where that is of other votes or settings."""
        return kept_reference(self.reference, self.train, self.reference.arguments(), self.responses)


def unopened_stage(corpus: Corpus, scale: Scale, data: Path | None, folder: Path) -> CorpusStage:
    """The stage of a corpus, whose reference may not be there yet; nothing is written."""
    dataset = scale.dataset(corpus, data).require_unseen()
    train, held_out = dataset.split()
    shared = {
        "model_name_or_path": str(folder / "start"),
        **scale.keys(corpus, dataset),
        "dataset_name": str(folder / "votes.parquet"),
        "output_dir": str(folder),
        "reference_cache": str(folder / "reference" / "cache"),
        "attributes": [dict(attribute.config) for attribute in dataset.judgments.attributes],
        "held_out": dataset.held_out,
    }
    start = str(folder / "reference" / "model")
    keys = {name: value for name, value in shared.items() if name != "reference"}
    keys["model_name_or_path"] = start
    return CorpusStage(
        read_recipe(overrides=keys),
        train,
        held_out,
        start,
        dataset.prompts,
        scale.decoding,
        corpus=corpus,
        folder=folder,
        keys=keys,
        dataset=dataset,
        reference=read_recipe(overrides=shared),
    )


def open_stage(
    corpus: Corpus, scale: Scale, data: Path | None, folder: Path, progress: Progress
) -> CorpusStage:
    """The stage of a corpus, its reference trained unless ``folder`` holds it."""
    stage = unopened_stage(corpus, scale, data, folder)
    is_kept = stage.kept_reference() is not None
    if not is_kept:
        if scale.made is not None:
            with whole_folder(folder / "start") as unfinished:
                for part in scale.made(corpus, stage.dataset):
                    part.save_pretrained(unfinished)
        args, told = stage.reference.arguments(), [Ticker("reference", progress)]
        load_policy(stage.reference, stage.train, args, stage.responses, told)
    # after the reference, so that a model that cannot be loaded leaves nothing
    if not (is_kept and (folder / "votes.parquet").exists()):
        stage.dataset.judgments.to_parquet(folder / "votes.parquet")
    return stage


def declared(judgments: Judgments, name: str) -> Judgments:
    """The judgments with one of their attributes; all of them where none is named."""
    if not name:
        return judgments
    place = judgments.attribute_names.index(name)
    one = judgments.attributes[place : place + 1]
    return replace(judgments, attributes=one, delta=judgments.delta[:, place : place + 1])
