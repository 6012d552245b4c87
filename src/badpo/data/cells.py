"""What stands in a table: names of columns, labels of sides, ids, numbers, texts, and what people mean by them."""

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.problems import DataError, Problem, is_unicode
from badpo.theory import Ints

Objects = NDArray[np.object_]

TURNED = {"a": "b", "b": "a", "tie": "tie"}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# what Mechanical Turk and Toloka put before names
_OF_CROWD = re.compile(r"^(?:(?:Input|Answer)\.|(?:INPUT|OUTPUT|ASSIGNMENT):)")
_PARTS = re.compile(r"[^\W\d_]+|\d+")
_PATH = re.compile(r"^[^./]*\w[./](?=\w)")
_CLOSE = 0.75
_LONGEST_NAME = 200  # the comparison of two longer words takes seconds
_ROLES = {"human": "user", "gpt": "assistant"}
_SPEAKERS = frozenset({"role", "from"})  # what a chat message says, and no other object


@dataclass(frozen=True)
class Table:
    """A table and where it came from."""

    frame: pd.DataFrame  # index 0, 1, ...; text of a CSV stays text, so 0123 is not a number
    name: str  # what messages call it: the path, or the kind of object
    lines: Ints | None = None  # of the file, from 1, at which each row starts
    rows: Ints | None = None  # of the source, from 0, that each row was made of, where not its own
    dropped: tuple[dict[str, Any], ...] = ()  # what is no row here: reason, annotator, n
    kind: str = ""  # a name in `badpo.data.layouts.REQUIRED`, once the columns carry our names
    theirs: Mapping[str, str] = field(default_factory=dict)  # our name -> the source's, for messages
    encoding: str = "utf-8"  # of a file of text
    notes: tuple[Problem, ...] = ()  # what was noticed while the file was read

    def __post_init__(self) -> None:
        if not all(is_unicode(str(name)) for name in self.frame.columns):
            what = "the table cannot be read: the name of a column holds half of a surrogate pair"
            raise DataError([Problem("E102", what, self.name, "rename the column")])


# -- names of columns ------------------------------------------------------------------------------------------

KNOWN = (
    *("prompt", "annotator", "annotator_class", "comparison_id", "prompt_id", "judgment_id"),
    *("weight", "shown_first", "response_a", "response_b", "winner", "chosen", "rejected"),
)
MODELS = ("model_a", "model_b")
# What may stand in place of a winner.
ANSWERS = (
    "rating",
    "rating_a",
    "rating_b",
    "rank_a",
    "rank_b",
    "votes_a",
    "votes_b",
    "votes_tie",
)
_SIDE_PARTS = {"a": "b", "chosen": "rejected"}


def like_annotators(found: Iterable[str]) -> list[str]:
    """Columns that may hold the annotators, by a word in their names."""
    return [name for name in found if re.search(f"{_PERSON}|user", name.casefold())]


def side_pairs(names: Iterable[str]) -> dict[str, str]:
    """Columns that hold one value for each side: the name of the first side's -> the name of the second's.

    A name has ``a`` and ``b``, or ``chosen`` and ``rejected``, as one of the parts that underscores separate.
    Columns of identifiers are left out.

    Examples
    --------
    >>> side_pairs(["score_a", "score_b", "chosen_words", "rejected_words", "id_a", "id_b", "a_b"])
    {'score_a': 'score_b', 'chosen_words': 'rejected_words'}
    """
    pairs = {}
    for name in (names := dict.fromkeys(names)):
        parts = name.split("_")
        other = "_".join(_SIDE_PARTS.get(part, part) for part in parts)
        is_of_one_side = sum(part in _SIDE_PARTS for part in parts) == 1
        if is_of_one_side and other in names and not {"id", "ids"} & set(parts):
            pairs[name] = other
    return pairs


_SIDES = {"a": "b", "1": "2", "left": "right", "first": "second"}
_WON = {
    "chosen": "rejected",
    "better": "worse",
    "winning": "losing",
    "winner": "loser",
    "preferred": "rejected",
}
LOST = frozenset({*_WON.values(), "worst"})
_ANSWER = (
    "(?:(?:model|assistant)_)?"
    "(?:response|completion|answer|output|generation|text|option|candidate|reply|argument|summary|assistant)"
)
_LISTED = f"{_ANSWER}|rank|rating|score"  # what one cell may hold several of
_PERSON = (
    "annotator|worker|rater|judge|evaluator|labell?er|reviewer|assessor|grader|participant|voter|coder|"
    "contributor|respondent|turker|bearbeiter|bewerter|annotateur|[eé]valuateur|evaluador|anotador"
)
_OF_PERSON = "class|group|team|type|role|cohort|category"
# What stands for a column of ours, where no column has the name itself.
_NAMED = {
    "prompt": "(?:user_)?prompt(?:_text)?|(?:user_)?(?:instruction|question|query)",
    "winner": (
        "preference|preferred|preferred_(?:side|response|answer|text)|choice|vote|verdict|better|best|selected|"
        f"(?:better|best)_(?:{_ANSWER})|which(?:_{_ANSWER})?_(?:is_better|do_you_prefer)|overall_preference|human_preference|winning_(?:{_ANSWER})"
    ),
    "annotator": (
        rf"(?:{_PERSON})(?:_(?:id|name|code|key|nr|no|number|hash|e_?mail))?|user_id|prolific_(?:id|pid)|e_?mail_ad\w*|"
        r"mturk_(?:worker_)?id|network_id|(?:annotat|label|labell|complet|judg|rat)ed_by(?:_id)?"
    ),
    "annotator_class": f"(?:{_PERSON}|user)_(?:{_OF_PERSON})",
    "rating": "likert|likert_rating|slider|score|preference_(?:rating|score|strength)",
    "votes_tie": "(?:n_|num_)?ties|(?:votes|n|count)_(?:for_)?(?:tie|equal|both|neither)|winner_tie",
}
# where nothing else stands for one
_ELSE = {"prompt": "(?:user_)?input|conversations?|dialogue?|post|article|document"}
# Two columns that differ in the word for a side, and in nothing else; {} is that word.
_NAMED_PAIRS = {
    ("response_a", "response_b"): (
        _SIDES,
        rf"(?:{_ANSWER})s?_{{}}(?:_(?:text|content))?|{{}}(?:_(?:{_ANSWER}))?",
    ),
    ("chosen", "rejected"): (_WON, rf"{{}}_(?:{_ANSWER})|(?:{_ANSWER})_{{}}"),
    ("rating_a", "rating_b"): (
        _SIDES,
        r"(?:rating|score|stars|points|likert)s?_{}|{}_(?:rating|score|stars|points)",
    ),
    ("rank_a", "rank_b"): (_SIDES, r"(?:rank|place)_(?:of_)?{}|{}_(?:rank|place)"),
    ("model_a", "model_b"): (_SIDES, r"(?:model|system)(?:_name)?_{}|{}_(?:model|system)"),
    ("votes_a", "votes_b"): (
        _SIDES,
        r"(?:n_|num_)?(?:votes|wins|count|n)_(?:for_)?{}|{}_(?:votes|wins|count|on)|winner_(?:model_)?{}",
    ),
}


def folded(text: str) -> str:
    """A name without what people write now in one way, now in another: case, spaces, signs, humps.

    Examples
    --------
    >>> folded("Response A"), folded("responseA"), folded("worker-ID"), folded("answer1")
    ('response_a', 'response_a', 'worker_id', 'answer_1')
    """
    return "_".join(_PARTS.findall(_HUMP.sub("_", _OF_CROWD.sub("", text)).casefold()))


def columns_named(found: Sequence[str], wanted: Iterable[str]) -> dict[str, str]:
    """Our names among ``wanted`` and the column that each stands for; none where two columns could be meant.

    A column that has our name comes first, then one that is our name written otherwise, then one of `_NAMED`.
    """
    wanted = list(wanted)
    theirs = {ours: ours for ours in wanted if ours in found}
    # a sign alone, as "#", is no name
    free = {name: form for name in found if name not in theirs and (form := folded(name))}

    def take(ours: str, names: Sequence[str]) -> None:
        if len(names) == 1:
            theirs[ours] = names[0]
            del free[names[0]]

    for ours in wanted:
        if ours not in theirs:
            take(ours, [name for name, form in free.items() if form == ours])
    for pair, (words, pattern) in _NAMED_PAIRS.items():
        if {*pair} <= {*wanted} and not {*pair} & {*theirs}:
            pairs = _pairs(free, words, pattern)
            for ours, name in zip(pair, pairs[0] if len(pairs) == 1 else (), strict=False):
                take(ours, [name])
    for ours in wanted:
        for pattern in (_NAMED.get(ours, ""), _ELSE.get(ours, "")):
            if ours not in theirs:
                names = [name for name, form in free.items() if re.fullmatch(pattern, form)]
                take(ours, [name for name in names if free[name].endswith("_id")] or names)
    # a path, as data.prompt, is known by its end
    ends = [
        (end, name) for name in free if len(end := _PATH.sub("", name, count=1)) not in (1, 2, len(name))
    ]
    inner = {end: name for end, name in ends if [*zip(*ends, strict=True)][0].count(end) == 1}
    if inner:
        left = [ours for ours in wanted if ours not in theirs]
        theirs |= {ours: inner[end] for ours, end in columns_named([*inner], left).items()}
    return theirs


def _pairs(free: Mapping[str, str], words: Mapping[str, str], pattern: str) -> list[tuple[str, str]]:
    """Columns of the two sides whose names differ in the word for the side alone."""
    by_form = {form: name for name, form in free.items()}
    pairs = []
    for first, second in words.items():
        for form, name in by_form.items():
            other = "_".join(second if part == first else part for part in form.split("_"))
            # a number alone is no name, and is a column that nobody named
            is_side = re.fullmatch(pattern.replace("{}", first), form) and not form.isdigit()
            if is_side and other != form and other in by_form:
                pairs.append((name, by_form[other]))
    return pairs


def numbered_answers(found: Iterable[str]) -> dict[str, str]:
    """Columns of three or more answers of one kind, by what their names end in: 1, 2, 3 or a, b, c."""
    kinds: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in found:
        kind, _, key = folded(name.rpartition(".")[2]).rpartition("_")
        if re.fullmatch(_ANSWER, kind) and re.fullmatch(r"[a-z]|\d\d?", key):
            kinds[kind][key] = name
    many = [sides for sides in kinds.values() if len(sides) > 2]
    return many[0] if len(many) == 1 else {}


def unfolded(frame: pd.DataFrame) -> dict[str, Objects]:
    """Columns of what stands in objects, as ``data.prompt``, and in lists of answers, as ``response_2``.

    Examples
    --------
    >>> [*unfolded(pd.DataFrame({"data": [{"prompt": "Why?"}], "summaries": [["So.", "No."]]}))]
    ['data.prompt', 'summary_1', 'summary_2']
    """
    columns = (pair for name in frame for pair in _inside(str(name), frame[name]))
    return {name: as_objects(cells) for name, cells in columns if name not in frame}


def _inside(name: str, cells: Iterable[Any]) -> Iterator[tuple[str, list[Any]]]:
    first = next((cell for cell in cells if isinstance(cell, str | dict | list | np.ndarray)), "")
    several = first if isinstance(first, list | np.ndarray) else [first]
    if any(isinstance(one, dict) and not _SPEAKERS.isdisjoint(one) for one in several):
        return
    singular = re.sub(r"(ie)?s$", lambda end: "y" * bool(end[1]), name)
    made: Iterable[tuple[str, list[Any]]] = ()
    if isinstance(first, dict):
        objects = [cell if isinstance(cell, dict) else {} for cell in cells]
        keys = dict.fromkeys(itertools.chain(*objects))
        made = ((f"{name}.{key}", [each.get(key) for each in objects]) for key in keys)
    elif several is first and re.fullmatch(_LISTED, folded(singular.rpartition(".")[2])):
        lists = (cell if isinstance(cell, list | np.ndarray) else () for cell in cells)
        places = enumerate(itertools.zip_longest(*lists), start=1)
        made = ((f"{singular}_{i}", [*each]) for i, each in places)
    for part, values in made:
        if any(value is not None for value in values):
            yield from [*_inside(part, values)] or [(part, values)]


def alike(ours: Sequence[str], found: Sequence[str]) -> dict[str, str]:
    """For each of our names the column that is written most like it; no column stands for two."""
    pairs = [
        (SequenceMatcher(None, name, folded(other)).ratio(), name, other)
        for name in ours
        for other in found
        if len(other) <= _LONGEST_NAME
    ]
    theirs: dict[str, str] = {}
    for ratio, name, other in sorted(pairs, key=lambda pair: -pair[0]):
        if ratio >= _CLOSE and name not in theirs and other not in theirs.values():
            theirs[name] = other
    return theirs


# -- labels of sides -------------------------------------------------------------------------------------------

# the words that may stand before a side: "not a" must not be read as a
_SIDE = re.compile(
    r"(?:i_)?(?:(?:strongly|slightly|clearly)_)?(?:(?:prefers?|preferred)_)?(?:the_)?"
    r"(?:(?:response|completion|answer|output|option|choice|model|text|candidate|generation|assistant|argument)_)?"
    r"(?:(a|1|left|first)|(b|2|right|second))"
    r"(?:_(?:one|response|answer))?(?:_(?:wins?|won))?(?:_is)?(?:_(?:clearly|slightly|much|significantly))?(?:_better)?"
)
_TIE = re.compile(
    r"tied?|ties|tie_.*|(?:equally|both)_good|(?:both_)?(?:about_)?(?:equal|the_same|same)|both|neither|draw|both_?bad|"
    r"model_tie|no_(?:difference|preference)"
)
_YES = ("true", "yes", "y")
_OF_THREE: dict[tuple[float, ...], tuple[str, ...]] = {
    (-1.0, 0.0, 1.0): ("a", "tie", "b"),
    (0.0, 1.0, 2.0): ("tie", "a", "b"),
}
_COMPARED = re.compile(r"\W*(?:(a|1)|b|2)\s*(>+|<+|=+)\s*(?:a|b|1|2)\W*")


def side_of(label: str) -> tuple[str, str] | None:
    """The side that a label names, and the word for that side; None where the label is not known.

    Examples
    --------
    >>> side_of("Response 2 is better"), side_of("[[A]]"), side_of("A>>B"), side_of("both bad"), side_of("not a")
    (('b', '2'), ('a', 'a'), ('a', 'a'), ('tie', ''), None)
    """
    if compared := _COMPARED.fullmatch(label.casefold()):
        sign = compared[2][0]
        side = "tie" if sign == "=" else "a" if (sign == ">") == bool(compared[1]) else "b"
        return side, side.removeprefix("tie")
    form = folded(label)
    if _TIE.fullmatch(form) or label.strip() in ("=", "=="):
        return "tie", ""
    if found := _SIDE.fullmatch(form):
        return ("a", found[1]) if found[1] else ("b", found[2])
    return None


def number_of(label: str) -> float:
    """The number that a label is, also with a decimal comma, of percent, of so many or in stars; NaN where none is."""
    text = label.strip().replace("\u2212", "-").replace(",", ".")
    if found := re.fullmatch(r"([+-]?\d{1,9}(?:\.\d+)?)(?:%| ?/ ?\d+)?", text):
        return float(found[1])
    return float(text.count("\u2605")) if text and not text.strip("\u2605\u2606") else math.nan


class RatingScale(NamedTuple):
    """The ends of a rating's scale, the number that is a tie, and the side that a high rating prefers or ""."""

    low: float
    middle: float
    end: float
    high: str


def scale_of(labels: Sequence[str], told: Mapping[str, str], is_rating: bool) -> RatingScale | None:
    """The scale that labels make up, where they are a rating; without signs or a word of the user its middle is taken.

    ``told`` says what a ``high`` or ``low`` rating means, and which number is a tie. More than three numbers that
    ``told`` does not mention, three that lie evenly by another step than 1, or one below -1, are a rating too.

    Examples
    --------
    >>> scale_of(["1", "7", "3"], {"low": "a"}, is_rating=False)
    RatingScale(low=1.0, middle=4.0, end=7.0, high='b')
    >>> scale_of(["1", "5", "3"], {}, is_rating=False).middle
    3.0
    """
    numbers = {number: label for label in labels if math.isfinite(number := number_of(label))}
    untold = sorted(number for number, label in numbers.items() if label not in told)
    is_rating = is_rating or len(untold) > 3 or min(untold, default=0) < -1
    # 1, 3 and 5, or 0, 0.5 and 1, have a middle, where 1, 2 and 3 may be a, b and tie
    is_rating = is_rating or (len(untold) == 3 and untold[1] - untold[0] == untold[2] - untold[1] != 1)
    if not numbers or not (is_rating or {"high", "low"} & {*told}):
        return None
    low, end = min(numbers), max(numbers)
    ties = [number_of(label) for label, side in told.items() if side == "tie"]
    step = 10 if end > 10 else 1  # of which the ends of a scale are multiples
    guess = 0.0 if low < 0 else (math.floor(low / step) + math.ceil(end / step)) * step / 2
    middle = next(filter(math.isfinite, ties), guess)
    return RatingScale(low, middle, end, told.get("high") or TURNED.get(told.get("low", ""), ""))


def side_told(
    label: str,
    told: Mapping[str, str],
    columns: Sequence[str],
    scale: RatingScale | None,
    are_places: bool,
) -> tuple[str, str]:
    """The side that a label names, and whether its name or its place among the sides says so; empty texts else.

    ``columns`` are the names of the two responses, and ``are_places`` says that the numbers among labels are 1 and 2.
    """
    own, number, form = label.strip().casefold(), number_of(label), folded(label)
    if label in told or own in TURNED:
        return told.get(label, own), "name"
    is_called = [form == column or form in column.split("_") for column in columns]
    if math.isnan(number) and sum(is_called) == 1:
        return "ab"[is_called.index(True)], "name"
    if scale and not math.isnan(number):
        above = scale.high if number > scale.middle else TURNED.get(scale.high, "")
        return "tie" if number == scale.middle else above, "name"
    side, word = (side_of(label) if are_places or math.isnan(number) else None) or ("", "")
    is_named = word in ("", "a", "b") or any(word in column.split("_") for column in columns)
    return side, ("name" if is_named else "order") * bool(side)


def proposed(labels: Sequence[str], known: set[str], scale: RatingScale | None) -> dict[str, str]:
    """What labels that could be either side may mean, for the user to confirm: two of them, or the scale of a rating.

    Of three words the last, which is the rarest, is taken for the tie. Beside ``known`` sides there is no proposal.
    """
    if scale and not scale.high:
        return {"high": "a"} | ({f"{scale.middle:g}": "tie"} if scale.low >= 0 else {})
    if {"a", "b"} & known or len(labels) not in (2, 3):
        return {}
    numbers = sorted(map(number_of, labels))
    ordered = sorted(labels[:2], key=lambda label: (label.casefold() not in _YES, label)) + [*labels[2:]]
    sides: tuple[str, ...] = ("a", "b", "tie")
    if all(map(math.isfinite, numbers)):
        ordered, sides = sorted(labels, key=number_of), _OF_THREE.get(tuple(numbers), sides)
    return dict(zip(ordered, sides, strict=False))


# -- cells -----------------------------------------------------------------------------------------------------

_WORDS_FOR_NOTHING = frozenset({"nan", "NaN", "None", "null", "NULL", "<NA>", "NaT"})


def numbered(values: Iterable[Hashable]) -> tuple[Ints, Objects]:
    """Number of each value, and the distinct values in order of first appearance.

    Of texts, pandas before 3 compares what stands before a NUL: `pandas.factorize` takes others for equal.
    """
    places: defaultdict[Hashable, int] = defaultdict()
    places.default_factory = places.__len__
    numbers = np.fromiter(map(places.__getitem__, values), dtype=np.intp)
    return numbers, as_objects(places)


def as_objects(values: Iterable[Any]) -> Objects:
    """A one-dimensional object array, also of lists of equal length."""
    return np.fromiter(values, dtype=object)


def as_ids(column: Iterable[Any]) -> Objects:
    """Identifiers as text, None where there is none.

    Whole numbers lose a decimal point that a missing value elsewhere in the column gave them; text is never changed.
    Blank cells and the words that programs write for a missing value count as missing.
    """
    cells = pd.Series(column, dtype=object).to_numpy(copy=True)
    cells[pd.isna(cells)] = None
    try:
        numbers, distinct = numbered(cells)
    except TypeError:
        raise ValueError("a cell is a list or an object, not an identifier") from None
    return as_objects(map(_id_text, distinct))[numbers]


def _id_text(value: Any) -> str | None:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    # half of a surrogate pair can be written nowhere, and pandas 2 compares up to a NUL: each becomes its code
    text = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return None if not text.strip() or text in _WORDS_FOR_NOTHING else text


def text_key(value: Any) -> str:
    """A text that identifies a text or a list of messages."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def numbered_cells(cells: Iterable[Any]) -> tuple[Ints, Objects]:
    """The number of each cell's text or chat messages, -1 where there is none, and the distinct ones; the last is None.

    Where a cell holds neither, a `ValueError` says why in their place.
    """
    others: dict[Hashable, Any] = {}

    def key(cell: Any) -> Hashable:
        if pd.api.types.is_scalar(cell) and pd.isna(cell):
            return None
        try:
            messages = as_messages(cell)
            # a text may look like messages that are written as JSON
            key: Hashable = "messages", text_key(messages)
            others[key] = messages
        except (ValueError, TypeError, RecursionError) as error:
            key = "fault", str(error)
            others[key] = ValueError(str(error))
        return key

    # most cells hold a text that another one has held
    numbers, keys = numbered(cell if isinstance(cell, str) else key(cell) for cell in cells)
    values = as_objects([*(others.get(key, key) for key in keys), None])
    half = ValueError("it holds half of a surrogate pair, which is no character")
    for i, value in enumerate(values):
        if isinstance(value, (str, list)) and not is_unicode(text_key(value)):
            values[i] = half
    numbers[pd.isna(values)[numbers]] = -1
    return numbers, values


def as_messages(cell: Any) -> list[dict[str, Any]]:
    """Chat messages as plain dicts whose contents are text.

    A message alone is a list of one. Keys without a value, which columnar files add, are left out; text parts of a
    content are joined.
    """
    if isinstance(cell, Mapping):
        cell = [cell]
    if not isinstance(cell, (list, tuple, np.ndarray)):
        raise ValueError(f"it is of type {type(cell).__name__}, not text")
    return [_message(message) for message in cell]


def _message(message: Any) -> dict[str, Any]:
    if isinstance(message, Mapping) and "from" in message:
        # as ShareGPT has it
        role = _ROLES.get(message["from"], message["from"])
        message = {"role": role, "content": message.get("value")}
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError("a chat message needs a role and a content")
    role, content = message["role"], message.get("content")
    if isinstance(content, (list, tuple, np.ndarray)):
        parts = [part if isinstance(part, Mapping) else {} for part in content]
        texts = [part["text"] for part in parts if part.get("type") == "text" and "text" in part]
        is_text = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
        content = "".join(texts) if is_text else None
    if content is None and message.get("tool_calls"):
        remedy = "which is what attributes read; write the call into its content"
        raise ValueError(f"the {role} message calls a tool and has no text, {remedy}")
    if not isinstance(content, str):
        raise ValueError(f"the content of the {role} message is not text")
    others = {key: value for key, value in message.items() if value is not None}
    return others | {"role": role, "content": content}
