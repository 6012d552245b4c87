"""Folders whose files may have been put there by somebody else: nothing in them leads out of them."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from badpo.data.problems import ConfigError


def require_enclosed(folder: Path) -> None:
    """Refuse a folder in which a symbolic link leads out of it.

    A run folder or a cache that came from another machine could otherwise have any file of this one read into a page,
    or taken for a policy. The folder itself may be a link, and one that is not there is enclosed.

    Raises
    ------
    ConfigError
        Naming the link.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "log.jsonl").symlink_to("/etc/hostname")
    >>> require_enclosed(folder)
    Traceback (most recent call last):
    badpo.data.problems.ConfigError: ...log.jsonl is a symbolic link that leads out of ...
    """
    top = folder.resolve()
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(here, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(top):
                raise ConfigError(
                    f"{path} is a symbolic link that leads out of {folder}; put the file or folder itself in its place"
                )


def leads_out(name: str) -> bool:
    """Whether a file's name, relative to a folder, is of something outside of that folder.

    Examples
    --------
    >>> leads_out("model/config.json"), leads_out("../key"), leads_out("/etc/hostname"), leads_out("a/../../b")
    (False, True, True, True)
    """
    path = PurePosixPath(name.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or ":" in path.parts[:1]
