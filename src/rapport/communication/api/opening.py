"""Communication opened alone on a directory, without the rest of a node. [CO-3, CO-15]"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import msgspec

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import channels_from_site
from rapport.channel.log.channels import LoggedChannels
from rapport.communication.adapters.adapter_config import adapter_names
from rapport.communication.adapters.base import OutputAdapter, declaration_of
from rapport.communication.adapters.outputs import make_output
from rapport.communication.api.communication import APPLICATION, Communication
from rapport.communication.aside import run_aside
from rapport.communication.assembly import Assembly
from rapport.communication.callbacks import Callbacks, CollectiveInfo, PeerInfo
from rapport.communication.declare import Communication as Declared
from rapport.communication.declare import communication_from_site
from rapport.communication.declaring.engines import engines_from_site
from rapport.communication.declaring.sessions import entrance_from_site
from rapport.communication.history.index import LEDGER_FILE, LedgerIndex
from rapport.communication.history.ledger import Ledger
from rapport.communication.peers import Collective, Peer
from rapport.communication.services.query_criteria import with_log_index
from rapport.communication.services.services import services_from_site
from rapport.communication.sessions.logins import Authenticate
from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.core.message import Identifier
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.plugins import Plugins
from rapport.kernel.tasks import Tasks
from rapport.kernel.toml import TomlFile
from rapport.store.segment_store import SEGMENT_BYTES

_NO_SITE = TomlFile("site.toml", "", {})
T = TypeVar("T")
N = TypeVar("N", Peer, Collective)


class Opening(TypedDict, total=False):
    """What `open_communication` can be told; its docstring says what each means."""

    peers: Iterable[Peer]
    collectives: Iterable[Collective]
    outputs: Iterable[type[Any]]
    peer_info: PeerInfo | None
    collective_info: CollectiveInfo | None
    authenticate: Authenticate | None
    site: Path | str | None
    public_url: str
    application: str
    clock: Clock | None


@asynccontextmanager
async def open_communication(
    directory: Path | str,
    *,
    peers: Iterable[Peer] = (),
    collectives: Iterable[Collective] = (),
    outputs: Iterable[type[Any]] = (),
    peer_info: PeerInfo | None = None,
    collective_info: CollectiveInfo | None = None,
    authenticate: Authenticate | None = None,
    site: Path | str | None = None,
    public_url: str = "",
    application: str = str(APPLICATION),
    clock: Clock | None = None,
) -> AsyncIterator[Communication]:
    """Opens the channels, records and adapters kept in a directory (made when it is not there), and
    lets them work until the block ends. What was under way before goes on.

    Args:
        directory: Where everything is kept; one process at a time.
        peers: Who can be told, beside those that are in `site`, added at run time, or known to the
            callbacks.
        collectives: The same for groups.
        outputs: Media of one's own, classes declared with `@adapter(NAME)`.
        peer_info: Asked who a peer is; kept for a minute.
        collective_info: Asked who is in a collective, at every sending.
        authenticate: Asked whether a password is right, in place of those kept here.
        site: A site file of which `[peers]`, `[collectives]`, `[adapters]`, `[inputs]`,
            `[routing]`, `[messages]`, `[sessions]`, `[arriving]`, `[engines]` and `[channels]` are
            used.
        public_url: Where doors answer to links in messages; empty = no links.
        application: Who calls, as the log shows it: `component:NAME`.
        clock: Another one than the machine's, for tests.

    Raises SiteError for a wrong site, InvalidInput for an adapter that cannot be made, and
    StoreUnavailable when another process works on the directory. Costs what the last segment of the
    log needs to be read after a crash, next to nothing otherwise.
    """
    clock, application_id = clock or SystemClock(), Identifier.parse(application)
    asked = Callbacks(
        peer_info=peer_info, collective_info=collective_info, authenticate=authenticate
    )
    place = await run_aside(lambda: _Place.of(Path(directory), site))
    plugins, own = (
        Plugins(),
        {declaration_of(kind).name: make_output(kind, clock) for kind in outputs},
    )
    for name, made in own.items():
        plugins.add("adapters", name, _already(made))
    people = place.people(plugins, peers, collectives, outputs=tuple(own))
    async with AsyncExitStack() as closing:
        channels = await run_aside(lambda: place.open_channels(clock))
        closing.push_async_callback(channels.close)
        ledger = await run_aside(lambda: place.open_ledger(channels))
        closing.callback(ledger.close)
        assembly = place.assembly(channels, clock, people, plugins, public_url, asked)
        closing.push_async_callback(assembly.close)
        await assembly.people.open()
        await assembly.services.open()
        tasks = Tasks(clock)
        closing.push_async_callback(tasks.stop)
        tasks.start("retention", channels.sweeper.run)
        for name, work in assembly.work().items():
            tasks.start(name, work)
        yield Communication(assembly, ledger, application=application_id)


class _Place(msgspec.Struct, frozen=True):
    """Where everything is kept, and what the site file says."""

    directory: Path
    file: TomlFile
    beside: Path
    """Where secret files and privacy functions are looked for."""

    @staticmethod
    def of(directory: Path, site: Path | str | None) -> _Place:
        if site is None:
            return _Place(directory, _NO_SITE, directory)
        return _Place(directory, TomlFile.load(Path(site)), Path(site).parent)

    def open_channels(self, clock: Clock) -> LoggedChannels:
        rules = with_log_index(_well(channels_from_site(self.file)))
        channels = open_channels(
            self.directory, clock, rules, site=self.beside, segment_bytes=SEGMENT_BYTES
        )
        channels.use_rules(rules)
        return channels

    def open_ledger(self, channels: LoggedChannels) -> Ledger:
        return Ledger(channels, LedgerIndex(self.directory / LEDGER_FILE))

    def people(
        self,
        plugins: Plugins,
        peers: Iterable[Peer],
        collectives: Iterable[Collective],
        *,
        outputs: tuple[str, ...],
    ) -> Declared:
        """What the site file says, and who is given beside it."""
        known = adapter_names(plugins)
        said = _well(communication_from_site(self.file, self.beside, adapters=known))
        together = msgspec.structs.replace(
            said,
            peers=_joined("peer", said.peers, peers),
            collectives=_joined("collective", said.collectives, collectives),
            wanted=(*said.wanted, *outputs),
        )
        later = tuple(name for name in together.adapters() if name not in known)
        return msgspec.structs.replace(together, registered_later=later)

    def assembly(
        self,
        channels: LoggedChannels,
        clock: Clock,
        people: Declared,
        plugins: Plugins,
        public_url: str,
        callbacks: Callbacks,
    ) -> Assembly:
        services = services_from_site(
            self.file, self.beside, peers=people.peers, collectives=people.collectives
        )
        return Assembly(
            channels,
            channels.records,
            clock,
            people,
            phrases={},
            public_url=lambda: public_url,
            plugins=plugins,
            site=self.beside,
            entrance=_well(entrance_from_site(self.file)),
            services=_well(services),
            callbacks=callbacks,
            engines=_well(engines_from_site(self.file)),
            acts=False,
        )


def _already(made: OutputAdapter) -> Callable[..., OutputAdapter]:
    """How a plug-in is made, for one that is made."""
    return lambda _settings, _link_for: made


def _well(read: tuple[T, list[Problem]]) -> T:
    """What a part of the site file says; raises SiteError with all that is wrong with it."""
    said, problems = read
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return said


def _joined(kind: str, declared: Mapping[str, N], given: Iterable[N]) -> dict[str, N]:
    """Both by name; raises InvalidInput for a name that is given twice."""
    found = dict(declared)
    for one in given:
        if one.name in found:
            raise InvalidInput(
                f"the {kind} {one.name!r} is given twice",
                code=f"{kind}.given_twice",
                hint="leave one of them out",
            )
        found[one.name] = one
    return found
