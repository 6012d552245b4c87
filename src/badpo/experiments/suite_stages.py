"""What the runs of a panel share: votes, evaluation prompts, start model and the reference that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from badpo.data.attributes import plain_text
from badpo.data.corpora import bundled, multipref, signed, ultrafeedback
from badpo.data.corpora.evaluation_prompts import require_unseen
from badpo.data.corpora.gates import GateRow, compared, told_gate
from badpo.data.corpora.signatures import ask_to_sign
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo.data.text_attributes import Length, Markdown
from badpo.experiments.demo import tokenizer_texts
from badpo.experiments.progress import Progress
from badpo.experiments.run_keys import weights_of
from badpo.experiments.signed_readouts import REFERENCE_SEED, answers
from badpo.experiments.signed_suite import fit_supervised
from badpo.experiments.start_policy import majority_responses
from badpo.experiments.suite_parts import Corpus, SeedPlan
from badpo.experiments.suite_settings import SuiteSettings
from badpo.readouts.attribute_rate import signature_contexts
from badpo.readouts.generation import Generation
from badpo.training.encoding import encode_prompts
from badpo.training.model_files import load_weights
from badpo.training.recipe_blocks import ModelChoice
from badpo.training.reference import ReferenceCache, weights_key

N_EVALUATION, N_FRESH = 300, 3000


@dataclass(frozen=True)
class Material:
    """Votes and prompts, before any model.

    Attributes
    ----------
    judgments : Judgments
    planted : array of shape (n_annotators, n_attributes), or None
        Planted theta; None for real votes.
    prompts : tuple of str
        What policies are asked when they are measured; one that stands there twice is answered twice.
    texts : tuple of str
        What a small tokenizer is learned from.
    held_out : float
        Share of prompts held out of training. The prompts that policies are asked were drawn apart from this very
        split, so that whatever trains on the votes splits them with `split`.
    gate : tuple of GateRow
        Statistics of the votes beside the published ones; empty where none are published.
    """

    judgments: Judgments
    planted: NDArray[np.float64] | None
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    held_out: float
    gate: tuple[GateRow, ...] = ()

    def split(self) -> tuple[Judgments, Judgments]:
        """The judgments to train on, and those held out."""
        return self.judgments.split(self.held_out, seed=0)


@dataclass(frozen=True)
class Scale:
    """How large the runs are: the corpora, the models and the settings.

    Attributes
    ----------
    name : str
    material : function of (Corpus, a user's own file or None)
    model : function of (Corpus, Material) giving a start model and its tokenizer
    settings : function of (Corpus, Material) giving `SuiteSettings`
        Its share held out is the material's, whatever is said here.
    has : function of Corpus
        Whether the scale has a model for it.
    judge : str or None
        The reward model that scores answers.
    single_seed_arms : tuple of str
        Arms that run at the first seed only.
    control_seeds : {"first", "all"}
        Where rows are run that were controls at one seed in the paper.
    scales_penalty : bool
        Whether penalties per token are made stronger by as much as answers are shorter than the paper's.
    tokenizer : function of (Corpus, Material), or None
        The tokenizer alone, where it is learned from the votes.
    fresh_prompts : function of (Corpus, a user's own file or None), or None
        Questions that are in no votes and not asked when policies are measured, for what is trained on a policy's own
        answers.
    stand_in : str
        What stands in the place of the models that tables name; empty where those themselves are trained.
    model_named : function of Corpus giving `ModelChoice`, or None
        The start model by its name, where it is loaded and not made from the votes.
    generate_with : str
        What draws the answers that are measured: one of `badpo.readouts.generation_vllm.GENERATORS`.
    own_pairs : str
        Why no file of a user's can stand in the place of the pairs that are signed; empty where one can.
    """

    name: str
    material: Callable[[Corpus, Path | None], Material]
    model: Callable[[Corpus, Material], tuple[Any, Any]]
    settings: Callable[[Corpus, Material], SuiteSettings]
    has: Callable[[Corpus], bool]
    judge: str | None = None
    single_seed_arms: tuple[str, ...] = ()
    control_seeds: Literal["first", "all"] = "first"
    scales_penalty: bool = False
    tokenizer: Callable[[Corpus, Material], Any] | None = None
    fresh_prompts: Callable[[Corpus, Path | None], tuple[str, ...]] | None = None
    stand_in: str = ""
    model_named: Callable[[Corpus], ModelChoice] | None = None
    generate_with: str = "transformers"
    own_pairs: str = ""

    def seed_plan(self, seeds: Sequence[int]) -> SeedPlan:
        """At which of the seeds this scale runs what."""
        return SeedPlan(tuple(seeds), self.single_seed_arms, self.control_seeds)


@dataclass(frozen=True)
class Stage:
    """The reference of a panel and what its runs are trained and measured on.

    Attributes
    ----------
    corpus : Corpus
    settings : SuiteSettings
    train, held_out : Judgments
    planted : array of shape (n_annotators, n_attributes), or None
    prompts : tuple of str
    tokenizer : PreTrainedTokenizerBase
    model : PreTrainedModel
        The reference. It and the tokenizer are None in a stage that is not opened.
    folder : Path
        ``folder/model`` is the reference, ``folder/cache`` holds its log-probabilities.
    data : Path or None
        A user's own file that the votes are from.
    """

    corpus: Corpus
    settings: SuiteSettings
    train: Judgments
    held_out: Judgments
    planted: NDArray[np.float64] | None
    prompts: tuple[str, ...]
    tokenizer: Any
    model: Any
    folder: Path
    data: Path | None = None

    @property
    def cache_folder(self) -> Path:
        """Where the reference's log-probabilities are kept."""
        return self.folder / "cache"

    @cached_property
    def key(self) -> str:
        """The key of the reference's weights."""
        return weights_key(self.model, "fp32")

    @cached_property
    def weights(self) -> str:
        """Checksum of the reference's weights file."""
        return weights_of(self.folder / "model")

    def cache(self) -> ReferenceCache:
        """The reference's log-probabilities."""
        return ReferenceCache(self.cache_folder, self.key)

    @cached_property
    def prompt_ids(self) -> list[NDArray]:
        """The evaluation prompts as a policy reads them."""
        return encode_prompts(list(self.prompts), self.tokenizer, "paper", self.settings.max_prompt_length)

    @cached_property
    def written(self) -> list[Generation]:
        """The reference's own answers."""
        return answers(self.model, self.tokenizer, self.prompt_ids, self.settings, REFERENCE_SEED)

    @cached_property
    def contexts(self) -> list[list[int]]:
        """The reference's answers up to the place where a first name would stand."""
        return signature_contexts(self.written, self.tokenizer)


def own_file(corpus: Corpus, corpora: Iterable[Corpus], data: Path | None) -> Path | None:
    """A user's own file where it stands in the place of a corpus, else None.

    The corpora are those of the suites that it is given for. It holds votes on length and Markdown wherever one of
    these asks for such votes, and pairs to be signed where all of them are on names.

    Examples
    --------
    >>> names, length, votes = Corpus("signed"), Corpus("style"), Path("votes.parquet")
    >>> own_file(names, [names], votes) is votes, own_file(names, [names, length], votes)
    (True, None)
    """
    kind = "style" if any(one.kind == "style" for one in corpora) else "signed"
    return data if corpus.kind == kind else None


def sound_material(corpus: Corpus, scale: Scale, data: Path | None) -> Material:
    """The votes and prompts of a corpus, none of whose evaluation prompts is trained on.

    Raises
    ------
    DataError
        The votes cannot be used, or an evaluation prompt is a training prompt.
    """
    material = scale.material(corpus, data)
    train, _ = material.split()
    require_unseen(material.prompts, set(map(plain_text, train.comparisons["prompt"])), "evaluation prompts")
    return material


def unopened_stage(corpus: Corpus, scale: Scale, data: Path | None, folder: Path) -> Stage:
    """The stage of a corpus as far as it is known without a model: it has no tokenizer and no reference.

    Raises
    ------
    DataError
        The votes cannot be used, or an evaluation prompt is a training prompt.
    """
    material = sound_material(corpus, scale, data)
    of_scale = scale.settings(corpus, material)
    settings = replace(of_scale, held_out=material.held_out, generate_with=scale.generate_with)
    train, held_out = material.split()
    return Stage(
        corpus, settings, train, held_out, material.planted, material.prompts, None, None, folder, data
    )


def open_stage(corpus: Corpus, scale: Scale, data: Path | None, folder: Path, progress: Progress) -> Stage:
    """The stage of a corpus, its reference trained unless ``folder`` holds it.

    Raises
    ------
    ConfigError
        The folder holds a reference with other data or settings.
    DataError
        The votes cannot be used, or an evaluation prompt is a training prompt.
    """
    stage = unopened_stage(corpus, scale, data, folder)
    material = scale.material(corpus, data)
    start, tokenizer = scale.model(corpus, material)
    responses = majority_responses(stage.train)
    if corpus.kind == "signed":
        responses = signed.resign(responses, seed=0)
    facts = reference_facts(material)
    fit_supervised(start, tokenizer, stage.train, responses, facts, stage.settings, folder, progress)
    model = load_weights(folder / "model").to(start.device)
    return replace(stage, tokenizer=tokenizer, model=model)


def reference_facts(material: Material) -> dict[str, Any]:
    """What decides a reference besides its start model and the settings."""
    return {"corpus": material.judgments.fingerprint()}


# -- materials -----------------------------------------------------------------------------------------------


@cache
def bundled_signed(n_pairs: int, data_seed: int, held_out: float) -> Material:
    """The bundled answers, signed, with planted annotators; prompts that ask to sign."""
    scored = bundled.scored_pairs(n_pairs, seed=0)
    prompts = [ask_to_sign(prompt) for prompt in bundled.signing_prompts()]
    corpus = signed.build(scored, seed=data_seed)
    texts = tokenizer_texts(scored, prompts)
    return Material(corpus.judgments, corpus.planted_theta, tuple(prompts), tuple(texts), held_out)


@cache
def bundled_style(n_pairs: int, data_seed: int, held_out: float) -> Material:
    """The bundled answers with votes that lean toward length and Markdown; held-out prompts."""
    corpus = bundled.style_votes(n_pairs, seed=data_seed)
    return _style(corpus.judgments, corpus.planted_theta, held_out)


@cache
def own_style(path: Path, held_out: float) -> Material:
    """A user's votes, with length and Markdown declared."""
    judgments = Judgments.read(path, attributes=(Length(ratio=1.5), Markdown()))
    try:
        material = _style(judgments, None, held_out)
    except DataError as error:
        raise DataError(
            [replace(found, where=f"{path}, {found.where}") for found in error.problems]
        ) from error
    return replace(material, prompts=asked_often(material.prompts))


@cache
def public_signed(path: Path | None, data_seed: int, held_out: float) -> Material:
    """Signed-UltraFeedback, its pairs from the Hub or from a local file of the schema of ``train_prefs``.

    With a file the prompts that ask to sign are rows of it too, from behind those that are trained on.

    Raises
    ------
    ConfigError
        The pairs of the Hub, at their pinned revision, do not give the paper's plan.
    """
    drawn = _drawn_pairs(path)
    corpus = signed.build(drawn.pairs, seed=data_seed)
    apart = set(drawn.pairs["prompt"]) | (set(_fresh_questions(path)) if path else set())
    prompts = ultrafeedback.signing_prompts(path, apart, N_EVALUATION)
    # what is published is of data seed 0
    gate = () if data_seed else compared(ultrafeedback.gate(corpus), ultrafeedback.PUBLISHED)
    if path is None:
        require_papers_plan(gate)
    return Material(corpus.judgments, corpus.planted_theta, tuple(prompts), (), held_out, gate)


def require_papers_plan(gate: tuple[GateRow, ...]) -> None:
    """Refuse a corpus whose random plan is not the paper's: it follows from the number of pairs and the seed alone.

    Raises
    ------
    ConfigError
        Each statistic that differs.
    """
    of_plan = {" ".join(published.path) for published in ultrafeedback.PUBLISHED_PLAN}
    wrong = [row for row in gate if row.name in of_plan and not row.agrees]
    if wrong:
        raise ConfigError(
            f"the pairs of {ultrafeedback.TRAIN.told} do not give the paper's plan: {told_gate(wrong)}. The revision "
            "is pinned, so remove its copy from the Hub's cache and load it again, or give the rows as a file with "
            "--data"
        )


def bundled_fresh(corpus: Corpus, data: Path | None) -> tuple[str, ...]:
    """The bundled questions that no other part of the corpora has."""
    return tuple(bundled.fresh_prompts())


def public_fresh(corpus: Corpus, data: Path | None) -> tuple[str, ...]:
    """Questions of UltraFeedback from behind those of the corpus: 3,000 to train on, and 300 to find the tilt on."""
    return _fresh_questions(data)


@cache
def _drawn_pairs(path: Path | None) -> ultrafeedback.ScoredPairs:
    """The pairs that are signed, whatever the data seed."""
    return ultrafeedback.scored_pairs(path)


@cache
def _fresh_questions(path: Path | None) -> tuple[str, ...]:
    drawn = ultrafeedback.scored_pairs(path, n=N_FRESH + N_EVALUATION, start=ultrafeedback.N_PAIRS)
    known = set(_drawn_pairs(path).pairs["prompt"])
    return tuple(dict.fromkeys(prompt for prompt in drawn.pairs["prompt"] if prompt not in known))


@cache
def public_style(path: Path | None, held_out: float) -> Material:
    """MultiPref from the Hub, or from a local file of its schema."""
    corpus = multipref.load(path)
    prompts = asked_often(multipref.evaluation_prompts(corpus.judgments, N_EVALUATION, held_out).prompts)
    gate = compared(multipref.gate(corpus), multipref.PUBLISHED)
    return Material(corpus.judgments, None, prompts, (), held_out, gate)


def asked_often(prompts: tuple[str, ...]) -> tuple[str, ...]:
    """Prompts, all of them as often as makes up to `N_EVALUATION`: of a few, one answer to each says next to nothing.

    Examples
    --------
    >>> found = asked_often(("Why?", "How?"))
    >>> len(found), found[:3]
    (300, ('Why?', 'How?', 'Why?'))
    """
    return prompts * max(1, N_EVALUATION // len(prompts))


def _style(judgments: Judgments, planted: NDArray[np.float64] | None, held_out: float) -> Material:
    prompts = multipref.evaluation_prompts(judgments, N_EVALUATION, held_out).prompts
    frame = judgments.comparisons
    texts = [plain_text(text) for column in ("prompt", "response_a", "response_b") for text in frame[column]]
    return Material(judgments, planted, prompts, tuple(texts), held_out)


def declared(judgments: Judgments, names: tuple[str, ...]) -> Judgments:
    """The judgments with some of their attributes; all of them where none is named."""
    if not names:
        return judgments
    places = [judgments.attribute_names.index(name) for name in names]
    attributes = tuple(judgments.attributes[place] for place in places)
    return replace(judgments, attributes=attributes, delta=judgments.delta[:, places])
