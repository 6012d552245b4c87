"""Token ids of many texts: one after the other in a private file that is mapped into memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from badpo.data.stored_texts import nameless_file, no_room


class TokenRows(Sequence[np.ndarray]):
    """Rows of token ids of unequal length.

    Parameters
    ----------
    tokens : int64 array
        Of all rows, one after the other; may be mapped.
    starts, ends : int arrays of shape (n_rows,)
        Where each row stands in ``tokens``.

    Examples
    --------
    >>> rows = TokenRows(np.array([5, 6, 7]), np.array([0, 2]), np.array([2, 3]))
    >>> [row.tolist() for row in rows], rows.take(np.array([1]))[0].tolist()
    ([[5, 6], [7]], [7])
    """

    def __init__(self, tokens: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]):
        self.tokens, self.starts, self.ends = tokens, starts, ends

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: Any) -> Any:
        return self.tokens[self.starts[row] : self.ends[row]]

    def take(self, rows: NDArray[np.integer]) -> TokenRows:
        """Some rows; the tokens are shared."""
        return TokenRows(self.tokens, self.starts[rows], self.ends[rows])


class TokenWriter:
    """Takes rows of token ids in and keeps them in a temporary file of this user, without a name in any folder.

    Examples
    --------
    >>> writer = TokenWriter()
    >>> writer.add([5, 6])
    >>> writer.add([])
    >>> [row.tolist() for row in writer.finish()]
    [[5, 6], []]
    """

    def __init__(self) -> None:
        self._file = nameless_file()
        self._ends = array("q", [0])

    def add(self, ids: Sequence[int]) -> None:
        """Take in one row.

        Raises
        ------
        ConfigError
            When there is no room for the file.
        """
        try:
            self._file.write(np.asarray(ids, dtype=np.int64).tobytes())
        except OSError as error:
            raise no_room(error) from error
        self._ends.append(self._ends[-1] + len(ids))

    def finish(self) -> TokenRows:
        """The rows taken in, mapped; nothing can be added after that."""
        try:
            self._file.flush()
        except OSError as error:
            raise no_room(error) from error
        ends = np.frombuffer(self._ends, dtype=np.int64)
        # a plain array over the mapping: a slice of it is made in a fraction of the time
        mapped = np.asarray(np.memmap(self._file, np.int64, "r")) if ends[-1] else np.zeros(0, dtype=np.int64)
        self._file.close()
        return TokenRows(mapped, ends[:-1], ends[1:])
