"""Parts end in order, each of them whatever became of the one before it."""

import asyncio

import pytest
from structlog.testing import capture_logs

from rapport.kernel.tasks import close_all


class Part:
    def __init__(self, ended: list[str], name: str, error: Exception | None = None) -> None:
        self._ended, self._name, self._error = ended, name, error

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.close()

    def close(self) -> None:
        self._ended.append(self._name)
        if self._error is not None:
            raise self._error


def test_every_part_ends_and_the_first_error_is_raised_afterwards() -> None:
    ended: list[str] = []
    first, second = ValueError("first"), OSError("second")
    parts = [
        ("a", Part(ended, "a").stop),
        ("b", Part(ended, "b", first).close),
        ("c", Part(ended, "c", second).stop),
        ("d", Part(ended, "d").close),
    ]
    with capture_logs() as logs, pytest.raises(ValueError, match="first") as raised:
        asyncio.run(close_all(parts))
    assert raised.value is first
    assert ended == ["a", "b", "c", "d"]
    assert [(line["component"], line["error"]) for line in logs] == [
        ("b", "ValueError('first')"),
        ("c", "OSError('second')"),
    ]


def test_who_is_cancelled_while_a_part_ends_ends_the_others_and_is_told() -> None:
    ended: list[str] = []

    async def hang() -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        parts = [("hangs", hang), ("fails", Part(ended, "fails", OSError()).stop)]
        ending = asyncio.create_task(close_all([*parts, ("last", Part(ended, "last").stop)]))
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending

    asyncio.run(scenario())
    assert ended == ["fails", "last"]
