import pytest

from rapport.channel.access.identities import EVERYTHING, NOBODY, Grant, Rights
from rapport.core.errors import NotAllowed

RIGHTS = Rights(
    {
        "gateway": Grant(
            publish=("raw.*",), subscribe=("detections", "raw.gate?"), take=("jobs.*",)
        ),
        "all": Grant(publish=("*", "interpretations"), subscribe=("*",)),
        "node": EVERYTHING,
    }
)


@pytest.mark.parametrize(
    ("identity", "right", "channel", "allowed"),
    [
        ("gateway", "publish", "raw.doors", True),
        ("gateway", "publish", "rawish", False),
        ("gateway", "publish", "mine", False),
        ("gateway", "subscribe", "detections", True),
        ("gateway", "subscribe", "raw.gate1", True),
        ("gateway", "subscribe", "raw.gate", False),
        ("gateway", "subscribe", "log", False),
        ("node", "publish", "mine", True),
        ("node", "subscribe", "log", True),
        ("stranger", "subscribe", "detections", False),
        (NOBODY, "publish", "raw.doors", False),
        ("", "subscribe", "mine", False),
        ("all", "publish", "events", True),
        ("all", "publish", "interpretations", False),
        ("all", "subscribe", "interpretations", True),
        ("node", "publish", "interpretations", True),
        ("gateway", "take", "jobs.print", True),
        ("gateway", "take", "detections", False),
        ("all", "take", "detections", False),
        ("node", "take", "log", True),
    ],
)
def test_a_right_holds_for_the_named_channels_only(
    identity: str, right: str, channel: str, allowed: bool
) -> None:
    assert RIGHTS.allows(identity, right, channel) is allowed  # type: ignore[arg-type]
    if allowed:
        RIGHTS.check(identity, right, channel)  # type: ignore[arg-type]
        return
    with pytest.raises(NotAllowed) as caught:
        RIGHTS.check(identity, right, channel)  # type: ignore[arg-type]
    has_no_admin = (identity, channel) == ("all", "interpretations")
    assert caught.value.code == ("access.not_admin" if has_no_admin else "access.no_right")
    assert caught.value.hint


def test_changing_the_node_is_a_right_of_its_own() -> None:
    RIGHTS.check_admin("node")
    for identity in ("gateway", "stranger", NOBODY):
        with pytest.raises(NotAllowed) as caught:
            RIGHTS.check_admin(identity)
        assert caught.value.code == "access.not_admin"
