import subprocess

import pytest

from bench import mutants

CODE = '''
def larger(a, b):
    """The larger of two numbers, 1 < 2."""
    if a > b:
        return a
    return b


class Box:
    def fill(self, n):
        if n < 0:
            raise ValueError(f"{n + 1}")
        self.n = n + 1
'''
TESTS = """
from toy.boxes import Box, larger


def test_larger():
    assert larger(1, 2) == 2


def test_box():
    box = Box()
    box.fill(1)
    assert box.n == 2
"""


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "project"
    for name, text in {"src/toy/boxes.py": CODE, "tests/test_toy.py": TESTS}.items():
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text(text)
    (tree / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tree, check=True)
    return tree


def test_a_mutant_follows_its_code(tree):
    mutant = {"function": "larger", "old": "if a > b:", "new": "if a < b:"}
    moved = tree / "src" / "toy" / "sizes.py"
    (tree / "src" / "toy" / "boxes.py").rename(moved)
    moved.write_text("ONE = 1\n" + CODE.replace("a > b", "a  >  b"))
    (place,) = mutants.find(mutant, mutants.functions(tree / "src"))
    assert place.file == moved and place.rows == range(5, 6)
    lost = {"function": "larger", "old": "if a > 2 * b:", "new": "pass"}
    explained = lost | {"gone": "there is no double"}
    there, missing = mutants.chosen([lost, explained, mutant], mutants.functions(tree / "src"))
    assert (there, missing) == ([mutant], [lost])


@pytest.mark.slow
def test_mistakes_that_tests_notice_and_that_they_do_not(tree, tmp_path):
    pytest.importorskip("coverage")
    folder = tmp_path / "mutants"
    folder.mkdir()
    mutants.cover(tree, folder)
    planted = [
        {"function": "larger", "old": "if a > b:", "new": "if a < b:"},
        {"function": "larger", "old": "if a > b:", "new": "if a >= b:"},
        {"function": "Box.fill", "old": "self.n = n + 1", "new": "self.n = n - 1"},
        {"function": "larger", "old": "return a", "new": "return b"},
    ]
    found = mutants.plant(folder, planted)
    assert [one["outcome"] for one in found] == ["killed", "survived", "killed", "survived"]
    assert [one["of"] for one in found] == [1, 1, 1, 0]
    assert (folder / "tree" / "src" / "toy" / "boxes.py").read_text() == CODE
