"""The arrays that an audit computes on."""

from __future__ import annotations

import numpy as np
import pytest

from badpo.attributes import Length
from badpo.auditing.people import AuditOptions, Design, anchored_annotators, people_of
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError
from tests.auditing.planted import LONG, SHORT, votes


def judgments(rows: list[tuple[str, str, str, str]]) -> Judgments:
    """(comparison, annotator, winner, which side is longer) of each vote."""
    return Judgments.read(
        [
            {
                "comparison_id": c,
                "prompt": "Why?",
                "response_a": f"{LONG if longer == 'a' else SHORT} a{c}",
                "response_b": f"{LONG if longer == 'b' else SHORT} b{c}",
                "winner": winner,
                "annotator": who,
                "annotator_class": who[0],
            }
            for c, who, winner, longer in rows
        ],
        attributes=[Length()],
    )


def test_counts_and_rates_of_an_annotator():
    design = Design(
        judgments(
            [
                ("1", "x", "a", "a"),
                ("1", "y", "b", "a"),
                ("2", "x", "a", "b"),
                ("2", "y", "a", "b"),
                ("3", "x", "a", "-"),
                ("4", "z", "a", "-"),
            ]
        )
    )
    assert design.per_annotator(design.cross).ravel().tolist() == [2, 2, 0]
    assert design.per_annotator(design.informative).ravel().tolist() == [1, 1, 0]
    np.testing.assert_array_equal(design.raw_rate().ravel(), [0.5, 0.0, np.nan])
    assert design.n_votes.tolist() == [3, 2, 1]


def test_anchors_are_named_by_raw_id_by_pseudonym_or_by_class():
    frame, _ = votes(40, 6)
    design = Design(Judgments.read(frame, attributes=[Length()]))
    (name,) = pseudonyms(["w3"])
    for options in (AuditOptions(anchors=["w3"]), AuditOptions(anchors=[name])):
        assert design.annotators[anchored_annotators(design, options)].tolist() == [name]
    of_class = anchored_annotators(design, AuditOptions(anchor_class="staff"))
    assert set(design.classes[of_class]) == {"staff"}
    assert of_class.sum() == 3
    assert not anchored_annotators(design, AuditOptions()).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (AuditOptions(anchors=["someone@example.org"]), "cast no vote in this table"),
        (AuditOptions(anchor_class="stuff"), 'Did you mean "staff"?'),
    ],
)
def test_an_anchor_that_is_not_there(options, message):
    frame, _ = votes(20, 6)
    design = Design(Judgments.read(frame, attributes=[Length()]))
    with pytest.raises(ConfigError) as caught:
        anchored_annotators(design, options)
    assert message in str(caught.value)
    assert "@" not in str(caught.value)


def test_what_is_said_of_anchors():
    judgments = Judgments.read(votes(40, 6)[0], attributes=[Length()])
    design = Design(judgments)
    said = people_of(judgments, design, AuditOptions(anchor_class="staff")).checks["anchors"]
    assert (said["n"], said["class"], len(said["annotators"])) == (3, "staff", 3)
    staff = np.isin(design.annotator, np.flatnonzero(design.classes == "staff"))
    assert said["n_cross"] == {"length": int(design.cross[staff].sum())}
    assert people_of(judgments, design, AuditOptions()).checks["anchors"] is None
