"""What the runs of a panel share: votes, evaluation prompts, start model and the reference that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from badpo.data.attributes import plain_text
from badpo.data.corpora import bundled, multipref, signed, ultrafeedback
from badpo.data.corpora.evaluation_prompts import require_unseen
from badpo.data.corpora.signatures import ask_to_sign
from badpo.data.judgments import Judgments
from badpo.data.text_attributes import Length, Markdown
from badpo.experiments.demo import tokenizer_texts
from badpo.experiments.signed_readouts import REFERENCE_SEED, answers
from badpo.experiments.signed_suite import Progress, SuiteSettings, fit_supervised
from badpo.experiments.start_policy import majority_responses
from badpo.experiments.suite_parts import Corpus
from badpo.readouts.attribute_rate import signature_contexts
from badpo.readouts.generation import Generation
from badpo.training.encoding import encode_prompts
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
        What policies are asked when they are measured.
    texts : tuple of str
        What a small tokenizer is learned from.
    held_out : float
        Share of prompts held out of training. The prompts that policies are asked were drawn apart from this very
        split, so that whatever trains on the votes splits them with `split`.
    """

    judgments: Judgments
    planted: NDArray[np.float64] | None
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    held_out: float

    def split(self) -> tuple[Judgments, Judgments]:
        """The judgments to train on, and those held out."""
        return self.judgments.split(self.held_out, seed=0)


@dataclass(frozen=True)
class Scale:
    """How large the runs are: the corpora, the models and the settings.

    Attributes
    ----------
    name : str
    material : function of (Corpus, data file or None)
    model : function of (Corpus, Material) giving a start model and its tokenizer
    settings : function of (Corpus, Material) giving `SuiteSettings`
        Its share held out is the material's, whatever is said here.
    has : function of Corpus
        Whether the scale has a model for it.
    judge : str or None
        The reward model that scores answers.
    single_seed_arms : tuple of str
        Arms that run at the first seed only.
    scales_penalty : bool
        Whether penalties per token are made stronger by as much as answers are shorter than the paper's.
    tokenizer : function of (Corpus, Material), or None
        The tokenizer alone, where it is learned from the votes.
    fresh_prompts : function of Corpus, or None
        Questions that are in no votes and not asked when policies are measured, for what is trained on a policy's own
        answers.
    stand_in : str
        What stands in the place of the models that tables name; empty where those themselves are trained.
    """

    name: str
    material: Callable[[Corpus, Path | None], Material]
    model: Callable[[Corpus, Material], tuple[Any, Any]]
    settings: Callable[[Corpus, Material], SuiteSettings]
    has: Callable[[Corpus], bool]
    judge: str | None = None
    single_seed_arms: tuple[str, ...] = ()
    scales_penalty: bool = False
    tokenizer: Callable[[Corpus, Material], Any] | None = None
    fresh_prompts: Callable[[Corpus], tuple[str, ...]] | None = None
    stand_in: str = ""


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
        The reference.
    folder : Path
        ``folder/model`` is the reference, ``folder/cache`` holds its log-probabilities.
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

    @property
    def cache_folder(self) -> Path:
        """Where the reference's log-probabilities are kept."""
        return self.folder / "cache"

    @cached_property
    def key(self) -> str:
        """The key of the reference's weights."""
        return weights_key(self.model, "fp32")

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


def open_stage(corpus: Corpus, scale: Scale, data: Path | None, folder: Path, progress: Progress) -> Stage:
    """The stage of a corpus, its reference trained unless ``folder`` holds it.

    Raises
    ------
    ConfigError
        The folder holds a reference with other data or settings.
    DataError
        The votes cannot be used, or an evaluation prompt is a training prompt.
    """
    material = sound_material(corpus, scale, data)
    settings = replace(scale.settings(corpus, material), held_out=material.held_out)
    train, held_out = material.split()
    start, tokenizer = scale.model(corpus, material)
    responses = majority_responses(train)
    if corpus.kind == "signed":
        responses = signed.resign(responses, seed=0)
    facts = {"corpus": material.judgments.fingerprint()}
    fit_supervised(start, tokenizer, train, responses, facts, settings, folder, progress)
    model = AutoModelForCausalLM.from_pretrained(folder / "model").to(start.device)
    return Stage(
        corpus, settings, train, held_out, material.planted, material.prompts, tokenizer, model, folder
    )


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
    return _style(Judgments.read(path, attributes=(Length(ratio=1.5), Markdown())), None, held_out)


@cache
def public_signed(data_seed: int, held_out: float) -> Material:
    """Signed-UltraFeedback from the Hub."""
    drawn = ultrafeedback.scored_pairs()
    corpus = signed.build(drawn.pairs, seed=data_seed)
    prompts = ultrafeedback.signing_prompts(None, set(drawn.pairs["prompt"]), N_EVALUATION)
    return Material(corpus.judgments, corpus.planted_theta, tuple(prompts), (), held_out)


def bundled_fresh(corpus: Corpus) -> tuple[str, ...]:
    """The bundled questions that no other part of the corpora has."""
    return tuple(bundled.fresh_prompts())


@cache
def public_fresh(corpus: Corpus) -> tuple[str, ...]:
    """Questions of UltraFeedback from behind those of the corpus: 3,000 to train on, and 300 to find the tilt on."""
    drawn = ultrafeedback.scored_pairs(n=N_FRESH + N_EVALUATION, start=ultrafeedback.N_PAIRS)
    known = set(ultrafeedback.scored_pairs().pairs["prompt"])
    return tuple(dict.fromkeys(prompt for prompt in drawn.pairs["prompt"] if prompt not in known))


@cache
def public_style(path: Path | None, held_out: float) -> Material:
    """MultiPref from the Hub, or from a local file of its schema."""
    judgments = multipref.load(path).judgments
    prompts = multipref.evaluation_prompts(judgments, N_EVALUATION, held_out).prompts
    return Material(judgments, None, prompts, (), held_out)


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
