"""Keyed pseudonyms for annotators.

A hash without a key would not protect a worker id, because anybody could hash every possible id. A pseudonym is
therefore an HMAC with a secret key, and the key stays on the machine that imports the data. The same key always
produces the same pseudonyms, so tables imported with the same key can be joined by annotator.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import re
import secrets
import shlex
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from badpo.data.problems import ConfigError, counted
from badpo.data.vocabulary import normalize_text

KEY_VARIABLE = "BADPO_PSEUDONYM_KEY"
SHORTEST_KEY = 16  # smallest number of characters in a pseudonym key
FEWEST_CHARACTERS = 6  # smallest number of different characters in a pseudonym key
MOST_WORDS = 8  # badpo searches texts only for ids of at most this many words
EVERYONE = "everyone"  # the only annotator of a table without an annotator column
FEWEST_ANNOTATORS = 5  # smallest number of people behind a published figure
# MOST_OF_ONE is the largest share of the votes behind a published figure that one person may have cast.
# MOST_OF_FOUR is the corresponding share for the FEWEST_ANNOTATORS - 1 people with the most votes.
MOST_OF_ONE, MOST_OF_FOUR = 0.5, 0.9
# Annotators of the class "model" are not people, so badpo writes their names instead of pseudonyms.
MODEL_CLASS = "model"
_SIGNS = re.compile(r"[\W_]+")
# leading zeros of a number, and the ".0" that pandas appends to integers in a column with missing values
_ZEROS = re.compile(r"\b0+(?=\d)|(?<=\d)\.0+$")
# A short id such as "7", "p12" or "bob" may mean something else in another column. Longer ids are always recognized.
_SHORT = re.compile(r"[^\W\d]?\d{0,8}|[^\W\d]{0,3}")
_PSEUDONYM = re.compile(r"ann_([a-z2-7]{10})([a-z2-7]{4})")
# an e-mail address has at most 320 characters; without this limit, matching a very long id would take too long
EMAIL = re.compile(r"(?!\S{321})[^@\s]+@[^@\s]+\.[^@\s]+")
_DIRECT_IDENTIFIERS = {
    "e-mail addresses": EMAIL,
    "Mechanical Turk worker ids": re.compile(r"A[0-9A-Z]{11,13}"),
    "Prolific ids": re.compile(r"[0-9a-f]{24}"),
}


def pseudonym(raw_id: str, key: bytes) -> str:
    """Return the pseudonym of an annotator.

    A pseudonym consists of ``ann_``, ten base32 characters of HMAC-SHA256(key, id), and four check characters. An id
    that is already a pseudonym is returned unchanged. Ten base32 characters have 50 bits, so the probability that two
    of 100,000 annotators get the same pseudonym is 4e-6. If two annotators get the same pseudonym, `pseudonyms` raises
    an error.

    Examples
    --------
    >>> pseudonym("worker 7", b"a key of sixteen bytes or more")
    'ann_wdfyjw2xn4g5pc'
    >>> pseudonym("ann_wdfyjw2xn4g5pc", b"any other key in the world")
    'ann_wdfyjw2xn4g5pc'
    """
    if is_pseudonym(raw_id):
        return raw_id
    raw = raw_id.encode("utf-8", "surrogatepass")
    name = _base32(hmac.new(key, raw, hashlib.sha256).digest())[:10]
    return f"ann_{name}{_check(name)}"


def is_pseudonym(text: str) -> bool:
    """Return whether a string is a pseudonym.

    The function verifies the check characters of a pseudonym. A string that only looks like a pseudonym passes with a
    probability of about one in a million.
    """
    found = _PSEUDONYM.fullmatch(text)
    return found is not None and _check(found[1]) == found[2]


def pseudonyms(raw_ids: Sequence[str]) -> list[str]:
    """Compute the pseudonyms of distinct ids with this machine's pseudonym key.

    If all ids are already pseudonyms, no pseudonym key is needed.
    """
    if all(is_pseudonym(raw_id) for raw_id in raw_ids):
        return list(raw_ids)
    key = pseudonym_key()
    named = [pseudonym(raw_id, key) for raw_id in raw_ids]
    if len(set(named)) < len(named):
        raise ConfigError(
            f"two annotators get the same pseudonym with the current key; set {KEY_VARIABLE} to another key"
        )
    return named


def model_names(raw_ids: Iterable[str]) -> list[str]:
    """Return the names of annotators that are models: the id, or a pseudonym if the id looks like a person's id."""
    return [pseudonyms([name])[0] if direct_identifiers([name]) else name for name in raw_ids]


def pseudonym_key() -> bytes:
    """Return the pseudonym key from ``BADPO_PSEUDONYM_KEY`` or from a file in the user's configuration folder.

    If neither the environment variable nor the file exists, the function creates the file with a random key.
    """
    if known_key() is None:
        path = _key_file()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder, path.name)
                made.touch(0o600)
                made.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
                # a hard link makes the complete key file appear at once; if another process was faster, its file stays
                with contextlib.suppress(FileExistsError):
                    os.link(made, path)
        except OSError as error:
            raise _unusable(path, error) from error
    key = known_key()
    assert key is not None
    return key


def known_key() -> bytes | None:
    """Return the pseudonym key, or None if there is no key.

    Raise `ConfigError` if the key is easy to guess or if other users can read the key file. Unlike `pseudonym_key`,
    this function never creates a key, because pseudonyms made with a new key would differ from the pseudonyms in
    existing tables.
    """
    if told := os.environ.get(KEY_VARIABLE):
        return _hard_to_guess(told.encode(), KEY_VARIABLE)
    path = _key_file()
    try:
        if not path.exists():
            return None
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(
                f"{path} can be read by other users; run: chmod 600 {shlex.quote(str(path))}"
            )
        return _hard_to_guess(path.read_bytes().strip(), str(path))
    except OSError as error:
        raise _unusable(path, error) from error


def folded_id(raw_id: str) -> str:
    """Normalize an id to compare its spellings: lower case, without surrounding spaces or leading zeros."""
    form = raw_id.strip().casefold()
    return form.lstrip("0") or "0" if form.isdigit() else form


def keyed_digest(content: bytes = b"") -> hmac.HMAC:
    """Return an HMAC-SHA256 object with this machine's pseudonym key, for digests of votes.

    Without the pseudonym key, nobody can check a guess about the votes against the digest.
    """
    return hmac.new(pseudonym_key(), content, hashlib.sha256)


def key_name() -> str:
    """Return a short code that identifies the pseudonym key but does not reveal it."""
    return keyed_digest(b"the key itself").hexdigest()[:12]


def direct_identifiers(raw_ids: Sequence[str]) -> list[str]:
    """Return the kinds of direct identifiers among raw annotator ids, such as "e-mail addresses"."""
    return [
        kind
        for kind, form in _DIRECT_IDENTIFIERS.items()
        if any(form.fullmatch(raw_id) for raw_id in raw_ids)
    ]


def holding_ids(cells: Sequence[str | None], owners: Sequence[str | None], inside: bool) -> list[bool]:
    """Return for each cell whether it is a raw id or, with ``inside=True``, contains a raw id as a separate word.

    ``owners`` contains the raw id of each row's annotator. Short ids are recognized only if more than 90 % of the cells
    hold the id of their own row's annotator.

    Examples
    --------
    >>> holding_ids(["alice-3", "p7", "7"], ["7", "7", "Alice"], inside=True)
    [True, False, False]
    >>> holding_ids(["p12", "bob"], ["p12", "bob"], inside=False), holding_ids(["p12"] * 2, ["p12", "p13"], inside=True)
    ([True, True], [False, False])
    """
    words = {cell: _words(cell or "") for cell in {*cells, *owners}}
    rows = [(words[own], words[cell]) for own, cell in zip(owners, cells, strict=True) if words[own]]
    n_own = sum(f" {own} " in f" {text} " if inside else own == text for own, text in rows)
    ids = {own for own, _ in rows}
    are_own = len(ids) > 1 and n_own > 0.9 * len(rows)
    told = {own for own in ids if are_own or not _SHORT.fullmatch(own.replace(" ", ""))}
    # search texts for the first word of each id, but skip ids of more than MOST_WORDS words
    starts = {words.partition(" ")[0] for words in told if inside and words.count(" ") < MOST_WORDS}

    def holds(text: str) -> bool:
        words = text.split() if starts else []
        at = [i for i, word in enumerate(words) if word in starts]
        parts = (" ".join(words[i : i + n]) for i in at for n in range(1, MOST_WORDS + 1))
        return text in told or not told.isdisjoint(parts)

    held = {cell for cell in {*cells} if holds(words[cell])}
    return [cell in held for cell in cells]


def hidden_ids(
    cells: Sequence[str | None], owners: Sequence[str | None], inside: bool
) -> dict[str, str]:
    """Map each cell in which `holding_ids` finds a raw id to the pseudonym that replaces the cell."""
    holding = dict(zip(cells, holding_ids(cells, owners, inside), strict=True))
    held = [cell for cell in holding if cell and holding[cell]]
    return dict(zip(held, pseudonyms(held), strict=True))


def _words(text: str) -> str:
    """Normalize a text to words in lower case and Unicode form NFKC, separated by spaces and without leading zeros."""
    return _SIGNS.sub(" ", _ZEROS.sub("", normalize_text(text, "NFKC").casefold())).strip()


def is_about_few(n_annotators: int, n_people: int) -> bool:
    """Return whether so few people contribute to a figure that it would reveal too much about each of them.

    If all annotators are models, the result is False.
    """
    only_models = n_annotators > 0 == n_people
    return n_people < FEWEST_ANNOTATORS and not only_models


def is_about_single_people(annotators: Collection[str]) -> bool:
    """Return whether a mean over ``annotators`` would reveal too much about individual annotators.

    If there are fewer than ``FEWEST_ANNOTATORS`` annotators, the result is True. The annotator ``EVERYONE`` is an
    exception, because this name stands for all annotators of a table without an annotator column.
    """
    return set(annotators) != {EVERYONE} and len(annotators) < FEWEST_ANNOTATORS


def is_dominated(n_votes: Iterable[float]) -> bool:
    """Return whether one to four people cast so many of the votes behind a figure that it reveals their votes.

    ``n_votes`` contains the number of votes of each person. Models are excluded, because their figures are published
    and could be subtracted from the figure of all annotators.

    Examples
    --------
    >>> is_dominated([40, 10, 10, 10, 10]), is_dominated([41, 10, 10, 10, 10]), is_dominated([10] * 4)
    (False, True, True)
    """
    votes = sorted(n_votes, reverse=True)
    n, most = sum(votes), sum(votes[: FEWEST_ANNOTATORS - 1])
    return bool(n and (votes[0] > MOST_OF_ONE * n or most > MOST_OF_FOUR * n))


def _check(name: str) -> str:
    """Return the four check characters of a pseudonym, which can be computed without the pseudonym key."""
    return _base32(hashlib.sha256(b"badpo pseudonym " + name.encode()).digest())[:4]


def _base32(digest: bytes) -> str:
    return base64.b32encode(digest).decode("ascii").lower()


def withheld_classes(sizes: Mapping[str, int], n_others: int = 0) -> set[str]:
    """Return the classes of annotators whose figures must not be published.

    A class with fewer than ``FEWEST_ANNOTATORS`` people is withheld. Subtracting the published figures of classes from
    the figure of all people gives the figure of the remaining people: those in withheld classes and the ``n_others``
    people without a class. If one to four people would remain, further classes are withheld, smallest first.

    Examples
    --------
    >>> sorted(withheld_classes({"staff": 2, "crowd": 40, "experts": 9}))
    ['experts', 'staff']
    >>> withheld_classes({"crowd": 40, "experts": 9})
    set()
    """
    withheld: set[str] = set()
    left = n_others
    for name in sorted(sizes, key=lambda name: sizes[name]):
        if sizes[name] >= FEWEST_ANNOTATORS and (left == 0 or left >= FEWEST_ANNOTATORS):
            break
        withheld.add(name)
        left += sizes[name]
    return withheld


class Rounded(int):
    """A count rounded to the nearest ten; reports mark it as rounded."""


def rounded_count(n: int) -> Rounded | None:
    """Round a count to the nearest ten for publication; return None for counts below ``FEWEST_ANNOTATORS``.

    Rounded counts from before and after the removal of one person's votes do not reveal the person.

    Examples
    --------
    >>> rounded_count(65_344), rounded_count(5), rounded_count(4), rounded_count(0)
    (65340, 10, None, None)
    """
    return None if n < FEWEST_ANNOTATORS else Rounded((n + 5) // 10 * 10)


def _key_file() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "badpo" / "pseudonym.key"


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the pseudonym key {path} cannot be used ({error.strerror}); set {KEY_VARIABLE} to a secret text of "
        f"{SHORTEST_KEY} characters or more, or XDG_CONFIG_HOME to a writable folder"
    )


def _hard_to_guess(key: bytes, source: str) -> bytes:
    # a dictionary attack finds any key that is a single word in lower case, in upper case or capitalized
    is_word = key.isalpha() and (key[1:].islower() or key.isupper())
    if len(key) < SHORTEST_KEY or len(set(key)) < FEWEST_CHARACTERS or is_word:
        raise ConfigError(
            f"the pseudonym key in {source} has {counted(len(key), 'character')}, {len(set(key))} of them different"
            f"{', and is one word' * is_word}, so ids can be guessed; create a key of {SHORTEST_KEY} or more "
            'characters, for example with python -c "import secrets; print(secrets.token_hex(32))"'
        )
    return key
