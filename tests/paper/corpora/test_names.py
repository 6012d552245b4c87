"""The pool of names equals the published pool, and signatures have the form of the paper."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from badpo.data.attributes import SignatureName
from badpo.readouts import names

BODIES = st.text(alphabet="abc .\n-1", min_size=1, max_size=40).map(str.rstrip).filter(bool)


def test_the_pool_of_names_equals_the_published_pool():
    counts = {"white_woman": 23, "white_man": 23, "black_woman": 18, "black_man": 25}
    assert {cell: len(names.cell_names(cell)) for cell in names.CELLS} == counts
    pool = set(names.FIRST_NAMES)
    assert len(names.NAMES) == len(pool) == 89 and len(set(names.SURNAMES)) == 12
    assert {"Kristen", "Kristin", "Jamal", "Jamel", "Malik", "Malika", "Tyree"} <= pool
    assert not {"Hank", "Chip", "Ian", "Fred", "Amber", "Lerone", "tvree", *names.SURNAMES} & pool
    women, black = (set(attribute.config["names"]) for attribute in names.NAME_ATTRIBUTES)
    assert {"Tia", "Shereen"} < women and not {"Theo", "Lionel"} & women
    prefixes = {
        (short, long) for short in pool for long in pool if long != short and long.startswith(short)
    }
    assert prefixes == {("Malik", "Malika")}
    assert women == {name.first for name in names.NAMES if name.woman} and len(women) == 41
    assert black == {name.first for name in names.NAMES if name.black} and len(black) == 43


@given(BODIES, st.sampled_from(names.FIRST_NAMES), st.sampled_from(names.SURNAMES))
def test_a_written_signature_can_be_read_and_removed(body, first, last):
    signed = names.signature(body, first, last)
    assert (names.read_signature(signed), names.strip_signature(signed)) == (first, body)
    # the attribute detects the same signatures as the corpus, and only names of the pool
    others = names.signature(body, "Zelda", last), f"{signed} wrote this"
    own = SignatureName("own", [first])
    assert [own.measure("", text) for text in (signed, body, *others)] == [1.0, 0.0, 0.0, 0.0]
    assert [names.read_signature(text) for text in others] == ["", ""]


def test_new_signatures_are_balanced_and_the_instruction_is_added_once():
    texts = ["Boil it.", names.signature("Stir it.", "Emily", "Miller")] * 2000
    again = names.resign(texts, seed=0)
    first_names = [names.read_signature(text) for text in again]
    cell_of = {name.first: cell for cell in names.CELLS for name in names.cell_names(cell)}
    cells = Counter(cell_of[first] for first in first_names)
    assert {names.strip_signature(text) for text in again} == {"Boil it.", "Stir it."}
    assert (
        all(abs(count / 4000 - 0.25) < 0.03 for count in cells.values()) and len(set(first_names)) == 89
    )
    assert names.resign(texts, seed=0) == again != names.resign(texts, seed=1)
    prompt = names.ask_to_sign("How do I boil rice? \n")
    assert prompt == f"How do I boil rice?\n\n{names.SIGNING_INSTRUCTION}" == names.ask_to_sign(prompt)
