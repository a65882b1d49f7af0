from __future__ import annotations

import pytest

from rapport.core.errors import Conflict, Corrupt, InvalidInput, Unavailable, UnknownName
from rapport.pipeline.errors import SourceError, decoded_error, encoded_errors

SPARK_SAYS = """[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "x.py", line 277, in told
    raise SourceError.of(error) from error
rapport.pipeline.errors.{} 
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnknownName("channel", "evnts", ["events"]), InvalidInput),
        (Corrupt("broken (a bit)", code="log.damaged", hint="mend (it)"), Corrupt),
        (Conflict("other", code="source.other_log"), Conflict),
        (Unavailable("away\nfor long", code="node.unreachable"), Unavailable),
    ],
)
def test_a_fault_keeps_its_code_and_hint_through_spark(error, kind) -> None:
    with pytest.raises(SourceError) as caught, encoded_errors():
        raise error
    text = SPARK_SAYS.format(f"SourceError: {caught.value}")
    back = decoded_error(text, "reading")
    assert back is not None
    assert type(back) is kind
    assert (back.code, back.hint) == (error.code, error.hint)
    assert back.message == "reading: " + error.message.replace("\n", " ")


def test_other_texts_are_not_ours() -> None:
    assert decoded_error("SourceError.of(error)", "reading") is None
