"""The place of a listener on disk: durable, exclusive, never mistaken. [CH-7]"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rapport.channel.agents.connection import Reason
from rapport.channel.agents.listener_directory import (
    PLACE_NAME,
    FailedEvent,
    ListenedQuery,
    ListenerDirectory,
)
from rapport.channel.agents.listener_state import ReceivedEvent, ResumePoint
from rapport.core.errors import Conflict, Corrupt, StoreUnavailable
from support.judge.model_source import make_stored

SESSION = ListenedQuery(channel="c", query="{}")
SOMEWHERE = ResumePoint("token", True, 17)


def opened(directory: Path, session: ListenedQuery = SESSION) -> ListenerDirectory:
    return ListenerDirectory(directory, session)


def test_a_place_is_found_again(tmp_path: Path) -> None:
    place = opened(tmp_path / "a" / "b")
    assert place.saved is None
    place.save(SOMEWHERE)
    place.close()
    again = opened(tmp_path / "a" / "b")
    assert again.saved == SOMEWHERE
    again.close()


def test_a_second_listener_is_refused_with_the_name_of_the_holder(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(StoreUnavailable) as refused:
        opened(tmp_path)
    assert refused.value.code == "listener.locked"
    assert f"process {os.getpid()}" in refused.value.message
    first.close()
    opened(tmp_path).close()


def test_a_place_that_cannot_be_read_is_an_error_and_frees_the_directory(tmp_path: Path) -> None:
    place = opened(tmp_path)
    place.save(SOMEWHERE)
    place.close()
    good = json.loads((tmp_path / PLACE_NAME).read_text())
    changed = {**good, "stands_at": {**good["stands_at"], "position": 18}}
    for text in ("", "{", "[]", json.dumps(changed), json.dumps({**good, "version": 2})):
        (tmp_path / PLACE_NAME).write_text(text)
        with pytest.raises(Corrupt) as refused:
            opened(tmp_path)
        assert refused.value.code == "listener.bad_place"
        assert "delete it" in refused.value.hint
    (tmp_path / PLACE_NAME).write_text(json.dumps(good))
    again = opened(tmp_path)
    assert again.saved == SOMEWHERE
    again.close()


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (ListenedQuery(channel="d", query="{}"), "channel 'c'"),
        (ListenedQuery(channel="c", query='"a = 1"'), "query '{}'"),
        (ListenedQuery(channel="c", query="{}", handback="h"), "handback ''"),
    ],
)
def test_a_place_of_another_query_is_no_place_of_ours(
    tmp_path, other: ListenedQuery, named: str
) -> None:
    place = opened(tmp_path)
    place.save(SOMEWHERE)
    place.close()
    with pytest.raises(Conflict) as refused:
        opened(tmp_path, other)
    assert refused.value.code == "listener.other_place"
    assert named in refused.value.message


def test_after_closing_nothing_is_written(tmp_path: Path) -> None:
    place = opened(tmp_path)
    place.save(SOMEWHERE)
    place.close()
    with pytest.raises(StoreUnavailable) as refused:
        place.save(ResumePoint("x", False, 18))
    assert refused.value.code == "listener.closed"


def test_a_disk_that_refuses_is_reported(tmp_path: Path, monkeypatch) -> None:
    place = opened(tmp_path)

    def full(*_given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreUnavailable) as refused:
        place.save(SOMEWHERE)
    assert refused.value.code == "store.disk_full"
    assert place.saved is None
    place.close()


def test_failed_events_are_kept_once_with_the_reason(tmp_path: Path) -> None:
    place = opened(tmp_path)
    stored = make_stored(4)
    received = ReceivedEvent(4, stored.received, stored.event, "h")
    failed = FailedEvent(time=1, reason=Reason("a", "b"), received=received)
    place.keep_failed(failed)
    place.keep_failed(failed)
    place.close()
    again = opened(tmp_path)
    assert again.failed() == [failed]
    again.close()
