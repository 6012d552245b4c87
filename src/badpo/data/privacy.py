"""Keyed pseudonyms for annotators.

An unkeyed hash of a worker id can be undone by hashing every possible id, so the pseudonym is an HMAC with a secret
key that stays on the machine that imports. The same key gives the same pseudonyms, so tables stay joinable.
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
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from badpo.data.problems import ConfigError, counted

KEY_VARIABLE = "BADPO_PSEUDONYM_KEY"
SHORTEST_KEY = 16
FEWEST_CHARACTERS = 6
MOST_WORDS = 8
EVERYONE = "everyone"  # who casts all votes of a table that does not say whose they are
FEWEST_ANNOTATORS = 5
# Largest shares of a figure's votes that one person, and that FEWEST_ANNOTATORS - 1 people together, may have cast.
MOST_OF_ONE, MOST_OF_FOUR = 0.5, 0.9
# Annotators of this class are no people: they are named.
MODEL_CLASS = "model"
_SIGNS = re.compile(r"[\W_]+")
# zeros before a number, and behind it where a missing value made its column one of fractions
_ZEROS = re.compile(r"\b0+(?=\d)|(?<=\d)\.0+$")
# Ids such as "7", "p12" and "bob" are something else elsewhere; any other is told wherever it stands.
_SHORT = re.compile(r"[^\W\d]?\d{0,8}|[^\W\d]{0,3}")
_PSEUDONYM = re.compile(r"ann_([a-z2-7]{10})([a-z2-7]{4})")
# no address is longer; an id may be a megabyte of dots behind an @
EMAIL = re.compile(r"(?!\S{321})[^@\s]+@[^@\s]+\.[^@\s]+")
_DIRECT_IDENTIFIERS = {
    "e-mail addresses": EMAIL,
    "Mechanical Turk worker ids": re.compile(r"A[0-9A-Z]{11,13}"),
    "Prolific ids": re.compile(r"[0-9a-f]{24}"),
}


def pseudonym(raw_id: str, key: bytes) -> str:
    """Pseudonym of an annotator: ``ann_``, ten base32 characters of HMAC-SHA256(key, id), and four that check them.

    An id that is a pseudonym already is returned as it is. Fifty bits: two of 100,000 annotators collide with
    probability 4e-6, and `pseudonyms` refuses that.

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
    """Whether a text is a pseudonym: of ids that merely have its form, one in a million passes the check."""
    found = _PSEUDONYM.fullmatch(text)
    return found is not None and _check(found[1]) == found[2]


def pseudonyms(raw_ids: Sequence[str]) -> list[str]:
    """Pseudonyms of distinct ids, in their order, with this machine's key, which pseudonyms among them do not need."""
    if all(is_pseudonym(raw_id) for raw_id in raw_ids):
        return list(raw_ids)
    key = pseudonym_key()
    named = [pseudonym(raw_id, key) for raw_id in raw_ids]
    if len(set(named)) < len(named):
        raise ConfigError(
            f"two annotators get the same pseudonym under this key; set another {KEY_VARIABLE}"
        )
    return named


def model_names(raw_ids: Iterable[str]) -> list[str]:
    """What models that vote are called: their ids, and a pseudonym where an id looks like that of a person."""
    return [pseudonyms([name])[0] if direct_identifiers([name]) else name for name in raw_ids]


def pseudonym_key() -> bytes:
    """The secret key: ``BADPO_PSEUDONYM_KEY``, or a file in the user's configuration folder made on first use."""
    if known_key() is None:
        path = _key_file()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder, path.name)
                made.touch(0o600)
                made.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
                # it appears whole or not at all, and the first of two writers wins
                with contextlib.suppress(FileExistsError):
                    os.link(made, path)
        except OSError as error:
            raise _unusable(path, error) from error
    key = known_key()
    assert key is not None
    return key


def known_key() -> bytes | None:
    """The secret key where there is one; a `ConfigError` where it can be guessed, or read by other users.

    A key that is made now gives other pseudonyms than an older one did, so that nobody is found by it.
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
    """An id without what people write now in one way, now in another: case, spaces around it, leading zeros."""
    form = raw_id.strip().casefold()
    return form.lstrip("0") or "0" if form.isdigit() else form


def keyed_digest(content: bytes = b"") -> hmac.HMAC:
    """HMAC-SHA256 with this machine's key, for what is made of votes: nobody without the key finds them by trying."""
    return hmac.new(pseudonym_key(), content, hashlib.sha256)


def key_name() -> str:
    """What tells one pseudonym key from another, and gives neither away."""
    return keyed_digest(b"the key itself").hexdigest()[:12]


def direct_identifiers(raw_ids: Sequence[str]) -> list[str]:
    """Kinds of directly identifying ids among raw annotator ids, in words."""
    return [
        kind
        for kind, form in _DIRECT_IDENTIFIERS.items()
        if any(form.fullmatch(raw_id) for raw_id in raw_ids)
    ]


def holding_ids(cells: Sequence[str | None], owners: Sequence[str | None], inside: bool) -> list[bool]:
    """Which cells are a raw id, or with ``inside`` hold one between signs; ``owners`` are the ids of the rows.

    Short ids count where nearly all cells hold that of their own row.

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
    # by their first words; a longer one is no name
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
    """The pseudonym that stands in place of each cell that is or holds a raw id, see `holding_ids`."""
    holding = dict(zip(cells, holding_ids(cells, owners, inside), strict=True))
    held = [cell for cell in holding if cell and holding[cell]]
    return dict(zip(held, pseudonyms(held), strict=True))


def _words(text: str) -> str:
    """A text in small letters of one spelling, with one space in place of any signs between its words."""
    return _SIGNS.sub(" ", _ZEROS.sub("", unicodedata.normalize("NFKC", text).casefold())).strip()


def is_about_few(n_annotators: int, n_people: int) -> bool:
    """Whether so few people stand behind a figure that it is about single ones; it is not where all are models."""
    only_models = n_annotators > 0 == n_people
    return n_people < FEWEST_ANNOTATORS and not only_models


def is_about_single_people(annotators: Collection[str]) -> bool:
    """Whether a mean over these annotators tells of single ones, so that it is not for others to see.

    It does below ``FEWEST_ANNOTATORS``. Votes of a table that does not say whose they are, are nobody's.
    """
    return set(annotators) != {EVERYONE} and len(annotators) < FEWEST_ANNOTATORS


def is_dominated(n_votes: Iterable[float]) -> bool:
    """Whether one to four people cast so many of a figure's votes that the figure is theirs; of votes by person.

    Votes of models are not among them: the figures of models are published, and can be subtracted.

    Examples
    --------
    >>> is_dominated([40, 10, 10, 10, 10]), is_dominated([41, 10, 10, 10, 10]), is_dominated([10] * 4)
    (False, True, True)
    """
    votes = sorted(n_votes, reverse=True)
    n, most = sum(votes), sum(votes[: FEWEST_ANNOTATORS - 1])
    return bool(n and (votes[0] > MOST_OF_ONE * n or most > MOST_OF_FOUR * n))


def _check(name: str) -> str:
    """Four characters that a name has without any key."""
    return _base32(hashlib.sha256(b"badpo pseudonym " + name.encode()).digest())[:4]


def _base32(digest: bytes) -> str:
    return base64.b32encode(digest).decode("ascii").lower()


def withheld_classes(sizes: Mapping[str, int], n_others: int = 0) -> set[str]:
    """Classes whose figures others may not see: those of fewer than five people, and what would let them be computed.

    Whoever has the figures of all and of some classes can compute that of the remaining people together, those
    without a class (``n_others``) among them. So larger classes are withheld too, the smallest first, until those who
    remain are nobody or ``FEWEST_ANNOTATORS``.

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
    """A count to the nearest ten, which is told as such."""


def rounded_count(n: int) -> Rounded | None:
    """A count as others may see it: to the nearest ten, and None below ``FEWEST_ANNOTATORS``, which may be none.

    Two tables that differ by one person then differ by no count, or by one that does not say whose votes went.

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
        f"{SHORTEST_KEY} characters or more, or XDG_CONFIG_HOME to a folder that can be written"
    )


def _hard_to_guess(key: bytes, source: str) -> bytes:
    # a dictionary has it, also as a name is written
    is_word = key.isalpha() and (key[1:].islower() or key.isupper())
    if len(key) < SHORTEST_KEY or len(set(key)) < FEWEST_CHARACTERS or is_word:
        raise ConfigError(
            f"the pseudonym key in {source} has {counted(len(key), 'character')}, {len(set(key))} of them different"
            f"{', and is one word' * is_word}, so that ids can be guessed; make one of {SHORTEST_KEY} or more, such as "
            'python -c "import secrets; print(secrets.token_hex(32))"'
        )
    return key
