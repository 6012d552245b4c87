"""Prompts that policies are evaluated on must be none that they were trained on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from badpo.data.corpora.signatures import SIGNING_INSTRUCTION
from badpo.data.problems import DataError, Problem, counted

__all__ = ["require_unseen"]

_N_SHOWN = 3
_LONGEST_SHOWN = 80


def require_unseen(prompts: Sequence[str], training_prompts: Collection[str], where: str) -> None:
    """Refuse evaluation prompts that are training prompts, with or without the request to sign.

    Parameters
    ----------
    prompts : sequence of str
    training_prompts : collection of str
    where : str
        What the message calls the evaluation prompts, such as the path of their file.

    Raises
    ------
    DataError
        E155, with the number of such prompts and the first three.

    Examples
    --------
    >>> require_unseen(["How do I boil rice?"], {"How do I boil eggs?"}, "prompts.json")
    """
    trained = {_question(prompt) for prompt in training_prompts}
    seen = [row for row, prompt in enumerate(prompts, start=1) if _question(prompt) in trained]
    if not seen:
        return
    shown = "; ".join(
        f"row {row} ({_question(prompts[row - 1])[:_LONGEST_SHOWN]!r})" for row in seen[:_N_SHOWN]
    )
    more = f" and {len(seen) - _N_SHOWN:,} more" if len(seen) > _N_SHOWN else ""
    what = f"{counted(len(seen), 'evaluation prompt')} of {len(prompts):,} can be found among the training prompts"
    remedy = "leave them out here, or hold them out of training"
    raise DataError([Problem("E155", what, f"{where}, {shown}{more}", remedy, "error", len(seen))])


def _question(prompt: str) -> str:
    return prompt.removesuffix(SIGNING_INSTRUCTION).strip()
