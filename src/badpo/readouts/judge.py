"""Score answers with a reward model, before and after the attribute is removed from the answers.

A judge is a sequence-classification model with one output and a chat template. The scores of a judge have no unit and
no natural zero, so compare only scores of the same judge on answers of the same model.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import TypedDict

import numpy as np
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from badpo.data.cells import numbered, text_key
from badpo.data.files import asking_once
from badpo.data.markers import has_markdown, split_signature
from badpo.data.problems import ConfigError
from badpo.readouts.generation import pad_rows
from badpo.readouts.sampled import Figures, estimate_figures
from badpo.theory import Floats
from badpo.theory.summaries import cluster_mean
from badpo.training.encoding import render_chats
from badpo.training.logprobs import evaluation_mode
from badpo.training.model_files import UNREADABLE, describe_unreadable, load_tokenizer, load_weights

Prompt = str | Sequence[Mapping[str, str]]  # a text or chat messages

# Maximum number of tokens in a conversation; the paper's reward models were trained with this limit.
# For a reward model with a smaller context window, the size of the window is the limit.
LONGEST = 16_384
# Number of conversations in a forward pass.
BATCH = 8


@dataclass(frozen=True)
class Judge:
    """A reward model that can score conversations."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


class JudgeFigures(TypedDict):
    """Mean scores of the answers as written and without the attribute, and the number of answers with the attribute."""

    rm: Figures
    rm_minus: Figures
    n_stripped: int


def load_judge(name: str) -> Judge:
    """Load a reward model from a folder or by its name on the Hub."""
    try:
        with asking_once(name):
            tokenizer = load_tokenizer(name)
            model, loading = load_weights(
                name, AutoModelForSequenceClassification, dtype="auto", output_loading_info=True
            )
    except UNREADABLE as error:
        raise ConfigError(describe_unreadable(name, error, "a reward model")) from error
    if loading["missing_keys"]:
        raise ConfigError(
            f'"{name}" is not a reward model: its files lack {", ".join(sorted(loading["missing_keys"]))}, so these '
            "weights would be random; name a model that was trained to score answers"
        )
    return require_judge(model, tokenizer, name)


def require_judge(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> Judge:
    """Return a judge made from a model and its tokenizer; raise `ConfigError` if they cannot score conversations."""
    if tokenizer.chat_template is None:
        raise ConfigError(
            f'the reward model "{name}" has no chat template, so the format of its conversations is unknown; '
            "set tokenizer.chat_template to the template with which the model was trained"
        )
    if model.config.num_labels != 1:
        raise ConfigError(
            f'the reward model "{name}" has {model.config.num_labels} outputs, but a score is one number; choose a '
            "model with num_labels=1"
        )
    return Judge(model, tokenizer)


def judge_answers(
    judge: Judge,
    prompts: Sequence[Prompt],
    answers: Sequence[str],
    strip: Callable[[str], str],
    max_length: int | None = None,
) -> JudgeFigures:
    """Compute the mean score of the answers ("rm") and of the answers without the attribute ("rm_minus")."""
    clusters = numbered(map(text_key, prompts))[0]

    def mean(texts: Sequence[str]) -> Figures:
        scores, n_cut = judge_scores(judge, prompts, texts, max_length)
        interval = cluster_mean(scores, clusters)
        return estimate_figures("mean", interval, "se", n=len(scores), n_cut=n_cut)

    stripped = list(map(strip, answers))
    n_stripped = sum(new != old for new, old in zip(stripped, answers, strict=True))
    return {"rm": mean(answers), "rm_minus": mean(stripped), "n_stripped": n_stripped}


def judge_scores(
    judge: Judge,
    prompts: Sequence[Prompt],
    answers: Sequence[str],
    max_length: int | None = None,
) -> tuple[Floats, int]:
    """Score each answer to its prompt; return the scores and the number of answers that were truncated.

    The judge's chat template renders the prompt and the answer without a system message. If a conversation is longer
    than ``max_length`` or the model's context window, the answer is truncated. The model's head reads the last token,
    so the closing tokens of the chat template are kept.

    References
    ----------
    BA-DPO, appendix `app:readouts`, "Judge".
    """
    positions = getattr(judge.model.config, "max_position_embeddings", None) or LONGEST
    limit = min(positions, LONGEST if max_length is None else max_length)
    rows = [_encode_conversation(judge.tokenizer, *pair) for pair in zip(prompts, answers, strict=True)]
    cut_rows = [i for i, ids in enumerate(rows) if len(ids) > limit]
    for i in cut_rows:
        rows[i] = _cut_answer(judge.tokenizer, prompts[i], rows[i], limit, i)
    # without a padding token, the model's head reads the last column of a batch, so each conversation is scored alone
    pad = judge.model.config.get_text_config().pad_token_id
    size = 1 if pad is None else BATCH
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    scores = np.empty(len(rows))
    with evaluation_mode(judge.model) as device:
        for start in range(0, len(order), size):
            at = order[start : start + size]
            ids, mask = pad_rows([rows[i] for i in at], device, "right", pad or 0)
            logits = judge.model(input_ids=ids, attention_mask=mask).logits
            scores[at] = logits[:, 0].double().cpu().numpy()
    return scores, len(cut_rows)


def _render_conversation(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, answer: str) -> str:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return render_chats(tokenizer, [[*messages, {"role": "assistant", "content": answer}]])[0]


def _encode_conversation(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, answer: str) -> list[int]:
    ids = list(tokenizer(_render_conversation(tokenizer, prompt, answer))["input_ids"])
    begins_twice = len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_token_id
    # if both the chat template and the tokenizer added a beginning-of-text token, one of the two is removed
    return ids[1:] if begins_twice else ids


def _cut_answer(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, ids: list[int], limit: int, row: int
) -> list[int]:
    """Truncate the answer in an encoded conversation, but keep the tokens that the chat template adds after it."""
    n_around = len(_encode_conversation(tokenizer, prompt, ""))
    if n_around >= limit:
        raise ValueError(
            f"prompt {row} has {n_around} tokens and the judge reads at most {limit}, so there is no room for the "
            "answer; set a larger max_length, or exclude the prompt"
        )
    # the closing text of the chat template is the common suffix of two conversations with different answers
    reversed_texts = [_render_conversation(tokenizer, prompt, answer)[::-1] for answer in ("0", "1")]
    shared = commonprefix(reversed_texts)[::-1]
    closing = tokenizer(shared, add_special_tokens=False)["input_ids"]
    return [*ids[: limit - len(closing)], *closing]


# Each pattern matches a whole sequence of Markdown markers, so that the remaining text cannot form a new marker.
_FENCE = re.compile(r"`{3,}[^\S\n]*\w*$|`{3,}", re.MULTILINE)
_BOLD = re.compile(r"\*{2,}([^*]+)\*{2,}")
_LINE_MARKS = re.compile(r"^(?:[^\S\n]*(?:#{1,6}|[-*+]|\d+\.)(?=\s))+[^\S\n]*", re.MULTILINE)
_TABLE_LINE = re.compile(r"^[^\S\n]*\|(.*)\|[^\S\n]*$", re.MULTILINE)
_RULE = re.compile(r"[\s|:=-]*")


def strip_markdown(text: str) -> str:
    """Remove the Markdown markers that `badpo.data.markers.has_markdown` detects, and keep the words.

    The function removes code fences with their language names, header and list markers at the start of a line,
    asterisks around bold text, and the bars of table rows. If a removal creates a new Markdown marker, the function
    removes that marker too.
    """
    before = ""
    # repeat until a pass changes nothing
    while text != before and has_markdown(text):
        before = text
        text = _FENCE.sub("", text)
        text = _BOLD.sub(r"\1", text)
        text = _LINE_MARKS.sub("", text)
        text = _TABLE_LINE.sub(_strip_bars, text)
    return text


def strip_signatures(text: str) -> str:
    """Remove all signatures at the end of a text."""
    lines = text.split("\n")
    n_kept = len(lines)
    # the first line cannot be a signature, because no text precedes it
    for i in range(len(lines) - 1, 0, -1):
        if split_signature(f"\n{lines[i]}")[1]:
            n_kept = i
        elif lines[i].strip():
            break
    return text if n_kept == len(lines) else "\n".join(lines[:n_kept]).rstrip()


def _strip_bars(line: re.Match[str]) -> str:
    """Return the cells of a table row, separated by spaces; return an empty string for the line below the header."""
    inside = line.group(1)
    return "" if _RULE.fullmatch(inside) else " ".join(inside.replace("|", " ").split())
