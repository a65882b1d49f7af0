"""The whole room from what a site declares: engine, adapters and dispatches. [CO-4, PO-10]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rapport.channel.channel import Appended, Channels
from rapport.communication.actions import OwnAction, Phrases, nothing_said
from rapport.communication.adapters.append import Append, AppendAdapter
from rapport.communication.adapters.build import make_adapters
from rapport.communication.adapters.incoming.build_inputs import (
    AllPeople,
    InputSurroundings,
    SiteInputs,
    web_inputs_of,
)
from rapport.communication.adapters.incoming.inputs import Inputs
from rapport.communication.adapters.mail.care import AskedByMail
from rapport.communication.adapters.outgoing.dispatch import Dispatch
from rapport.communication.adapters.outgoing.outcomes import OutcomeData
from rapport.communication.adapters.outgoing.outputs import Outputs
from rapport.communication.adapters.sealed import with_seals
from rapport.communication.adapters.web.page import OpenPages
from rapport.communication.arriving.answers import answer_link, answer_secret, answer_token
from rapport.communication.arriving.arrivals import Arrivals
from rapport.communication.aside import run_aside
from rapport.communication.callbacks import NO_CALLBACKS, AskedDirectory, Callbacks
from rapport.communication.declare import Communication
from rapport.communication.declaring.sessions import Entrance
from rapport.communication.delivering.declining import Declines
from rapport.communication.delivering.tracking import DEFAULT_RETRY, Retry
from rapport.communication.directory.cache import CachedDirectory
from rapport.communication.directory.changes import DirectoryChanges
from rapport.communication.directory.stored import StoredDirectory
from rapport.communication.engine import CommunicationEngine
from rapport.communication.peers import PeerDirectory, SiteDirectory
from rapport.communication.privacy.functions import WorkerPrivacyFunctions
from rapport.communication.services.services import MessageServices, ServicesDeclared
from rapport.communication.sessions.authenticating import Authenticating
from rapport.communication.sessions.logins import Logins
from rapport.communication.sessions.passwords import Passwords
from rapport.communication.sessions.sessions import Sessions
from rapport.communication.sharing.leases import check_unshared
from rapport.communication.sharing.shares import ShareSettings
from rapport.communication.sharing.working import Sharing
from rapport.communication.templates import Facts, nothing_known
from rapport.core.event import Event
from rapport.core.message import Identifier, Message
from rapport.kernel.chance import Chance, Ids
from rapport.kernel.clock import Clock
from rapport.kernel.plugins import Plugins
from rapport.store.base import RecordStore


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
        site: Path = Path(),
        entrance: Entrance | None = None,
        services: ServicesDeclared | None = None,
        callbacks: Callbacks = NO_CALLBACKS,
        engines: ShareSettings | None = None,
        acts: bool = True,
    ) -> None:
        """`phrases` gives the action phrases of a policy's version; `public_url` is asked at each
        sending: a node knows its address only when its doors are open; empty = no link in messages.
        `append` is how actions append their events; None = straight into the channel. `site` is the
        site's directory, where privacy functions lie. With `callbacks` it is made in the running
        loop, where coroutines among them run. With `engines` other processes work on the same
        channels and records; `acts`: this one knows the policies.

        Reads the secret from the records (blocks briefly). Raises UnknownName or Unsupported for an
        adapter that is not installed.
        """
        self.secret = answer_secret(records)
        self._public_url = public_url
        self.pages = OpenPages()
        self.adapters = make_adapters(
            declared,
            self.link_for,
            plugins or Plugins(),
            proof_for=partial(answer_token, self.secret),
            pages=self.pages,
            clock=clock,
        )
        if declared.appends():
            self.adapters[AppendAdapter.name] = AppendAdapter(append or partial(_append, channels))
        self.outputs = Outputs(
            channels,
            records,
            clock,
            report=self._report,
            is_decided=self._is_decided,
            settings=declared.sending,
            shared=engines is not None,
        )
        entrance = entrance or Entrance()
        sessions = Sessions(records, clock, entrance.sessions)
        for adapter in self.adapters.values():
            self.outputs.hold(with_seals(adapter, sessions, clock))
        self.outputs.hold_absent()
        self.directory = StoredDirectory(
            SiteDirectory(declared.peers, declared.collectives), records, site=site
        )
        self._known: PeerDirectory = self.directory
        if callbacks != NO_CALLBACKS:
            loop = asyncio.get_running_loop()
            self._known = AskedDirectory(self.directory, callbacks, loop)
        cached = CachedDirectory(self._known, clock)
        self.people = DirectoryChanges(
            self.directory,
            records,
            channels,
            clock,
            new_id=Ids(clock, Chance.from_machine()).new,
            adapters=lambda: self.outputs.names,
        )
        self.people.changed += [cached.forget, self.outputs.peer_changed]
        passwords = Passwords(records, entrance.passwords)
        self.authenticating = Authenticating(
            channels,
            records,
            clock,
            sessions,
            callbacks.authenticate or passwords.check,
            is_peer=self._is_peer,
        )
        self.logins = Logins(
            passwords,
            self.authenticating,
            self._is_peer,
            unknown=partial(self.directory.unknown, "peer"),
        )
        self.people.changed.append(self.logins.peer_changed)
        self.services = MessageServices(
            channels, records, clock, services or ServicesDeclared(), send=self._say
        )
        self.arrivals = Arrivals(
            channels,
            records,
            clock,
            self.authenticating,
            secret=self.secret,
            settings=entrance.arriving,
            contents=self.services.infos,
        )
        self.inputs = Inputs(self.arrivals.publish, channels, records, clock)
        self.asked_by_mail = AskedByMail()
        """Knows open questions once it is given the ledger."""
        self._site_inputs = SiteInputs(
            self.inputs,
            declared.inputs,
            InputSurroundings(
                channels, clock, AllPeople(self.directory), self.secret, self.asked_by_mail
            ),
        )
        self.web_inputs = web_inputs_of(self._site_inputs)
        """Inputs by HTTP, by name: the web room opens a door for each."""
        self.privacy = WorkerPrivacyFunctions(clock, (str(site.resolve()),))
        make_engine = partial(
            CommunicationEngine,
            clock=clock,
            directory=cached,
            actions=declared.actions,
            phrases=phrases,
            adapters=self.outputs.names,
            retry=retry,
            facts=facts,
            own_action=own_action,
            functions=self.privacy,
            route=self.services.routing.recipients,
            declines=Declines(entrance.arriving.declines),
        )
        self.engine: CommunicationEngine | Sharing
        if engines is None:
            check_unshared(records)
            self.engine = make_engine(channels, records)
        else:
            self.engine = Sharing(
                channels,
                records,
                clock,
                instance=Ids(clock, Chance.from_machine()).new(),
                make_engine=make_engine,
                adapters=lambda: [dispatch.adapter for dispatch in self.dispatches],
                settings=engines,
                dispatch=declared.sending,
                acts=acts,
                alone=self._work_beside(),
            )

    @property
    def dispatches(self) -> list[Dispatch]:
        """What carries deliveries to the adapters, as there are now."""
        return self.outputs.dispatches()

    async def _report(self, outcomes: Sequence[OutcomeData]) -> None:
        """Hands outcomes over without a channel between: adapters and engine are in one process."""
        assert isinstance(self.engine, CommunicationEngine), "shares report for themselves"
        await self.engine.opened.wait()
        await self.engine.take_outcomes(outcomes)

    async def _say(self, messages: Sequence[Message]) -> None:
        """Sends messages of the node itself."""
        await self.arrivals.send(messages)

    def _is_decided(self, message: str, peer: str) -> bool:
        return self.engine.is_decided(message, peer)

    def _is_peer(self, name: str) -> bool:
        return self.directory.has(Identifier("peer", name)) or self._known.peer(name) is not None

    def link_for(self, message: str, peer: str) -> str:
        """The page on which this peer answers this message; empty when the node has no address."""
        url = self._public_url()
        return answer_link(url, self.secret, message, peer) if url else ""

    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks to run, by name, the last stage first; each may be started again after a
        failure.
        """
        own = {**self.outputs.work(), "communication": self.engine.run}
        # Of several processes only one at a time does the rest: see Sharing.
        return own if isinstance(self.engine, Sharing) else {**own, **self._work_beside()}

    def _work_beside(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "communication.inputs": self._site_inputs.run,
            "communication.arrivals": self.arrivals.run,
            **self.services.work(),
        }

    async def close(self) -> None:
        """Lets go of the adapters' connections and of the process that privacy functions run in;
        called after the tasks have ended.
        """
        await self.inputs.close()
        await self.outputs.close()
        await run_aside(self.privacy.close)


async def _append(channels: Channels, name: str, events: Sequence[Event]) -> Appended:
    return await channels.channel(name).append(events)
