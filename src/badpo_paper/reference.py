"""What the runs on a corpus share: its votes, the start model, and the reference that is trained from these."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from badpo.data.attributes import plain_text
from badpo.data.judgments import Judgments
from badpo.readouts.names import resign
from badpo.readouts.rates import signature_contexts
from badpo.runs.evaluate import Stage
from badpo.runs.run import Progress, Ticker
from badpo.runs.start import kept_reference, load_policy, majority_responses
from badpo.training.checkpoints import whole_folder
from badpo.training.recipe import Recipe, read_recipe
from badpo_paper.corpora.published import require_unseen
from badpo_paper.datasets import Dataset
from badpo_paper.settings import Scale, build_start
from badpo_paper.suites import Corpus


@dataclass(eq=False, kw_only=True)
class CorpusStage(Stage):
    """What the runs on a corpus share.

    ``folder`` is that of the runs, ``data`` a local file with the rows of a public corpus; ``keys`` are those of a
    run's recipe, which starts from the reference, and ``reference`` is the recipe of that itself.
    """

    corpus: Corpus
    scale: Scale
    folder: Path
    data: Path | None
    dataset: Dataset
    keys: Mapping[str, Any]
    reference: Recipe

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
    """The stage of a corpus, whose reference may not be there yet; nothing is written.

    Raises
    ------
    DataError
        One of the evaluation prompts is trained on.
    """
    dataset, keys = scale.dataset(corpus, data), scale.keys[corpus.model]
    train, held_out = dataset.split()
    trained_on = set(map(plain_text, train.comparisons["prompt"]))
    require_unseen(dataset.prompts, trained_on, "evaluation prompts")
    batch = keys["per_device_train_batch_size"] * keys.get("gradient_accumulation_steps", 1)
    shared = {
        "model_name_or_path": str(folder / "start"),
        **keys,
        "dataset_name": str(folder / "votes.parquet"),
        "output_dir": str(folder),
        "reference_cache": str(folder / "reference" / "cache"),
        "attributes": [dict(attribute.config) for attribute in dataset.judgments.attributes],
        "held_out": dataset.held_out,
        "reference": {"max_steps": train.n_comparisons // batch, **keys["reference"]},
    }
    start = str(folder / "reference" / "model")
    of_run = {name: value for name, value in shared.items() if name != "reference"}
    of_run["model_name_or_path"] = start
    return CorpusStage(
        read_recipe(overrides=of_run),
        train,
        held_out,
        start,
        dataset.prompts,
        scale.decoding,
        corpus=corpus,
        scale=scale,
        folder=folder,
        data=data,
        dataset=dataset,
        keys=of_run,
        reference=read_recipe(overrides=shared),
    )


def open_stage(
    corpus: Corpus, scale: Scale, data: Path | None, folder: Path, progress: Progress
) -> CorpusStage:
    """The stage of a corpus, its reference trained unless ``folder`` holds it."""
    stage = unopened_stage(corpus, scale, data, folder)
    is_kept = stage.kept_reference() is not None
    if not is_kept:
        if corpus.model in scale.shapes:
            with whole_folder(folder / "start") as unfinished:
                for part in build_start(stage.dataset.texts, **scale.shapes[corpus.model]):
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
