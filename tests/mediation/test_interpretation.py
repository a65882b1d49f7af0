"""The stamp of an interpretation stands for its meaning, wherever it was made."""

from __future__ import annotations

import pickle

from rapport.mediation.interpretations.model import (
    FieldsInterpretation,
    FormatChoice,
    IdentityRule,
    ValueRule,
)


def test_a_usual_format_that_was_written_out_gives_the_same_stamp() -> None:
    short = FieldsInterpretation(
        name="badges",
        identity=IdentityRule(("tag",)),
        values=(ValueRule("x", ("dx",), "m"),),
    )
    written = "".join(["js", "on"])
    long = FieldsInterpretation(
        name="badges",
        identity=IdentityRule(("tag",)),
        values=(ValueRule("x", ("dx",), "m"),),
        format=FormatChoice(written, {}),
    )
    assert long.stamp() == short.stamp() == pickle.loads(pickle.dumps(short)).stamp()
