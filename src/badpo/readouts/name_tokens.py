"""The tokens of names that stand behind a lead, and of the contexts before them."""

from __future__ import annotations

from collections.abc import Sequence


def name_token_ids(tokenizer, names: Sequence[str], lead: str) -> tuple[int, list[tuple[int, ...]]]:
    """How many tokens of the lead stay in the context, and each name's tokens after them."""
    encoded = tokenizer([lead, *(lead + name for name in names)], add_special_tokens=False)["input_ids"]
    base, whole = list(encoded[0]), [list(ids) for ids in encoded[1:]]
    shared = min(_common_length(base, ids) for ids in whole)
    token_ids = [tuple(ids[shared:]) for ids in whole]
    first: dict[tuple[int, ...], str] = {}
    for name, ids in zip(names, token_ids, strict=True):
        if not ids:
            raise ValueError(
                f"the name {name!r} has no token of its own after {lead!r}; leave it out of the pool"
            )
        if ids in first:
            raise ValueError(
                f"the names {first[ids]!r} and {name!r} have the same tokens {ids}; "
                "this tokenizer cannot tell them apart: leave one out, or use a tokenizer that knows them"
            )
        first[ids] = name
    return shared, token_ids


def without_tail(tokenizer, context_ids, lead: str, shared: int) -> list[list[int]]:
    """The contexts up to the token after which the names differ, checked to end with the lead."""
    base = list(tokenizer([lead], add_special_tokens=False)["input_ids"][0])
    # the first token of the lead may have merged with the end of the answer, as in ".\n\n"
    known = base[1:] or base
    contexts = [list(map(int, ids)) for ids in context_ids]
    for i, ids in enumerate(contexts):
        if ids[len(ids) - len(known) :] != known:
            raise ValueError(
                f"context {i} ends with tokens {ids[-len(known) :]}, not with those of {lead!r}, {known}; "
                "make contexts with signature_contexts, the same tokenizer and the same lead"
            )
    return [ids[: len(ids) - (len(base) - shared)] for ids in contexts]


def space_tokens(tokenizer) -> list[int]:
    """Ids of the tokens that begin with a space: behind a first name, those that begin a surname."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return [i for i, token in enumerate(tokens) if token and token[0] in (" ", "\u0120", "\u2581")]


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    unequal = (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y)
    return next(unequal, min(len(left), len(right)))
