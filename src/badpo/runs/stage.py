"""Inputs that the measurements of several runs share, such as the reference, held-out votes and prompts."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from badpo.data.attributes import Text
from badpo.data.judgments import Judgments
from badpo.readouts import heldout
from badpo.readouts.generation import Decoding, Generation, TokenIds, sample
from badpo.runs.start import load_model
from badpo.theory import Floats, Ints
from badpo.training.config import BADPOConfig
from badpo.training.encoding import TemplateOptions, encode_prompts
from badpo.training.inputs import encode_judgments
from badpo.training.recipe import Recipe
from badpo.training.reference import ReferenceCache, compute_weights_key, default_cache

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Stage:
    """Inputs shared by the measurements of several runs, such as held-out votes, prompts, and the reference.

    ``recipe`` is the recipe of a run, or the common keys of several runs. ``start`` is the folder or the name of the
    reference. If a prompt occurs twice in ``prompts``, each policy answers the prompt twice. ``given`` contains further
    arguments of the chat template for each prompt. ``reported`` contains the warnings that have already been logged;
    they are not logged again.
    """

    recipe: Recipe
    train: Judgments
    held_out: Judgments
    start: str
    prompts: Sequence[Text]
    decoding: Decoding = field(default_factory=Decoding)
    given: Sequence[TemplateOptions] = ()
    reported: set[str] = field(default_factory=set)

    @cached_property
    def args(self) -> BADPOConfig:
        """The run's training arguments, such as encoding, beta and device, which the evaluation also uses."""
        return self.recipe.arguments()

    def warn(self, message: str) -> None:
        """Log a warning unless the same warning has already been logged."""
        if message not in self.reported:
            self.reported.add(message)
            logger.warning("%s", message)

    @cached_property
    def _loaded(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        return load_model(self.start, self.recipe.model)

    @cached_property
    def model(self) -> PreTrainedModel:
        """Model of the reference."""
        return self._loaded[0].to(self.args.device)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the reference."""
        return self._loaded[1]

    @cached_property
    def key(self) -> str:
        """Digest of the reference weights in float32 precision; the evaluation never uses autocast."""
        return compute_weights_key(self.model, "fp32")

    @cached_property
    def judged(self) -> Judgments:
        """Held-out judgments whose comparisons fit the length limit; a warning reports the other comparisons."""
        kept, _, findings = encode_judgments(self.held_out, self.tokenizer, self.args)
        for finding in findings:
            self.warn(str(finding))
        return kept

    def encoded(self, prompts: Sequence[Text], given: Sequence[TemplateOptions] = ()) -> list[Ints]:
        """Encode prompts."""
        limits = self.args.encoding, self.args.max_prompt_length
        return encode_prompts(list(prompts), self.tokenizer, *limits, given)

    def answers(
        self,
        policy: PreTrainedModel,
        seed: int,
        prompt_ids: Sequence[TokenIds] | None = None,
        decoding: Decoding | None = None,
    ) -> list[Generation]:
        """Sample one answer per prompt; ``prompt_ids`` and ``decoding`` replace the stage's prompts and settings."""
        ids = self.encoded(self.prompts, self.given) if prompt_ids is None else prompt_ids
        return sample(policy, self.tokenizer, ids, seed=seed, **vars(decoding or self.decoding))

    @cached_property
    def written(self) -> list[Generation]:
        """Answers of the reference."""
        return self.answers(self.model, 0)

    def log_ratios(
        self, policy: PreTrainedModel, judgments: Judgments | None = None
    ) -> heldout.LogRatios:
        """Compute the log-ratios of policy and reference on ``judgments``, by default the held-out judgments."""
        args, judged = self.args, self.judged if judgments is None else judgments
        cache = ReferenceCache(Path(args.reference_cache or default_cache()), self.key)
        limits = (args.encoding, args.max_length, args.max_prompt_length)
        return heldout.response_log_ratios(policy, self.model, cache, judged, self.tokenizer, *limits)

    def margins(self, policy: PreTrainedModel, judgments: Judgments | None = None) -> Floats:
        """Compute a policy's margins on the comparisons of ``judgments``, by default the held-out judgments."""
        return self.log_ratios(policy, judgments).margins(self.args.beta)
