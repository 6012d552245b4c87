"""Texts of a large table: each distinct one once, in a private file that is mapped into memory."""

from __future__ import annotations

import builtins
import hashlib
import mmap
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pandas.api.extensions import ExtensionArray, ExtensionDtype

from badpo.data.attribute import plain_text
from badpo.data.numbering import numbered
from badpo.data.problems import ConfigError

_READ_AHEAD = 4_096
_PAGES_KEPT = 64 * 2**20  # bytes of mapped texts that may stay in memory after they were read


class TextStore(Sequence[str]):
    """Distinct texts by number.

    Parameters
    ----------
    texts : Arrow array of large strings
        A text becomes an object of Python's when it is asked for.
    mapped : mmap or None
        The mapped file that the bytes are in, if they are.

    Examples
    --------
    >>> store = TextStore(pa.array(["so", "no"], pa.large_string()))
    >>> len(store), store[1], list(store)
    (2, 'no', ['so', 'no'])
    """

    def __init__(self, texts: pa.LargeStringArray, mapped: mmap.mmap | None = None):
        self.texts = texts
        self._mapped = mapped

    def __reduce__(self) -> tuple[type[TextStore], tuple[pa.LargeStringArray]]:
        return TextStore, (self.texts,)  # another process gets the texts, not the mapping

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: Any) -> Any:
        return self.texts[int(number)].as_py()

    def __iter__(self) -> Iterator[str]:
        return self.each(np.arange(len(self.texts)))

    def each(self, numbers: NDArray[np.integer]) -> Iterator[str]:
        """The texts with these numbers one after the other, a few thousand of them in memory at a time."""
        seen = 0
        for start in range(0, len(numbers), _READ_AHEAD):
            some = self.texts.take(pa.array(numbers[start : start + _READ_AHEAD]))
            seen += some.nbytes
            if self._mapped is not None and seen > _PAGES_KEPT and hasattr(self._mapped, "madvise"):
                # the system keeps the file at hand anyway, and counts it to nobody's memory
                self._mapped.madvise(mmap.MADV_DONTNEED)
                seen = 0
            yield from some.to_pylist()


class TextWriter:
    """Takes texts in, numbers the distinct ones and keeps each of them once in a temporary file.

    The file belongs to this user alone, has no name in any folder, and goes with the process. Texts are told apart
    by 128 bits of BLAKE2b.

    Examples
    --------
    >>> writer = TextWriter()
    >>> writer.numbers(pa.array(["so", None, "no", "so"])).tolist()
    [0, -1, 1, 0]
    >>> list(writer.finish())
    ['so', 'no']
    """

    def __init__(self) -> None:
        self._file = nameless_file()
        self._ends = array("q", [0])
        self._known: dict[bytes, int] = {}

    def numbers(self, texts: pa.Array) -> NDArray[np.int64]:
        """Number of each text; -1 where there is none.

        Raises
        ------
        ConfigError
            When there is no room for the file.
        """
        encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
        distinct = encoded.dictionary.cast(pa.large_binary()).to_pylist()
        try:
            known = np.array([*map(self._number, distinct), -1], dtype=np.int64)
        except OSError as error:
            raise no_room(error) from error
        return known[encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)]

    def finish(self) -> TextStore:
        """The texts taken in so far, mapped; nothing can be added after that."""
        try:
            self._file.flush()
        except OSError as error:
            raise no_room(error) from error
        size = self._ends[-1]
        mapped = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ) if size else None
        self._file.close()
        self._known.clear()
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(mapped or b"")]
        texts = pa.Array.from_buffers(pa.large_string(), len(self._ends) - 1, buffers)
        return TextStore(texts, mapped)

    def _number(self, text: bytes) -> int:
        key = hashlib.blake2b(text, digest_size=16).digest()
        number = self._known.setdefault(key, len(self._known))
        if number == len(self._ends) - 1:
            self._file.write(text)
            self._ends.append(self._ends[-1] + len(text))
        return number


def nameless_file() -> IO[bytes]:
    """A temporary file of this user, without a name in any folder, that goes with the process."""
    return tempfile.TemporaryFile(prefix="badpo-")


def no_room(error: OSError) -> ConfigError:
    """What to say when the temporary file cannot be written."""
    return ConfigError(
        f"the texts of this table do not fit into {tempfile.gettempdir()} ({error.strerror}); make room there, or set "
        "TMPDIR to a folder with more"
    )


class TextDtype(ExtensionDtype):
    """The type of a column whose texts stand in a store."""

    name = "stored text"
    type = str
    na_value = None

    @classmethod
    def construct_array_type(cls) -> builtins.type[TextColumn]:
        """The array behind such a column."""
        return TextColumn


class TextColumn(ExtensionArray):
    """A column of a data frame that holds numbers of texts instead of texts.

    Reading a cell gives a plain str, or None; taking rows copies numbers only.

    Parameters
    ----------
    codes : int array
        Numbers in the store; -1 for a missing cell.
    store : TextStore

    Examples
    --------
    >>> store = TextStore(pa.array(["so", "no"], pa.large_string()))
    >>> column = pd.Series(TextColumn(np.array([1, -1, 0]), store))
    >>> column.tolist(), column[[2, 0]].tolist(), column.isna().tolist()
    (['no', None, 'so'], ['so', 'no'], [False, True, False])
    """

    def __init__(self, codes: NDArray[np.integer], store: TextStore):
        self.codes = np.asarray(codes)
        self.store = store

    @property
    def dtype(self) -> TextDtype:
        """Its type."""
        return TextDtype()

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers; the texts are not in memory."""
        return self.codes.nbytes

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, (int, np.integer)):
            code = self.codes[item]
            return None if code < 0 else self.store[code]
        item = pd.api.indexers.check_array_indexer(self, item)
        return type(self)(self.codes[item], self.store)

    def __iter__(self) -> Iterator[str | None]:
        present = self.store.each(self.codes[self.codes >= 0])
        return (None if code < 0 else next(present) for code in self.codes.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.object_]:
        distinct, place = np.unique(self.codes[self.codes >= 0], return_inverse=True)
        cells = np.full(len(self.codes), None, dtype=object)
        texts = np.empty(len(distinct), dtype=object)
        texts[:] = list(self.store.each(distinct))
        cells[self.codes >= 0] = texts[place]
        return cells

    def __arrow_array__(self, type: Any = None) -> pa.Array:
        return self.store.texts.take(pa.array(self.codes, mask=self.codes < 0))

    def __eq__(self, other: Any) -> NDArray[np.bool_]:  # type: ignore[override]
        if isinstance(other, (pd.Series, pd.Index, pd.DataFrame)):
            return NotImplemented
        return np.asarray(self) == (
            np.asarray(other, dtype=object) if isinstance(other, TextColumn) else other
        )

    def isna(self) -> NDArray[np.bool_]:
        """Where a cell is missing."""
        return self.codes < 0

    def copy(self) -> TextColumn:
        """The same column with numbers of its own."""
        return type(self)(self.codes.copy(), self.store)

    def take(self, indices: Any, *, allow_fill: bool = False, fill_value: Any = None) -> TextColumn:
        """Some rows, as pandas asks for them."""
        codes = pd.api.extensions.take(
            self.codes, np.asarray(indices, dtype=np.intp), fill_value=-1, allow_fill=allow_fill
        )
        return type(self)(codes, self.store)

    def factorize(self, use_na_sentinel: bool = True) -> tuple[NDArray[np.intp], TextColumn]:
        """Numbers by first appearance, without looking at a text."""
        codes, distinct = pd.factorize(np.where(self.codes < 0, -1, self.codes), use_na_sentinel=False)
        if (self.codes < 0).any() and use_na_sentinel:
            missing = int(np.flatnonzero(distinct < 0)[0])
            codes = np.where(codes == missing, -1, codes - (codes > missing))
            distinct = distinct[distinct >= 0]
        return codes, type(self)(distinct, self.store)

    def unique(self) -> TextColumn:
        """The distinct cells by first appearance."""
        return type(self)(pd.unique(self.codes), self.store)

    @classmethod
    def _from_sequence(cls, scalars: Any, *, dtype: Any = None, copy: bool = False) -> TextColumn:
        writer = TextWriter()
        codes = writer.numbers(
            pa.array([None if pd.isna(cell) else cell for cell in scalars], pa.large_string())
        )
        return cls(codes, writer.finish())

    @classmethod
    def _from_factorized(cls, values: Any, original: TextColumn) -> TextColumn:
        return cls._from_sequence(values)

    @classmethod
    def _concat_same_type(cls, to_concat: Iterable[TextColumn]) -> TextColumn:
        columns = list(to_concat)
        if all(column.store is columns[0].store for column in columns):
            return cls(np.concatenate([column.codes for column in columns]), columns[0].store)
        return cls._from_sequence([cell for column in columns for cell in column])


@dataclass(frozen=True)
class NumberedTexts:
    """Which plain text stands in which cell of some columns.

    Attributes
    ----------
    numbers : int array of shape (n_columns, n_rows)
        Equal texts have equal numbers, also in different columns.
    texts : TextStore or object array
    """

    numbers: NDArray[np.integer]
    texts: TextStore | NDArray[np.object_]

    def each(self, numbers: NDArray[np.integer]) -> Iterator[str]:
        """The texts with these numbers one after the other."""
        return self.texts.each(numbers) if isinstance(self.texts, TextStore) else iter(self.texts[numbers])


def numbered_texts(table: pd.DataFrame, columns: Sequence[str]) -> NumberedTexts:
    """The plain texts of some columns, numbered without looking at those that stand in one store.

    Examples
    --------
    >>> table = pd.DataFrame({"a": ["so", "no"], "b": ["no", "why"]})
    >>> found = numbered_texts(table, ("a", "b"))
    >>> found.numbers.tolist(), list(found.each(found.numbers[1]))
    ([[0, 1], [1, 2]], ['no', 'why'])
    """
    cells = [table[name].array for name in columns]
    stored = [values for values in cells if isinstance(values, TextColumn)]
    if len(stored) == len(cells) and all(values.store is stored[0].store for values in stored):
        return NumberedTexts(np.stack([values.codes for values in stored]), stored[0].store)
    numbers, distinct = numbered(plain_text(text) for values in cells for text in values)
    return NumberedTexts(numbers.reshape(len(columns), -1), distinct)
