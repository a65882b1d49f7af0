"""The following interceptors at work: one task per interceptor and channel. [CH-10]"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from rapport.channel.channel import Channels
from rapport.channel.intercept.following import Following, reader_of
from rapport.channel.intercept.interceptor import Declared, FollowingInterceptor, Standing
from rapport.channel.intercept.keeping import INTERCEPTED
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks, first_of

_FINISH_MS = 5_000


class Followers:
    """Starts and ends what follows; places in the channels are kept until the interceptor goes."""

    def __init__(
        self, channels: Channels, clock: Clock, tell_off: Callable[[Standing], None]
    ) -> None:
        self._channels, self._clock, self._tell_off = channels, clock, tell_off
        self._following: dict[tuple[str, str], Following] = {}
        self._tasks = Tasks(clock)
        self._started = False

    async def take_places(self, declared: Declared) -> None:
        """A place behind the last event of every channel there is; durable when it returns."""
        for name in self._matching(declared):
            await self._channels.subscribe(name, reader_of(declared.name), from_start=False)

    def start(self) -> None:
        """From now on `follow` begins at once; before, nobody follows."""
        self._started = True

    async def stop(self) -> None:
        """Ends where they are."""
        self._started = False
        self._following.clear()
        await self._tasks.stop()

    def follow_all(self, standing: Standing) -> None:
        """Follows every channel there is."""
        for name in self._matching(standing.declared):
            self.follow(standing, name)

    def follow(self, standing: Standing, channel: str) -> None:
        """Begins to follow; a channel that came into being later is followed from its start."""
        name = standing.declared.name
        follows = isinstance(standing.interceptor, FollowingInterceptor)
        if not self._started or not follows or (name, channel) in self._following:
            return
        following = Following(self._channels, channel, standing, self._clock, self._tell_off)
        self._following[name, channel] = following
        self._tasks.start(_task(name, channel), following.run)

    async def finish(self, name: str) -> None:
        """Ends an interceptor's work once it has done what was appended by now; waits five seconds
        for that, no longer.
        """
        channels = [channel for one, channel in self._following if one == name]
        for channel in channels:
            self._following[name, channel].finish()
        for channel in channels:
            task = _task(name, channel)
            await first_of(self._tasks.ended(task), self._clock.sleep(_FINISH_MS))
            await self._tasks.stop(task)
            del self._following[name, channel]

    async def begin_again(self, standing: Standing) -> None:
        """Goes on after it was switched off."""
        name = standing.declared.name
        for key in [key for key in self._following if key[0] == name]:
            await self._tasks.stop(_task(*key))
            del self._following[key]
        self.follow_all(standing)

    def _matching(self, declared: Declared) -> list[str]:
        return [
            name
            for name in self._channels.names()
            if name != INTERCEPTED and fnmatchcase(name, declared.channels)
        ]


def _task(name: str, channel: str) -> str:
    return f"intercept.{name}.{channel}"
