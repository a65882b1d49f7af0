"""The whole room from what a site declares: engine, adapters and dispatches. [CO-4, PO-10]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from rapport.channel.channel import Appended, Channels
from rapport.communication.actions import OwnAction, Phrases, nothing_said
from rapport.communication.adapters.absent import AbsentAdapter
from rapport.communication.adapters.append import Append, AppendAdapter
from rapport.communication.adapters.base import OutputAdapter
from rapport.communication.adapters.build import make_adapters
from rapport.communication.adapters.dispatch import Dispatch
from rapport.communication.answers import answer_link, answer_secret
from rapport.communication.declare import Communication
from rapport.communication.engine import CommunicationEngine
from rapport.communication.peers import SiteDirectory
from rapport.communication.templates import Facts, nothing_known
from rapport.communication.tracking import DEFAULT_RETRY, Retry
from rapport.core.event import Event
from rapport.kernel.clock import Clock
from rapport.kernel.plugins import Plugins
from rapport.store.base import RecordStore

_OUTPUT = "output."


def _nowhere() -> str:
    return ""


class Assembly:
    """What a node starts and stops: `work()` names the background tasks, `close` ends adapters."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        declared: Communication,
        *,
        phrases: Phrases | Mapping[str, Sequence[str]],
        public_url: Callable[[], str] = _nowhere,
        plugins: Plugins | None = None,
        retry: Retry = DEFAULT_RETRY,
        facts: Facts = nothing_known,
        own_action: OwnAction = nothing_said,
        append: Append | None = None,
    ) -> None:
        """`phrases` gives the action phrases of a policy's version; `public_url` is asked at each
        sending: a node knows its address only when its doors are open; empty = no link in messages.
        `append` is how actions append their events; None = straight into the channel.

        Reads the secret from the records (blocks briefly). Raises UnknownName or Unsupported for an
        adapter that is not installed.
        """
        self.secret = answer_secret(records)
        self._public_url = public_url
        self.adapters = make_adapters(declared, self.link_for, plugins or Plugins())
        if declared.appends():
            self.adapters[AppendAdapter.name] = AppendAdapter(append or partial(_append, channels))
        self.engine = CommunicationEngine(
            channels,
            records,
            clock,
            directory=SiteDirectory(declared.peers, declared.collectives),
            actions=declared.actions,
            phrases=phrases,
            adapters=tuple(self.adapters),
            retry=retry,
            facts=facts,
            own_action=own_action,
        )
        served: list[OutputAdapter] = [*self.adapters.values()]
        served += [AbsentAdapter(name) for name in _unserved(channels, self.adapters)]
        self.dispatches = [Dispatch(adapter, channels, records, clock) for adapter in served]

    def link_for(self, message: str, peer: str) -> str:
        """The page on which this peer answers this message; empty when the node has no address."""
        url = self._public_url()
        return answer_link(url, self.secret, message, peer) if url else ""

    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks to run, by name, the last stage first; each may be started again after a
        failure.
        """
        found: dict[str, Callable[[], Awaitable[None]]] = {}
        for dispatch in self.dispatches:
            found[dispatch.reader] = dispatch.run
        found["communication"] = self.engine.run
        return found

    async def close(self) -> None:
        """Lets go of the adapters' connections; called after the tasks have ended."""
        for adapter in self.adapters.values():
            await adapter.close()


async def _append(channels: Channels, name: str, events: Sequence[Event]) -> Appended:
    return await channels.channel(name).append(events)


def _unserved(channels: Channels, adapters: Mapping[str, OutputAdapter]) -> list[str]:
    """Adapters that something was queued for and that are no more."""
    queued = [name.removeprefix(_OUTPUT) for name in channels.names() if name.startswith(_OUTPUT)]
    return [name for name in queued if name not in adapters]
