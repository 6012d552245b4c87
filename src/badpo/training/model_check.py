"""What a model's tokenizer and a length limit would do to a table, before anything is trained."""

from __future__ import annotations

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.training.encoding import (
    PAPER_MAX_PROMPT_LENGTH,
    encode_comparisons,
    length_report,
    require_matching_tokenizer,
)


def model_problems(judgments: Judgments, model: str, encoding: str, max_length: int) -> list[Problem]:
    """Cut and dropped comparisons, attributes that the limit cuts away, token ids that the model does not have.

    Of the model, a folder or a name on the Hub, the tokenizer and the configuration are read, and no weights.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        n_embeddings = AutoConfig.from_pretrained(model, trust_remote_code=False).get_text_config().vocab_size
    except OSError as error:
        raise ConfigError(
            f'cannot read "{model}": it is neither a folder with a model nor reachable on the Hub '
            f"({str(error).splitlines()[0]}); download it once with network, or name a folder"
        ) from error
    max_prompt_length = PAPER_MAX_PROMPT_LENGTH if encoding == "paper" else None
    encoded = encode_comparisons(judgments, tokenizer, encoding, max_length, max_prompt_length)
    problems = length_report(judgments, encoded, tokenizer, max_length)
    try:
        require_matching_tokenizer(encoded, tokenizer, n_embeddings)
    except DataError as error:
        problems += error.problems
    return problems
