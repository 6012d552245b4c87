import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from badpo.data.privacy import (
    is_about_single_people,
    is_pseudonym,
    pseudonym,
    pseudonym_key,
    pseudonyms,
    withheld_classes,
)
from badpo.data.problems import ConfigError

KEY = b"a key of sixteen bytes or more"


@pytest.mark.parametrize(
    "raw",
    ["", "ann_short", "ANN_ABCDEFGHIJ", "ann_abcdefghi1", "ann_abcdefghijc2qu "]
    + ["ann_johnsmitha", "ann_maximilianjohn", "ann_abcdefghijc2qv"],
)
def test_what_only_looks_like_a_pseudonym_is_replaced(raw):
    assert not is_pseudonym(raw)
    assert is_pseudonym(pseudonym(raw, KEY))


@pytest.fixture
def key_file(tmp_path, monkeypatch) -> Path:
    """Where the key will stand in the user's configuration folder, in which there is none yet."""
    monkeypatch.delenv("BADPO_PSEUDONYM_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "badpo" / "pseudonym.key"


def test_key_file_is_made_once_and_only_for_its_owner(key_file):
    assert pseudonyms(["ann_abcdefghijc2qu"]) == ["ann_abcdefghijc2qu"]
    assert not key_file.parent.exists()
    before = os.umask(0)
    first = pseudonym_key()
    os.umask(before)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (key_file, key_file.parent)] == [0o600, 0o700]
    assert len(first) == 64 and pseudonym_key() == first
    assert list(key_file.parent.iterdir()) == [key_file]


def test_two_first_uses_at_once_agree_on_one_key(key_file):
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: pseudonym_key(), range(16)))) == 1


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("short", "5 characters"),
        ("a" * 16, "1 of them"),
        ("Uncharacteristically", "is one word"),
    ],
)
def test_a_key_that_can_be_guessed_is_refused(monkeypatch, key, told):
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", key)
    with pytest.raises(ConfigError, match=told):
        pseudonym_key()


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660])
def test_key_that_others_can_read_is_refused(key_file, mode):
    pseudonym_key()
    key_file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        pseudonym_key()


def test_key_that_cannot_be_written_says_what_to_do(key_file):
    key_file.parent.write_text("not a folder")
    with pytest.raises(ConfigError, match="set BADPO_PSEUDONYM_KEY"):
        pseudonym_key()


def test_home_is_used_without_a_configuration_folder(key_file, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    pseudonym_key()
    assert os.path.exists(tmp_path / ".config" / "badpo" / "pseudonym.key")


@pytest.mark.parametrize(
    ("sizes", "n_others", "shown"),
    [
        ((4, 40), 0, ()),  # the difference of the larger one from all would give the smaller one
        ((4, 9, 40), 0, (40,)),
        ((2, 2, 9, 40), 0, (40,)),  # four people together are too few
        ((4, 4, 9, 40), 0, (9, 40)),
        ((0, 9, 40), 0, (9, 40)),  # nobody is nobody
        ((5, 40), 0, (5, 40)),
        ((5, 40), 2, (40,)),  # so are two people without a class
        ((4, 40), 1, (40,)),
    ],
)
def test_a_small_class_cannot_be_computed_from_the_others(sizes, n_others, shown):
    classes = {str(i): n for i, n in enumerate(sizes)}
    withheld = withheld_classes(classes, n_others)
    assert tuple(n for name, n in classes.items() if name not in withheld) == shown


@pytest.mark.parametrize(
    ("annotators", "told"),
    [(["everyone"], False), (["a", "b", "c", "d"], True), (["a", "b", "c", "d", "e"], False)],
)
def test_a_mean_over_few_people_is_about_single_ones(annotators, told):
    assert is_about_single_people(annotators) == told
