"""What an audit may be asked for."""

from __future__ import annotations

import pytest

from badpo.auditing.people import Flag, Options
from badpo.data.problems import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(quality="conditonal"), 'Did you mean "conditional"?'),
        (Options(quality="fixed"), "name the column"),
        (Options(quality="fixed:"), "name the column"),
        (Options(quality="joint:score"), "name the column"),
        (Options(shrink="normale"), "shrink must be one of"),
        (Options(shrink="none"), "add the flag rule bh"),
        (Options(flag=Flag(rho=-0.1)), "rho is a size"),
        (Options(flag=Flag(rho=float("nan"))), "rho is a size"),
        (Options(flag=Flag(fdr=0)), "fdr is a share"),
        (Options(flag=Flag(fdr=1.0)), "fdr is a share"),
        (Options(flag=Flag(rule="benjamini")), "flag rule must be one of"),
        (Options(anchors="worker 7"), "write [id]"),
        (Options(anchors=("worker 7",), anchor_class="gold"), "not both"),
        (Options(min_informative=0), "1 or more"),
    ],
)
def test_what_is_refused_and_why(options, message):
    with pytest.raises(ConfigError) as caught:
        options.check()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(quality="fixed:score"),
        Options(shrink="none", flag=Flag(rule="bh")),
        Options(anchors=["a", "b"]),
        Options(anchor_class="gold", flag=Flag(rho=0)),
    ],
)
def test_what_is_taken(options):
    options.check()


def test_the_column_of_a_fixed_quality():
    assert Options(quality="fixed:score").quality_column == "score"
    assert Options(quality="joint").quality_column is None
    assert Options().quality_column is None
