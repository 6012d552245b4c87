"""Answers scored by a reward model, as they are and without the attribute.

Any sequence-classification model with one output and a chat template is a judge. Its scale has no zero and no unit:
compare scores of one judge on one model's answers only.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import numpy as np

from badpo.data.attributes import Attribute
from badpo.data.cells import numbered, text_key
from badpo.data.files import Json, asking_once
from badpo.data.markers import has_markdown, split_signature
from badpo.data.problems import ConfigError
from badpo.readouts.generation import padded
from badpo.readouts.sampled import told
from badpo.theory import Floats
from badpo.theory.summaries import cluster_mean
from badpo.training.encoding import rendered_chats
from badpo.training.logprobs import looking_at

# What the reward models of the paper were trained on; a model with fewer positions has its own limit.
LONGEST = 16_384
# Conversations scored at a time.
BATCH = 8


@dataclass(frozen=True)
class Judge:
    """A reward model that can score conversations."""

    model: Any
    tokenizer: Any


def load_judge(name: str) -> Judge:
    """A reward model by its folder or its name on the Hub."""
    from transformers import AutoModelForSequenceClassification

    from badpo.training.model_files import load_tokenizer, load_weights

    try:
        with asking_once(name):
            tokenizer = load_tokenizer(name)
            model, loading = load_weights(
                name, AutoModelForSequenceClassification, dtype="auto", output_loading_info=True
            )
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f'cannot load the reward model "{name}": {reason}; download it once with network, or give a local folder'
        ) from error
    if loading["missing_keys"]:
        raise ConfigError(
            f'"{name}" is no reward model: {", ".join(sorted(loading["missing_keys"]))} is not in its files and would '
            "be random; give a model that was trained to score"
        )
    return checked_judge(model, tokenizer, name)


def checked_judge(model, tokenizer, name: str) -> Judge:
    """A model and its tokenizer as a judge."""
    if tokenizer.chat_template is None:
        raise ConfigError(
            f'the reward model "{name}" has no chat template, so it is not known how it reads a prompt and an answer; '
            "set tokenizer.chat_template to the one that it was trained with"
        )
    if model.config.num_labels != 1:
        raise ConfigError(
            f'the reward model "{name}" has {model.config.num_labels} outputs, and a score is one number; give a model '
            "with num_labels 1"
        )
    return Judge(model, tokenizer)


def judge_answers(
    judge: Judge,
    prompts: Sequence,
    answers: Sequence[str],
    strip: Callable[[str], str],
    max_length: int | None = None,
) -> Json:
    """RM, and RM minus, without the attribute that is taken off an answer: {"rm", "rm_minus", "n_stripped"}."""
    clusters = numbered(map(text_key, prompts))[0]

    def mean(texts: Sequence[str]) -> Json:
        scores, n_cut = judge_scores(judge, prompts, texts, max_length)
        found = cluster_mean(scores, clusters)
        return told("mean", found, "se", n=len(scores), n_cut=n_cut)

    without = list(map(strip, answers))
    n_stripped = sum(new != old for new, old in zip(without, answers, strict=True))
    return {"rm": mean(answers), "rm_minus": mean(without), "n_stripped": n_stripped}


def judge_scores(
    judge: Judge,
    prompts: Sequence,
    answers: Sequence[str],
    max_length: int | None = None,
) -> tuple[Floats, int]:
    """Score of each answer to its prompt, and how many conversations were cut.

    A prompt and an answer are rendered by the judge's chat template, with no system message of ours. Of a conversation
    longer than the limit, or than the model's positions, the end of the answer goes; the tokens that close it, which
    the head reads, stay.

    References
    ----------
    BA-DPO, appendix `app:readouts`, "Judge".
    """
    longest = LONGEST if max_length is None else max_length
    limit = min(getattr(judge.model.config, "max_position_embeddings", None) or LONGEST, longest)
    rows = [_as_ids(judge.tokenizer, *pair) for pair in zip(prompts, answers, strict=True)]
    cut_rows = [i for i, ids in enumerate(rows) if len(ids) > limit]
    for i in cut_rows:
        rows[i] = _closed(judge.tokenizer, prompts[i], rows[i], limit, i)
    # without a padding token the head reads the last column, so rows of one length are all it can take
    pad = judge.model.config.get_text_config().pad_token_id
    size = 1 if pad is None else BATCH
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    scores = np.empty(len(rows))
    with looking_at(judge.model) as device:
        for start in range(0, len(order), size):
            at = order[start : start + size]
            ids, mask = padded([rows[i] for i in at], device, "right", pad or 0)
            logits = judge.model(input_ids=ids, attention_mask=mask).logits
            scores[at] = logits[:, 0].double().cpu().numpy()
    return scores, len(cut_rows)


def _rendered(tokenizer, prompt, answer: str) -> str:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return rendered_chats(tokenizer, [[*messages, {"role": "assistant", "content": answer}]])[0]


def _as_ids(tokenizer, prompt, answer: str) -> list[int]:
    ids = list(tokenizer(_rendered(tokenizer, prompt, answer))["input_ids"])
    begins_twice = len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_token_id
    # the template writes the first token, and the tokenizer puts another before it
    return ids[1:] if begins_twice else ids


def _closed(tokenizer, prompt, ids: list[int], limit: int, row: int) -> list[int]:
    """The conversation with the end of its answer cut off, and what the template writes after an answer kept."""
    n_around = len(_as_ids(tokenizer, prompt, ""))
    if n_around >= limit:
        raise ValueError(
            f"prompt {row} takes {n_around} tokens of the {limit} that the judge reads, so no answer is left to score; "
            "give a larger max_length, or leave the prompt out"
        )
    # the end that two different answers share
    shared = commonprefix([_rendered(tokenizer, prompt, answer)[::-1] for answer in ("0", "1")])[::-1]
    closing = tokenizer(shared, add_special_tokens=False)["input_ids"]
    return [*ids[: limit - len(closing)], *closing]


# Runs are taken whole, so that nothing new is joined where they stood.
_FENCE = re.compile(r"`{3,}[^\S\n]*\w*$|`{3,}", re.MULTILINE)
_BOLD = re.compile(r"\*{2,}([^*]+)\*{2,}")
_LINE_MARKS = re.compile(r"^(?:[^\S\n]*(?:#{1,6}|[-*+]|\d+\.)(?=\s))+[^\S\n]*", re.MULTILINE)
_TABLE_LINE = re.compile(r"^[^\S\n]*\|(.*)\|[^\S\n]*$", re.MULTILINE)
_RULE = re.compile(r"[\s|:=-]*")


def strip_markdown(text: str) -> str:
    """Text without the marks that `badpo.data.markers.has_markdown` looks for; the words stay.

    Fences go with the name of their language, header and list marks from the front of their lines, asterisks from
    around bold text, bars from table lines. What a removal brings to light is removed too.
    """
    before = ""
    # a pass that changes nothing would change nothing the next time either
    while text != before and has_markdown(text):
        before = text
        text = _FENCE.sub("", text)
        text = _BOLD.sub(r"\1", text)
        text = _LINE_MARKS.sub("", text)
        text = _TABLE_LINE.sub(_cells, text)
    return text


def strip_signatures(text: str) -> str:
    """Text without the signature at its end, nor any that stands above it."""
    lines = text.split("\n")
    first = kept = len(lines)
    # the first line is no signature: there is nothing that it could be below
    while first > 1:
        line = lines[first - 1]
        if split_signature(f"\n{line}")[1]:
            kept = first - 1
        elif line.strip():
            break
        first -= 1
    return text if kept == len(lines) else "\n".join(lines[:kept]).rstrip()


STRIPS = {
    "markdown": strip_markdown,
    "signature_name": strip_signatures,
}


def strip_for(attribute: Attribute) -> Callable[[str], str] | None:
    """The strip of an attribute; None where there is none."""
    return STRIPS.get(str(attribute.config.get("type")))


def _cells(line: re.Match[str]) -> str:
    """The cells of a table line, spaced; nothing for a rule between header and body."""
    inside = line.group(1)
    return "" if _RULE.fullmatch(inside) else " ".join(inside.replace("|", " ").split())
