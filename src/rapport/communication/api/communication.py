"""What an application calls: the operations of the source's section 2.4. [CO-15]

A node has it as `node.communication`; `open_communication` opens it alone. `CommunicationSync` is
the same for programs without asyncio.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from rapport.communication.adapters.input_base import (
    InputAdapter,
    InputPullAdapter,
    InputPushAdapter,
    Trusted,
    never,
)
from rapport.communication.assembly import Assembly
from rapport.communication.callbacks import NotificationCallback
from rapport.communication.delivering.wishes import NO_WISHES, Wishes
from rapport.communication.history.ledger import Ledger
from rapport.communication.services.info import MessageInformation
from rapport.communication.services.query import QueryCriteria
from rapport.communication.services.query_criteria import GivenCriteria
from rapport.communication.services.routing import RoutingRule
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier, Message

APPLICATION = Identifier("component", "application")


class Communication:
    """Sends messages, and changes how they are handled while they flow.

    All calls belong to the event loop it was opened in. Errors are `RapportError`s with a code that
    stays; nothing that was refused has had an effect.
    """

    def __init__(
        self, assembly: Assembly, ledger: Ledger, *, application: Identifier = APPLICATION
    ) -> None:
        """`application`: who adds rules, information and inputs, as the log shows it."""
        self._assembly, self._application = assembly, application
        self.ledger = assembly.asked_by_mail.ledger = ledger
        """Who was told, how, when, and who answered."""
        self.people = assembly.people
        """Adds, changes and removes peers and collectives while it runs."""
        self.logins = assembly.logins
        """Sets and takes away passwords."""
        self.arrivals = assembly.arrivals
        """Takes messages that came from outside, for doors of one's own."""
        self.arrivals.expire_answers_by(ledger.closed_before)

    # --- messages ---

    async def send(self, message: Message, *, wishes: Wishes = NO_WISHES) -> str:
        """Takes a message to be delivered and returns its id, durable; does not wait for the
        delivery. How that went is told to notification callbacks, when the sender is a component.

        The receiver is a peer, a collective or a component; without one the message goes to the
        notification callbacks. `wishes`: how many have to answer, until when, who is asked next.

        Raises InvalidInput for a message that cannot be sent. Cost: one group commit, shared with
        who else sends now.
        """
        (id,) = await self.send_all([message], wishes=wishes)
        return id

    async def send_all(
        self, messages: Sequence[Message], *, wishes: Wishes = NO_WISHES
    ) -> list[str]:
        """As `send` for many at once, all or none; their ids in the same order. One group commit
        however many they are.
        """
        if not messages:
            return []
        return await self._assembly.arrivals.send(messages, wishes=wishes)

    # --- routing ---

    async def add_routing(self, rule: RoutingRule) -> str:
        """Puts a rule in force, for good, and returns its id. The same rule again changes nothing.

        Raises InvalidInput for a rule that matches everything or names nobody, DuplicateName when
        another rule has its id.
        """
        return await self._assembly.services.routing.add(rule, by=str(self._application))

    async def remove_routing(self, rule_id: str) -> RoutingRule | None:
        """Takes a rule out of force before it returns; gives the rule, or None when there is none
        of that id. Raises Conflict for a rule of the site file.
        """
        return await self._assembly.services.routing.remove(rule_id, by=str(self._application))

    # --- input ---

    async def add_push_adapter(
        self, adapter: InputPushAdapter, *, name: str = "", trusted: Trusted = never
    ) -> str:
        """Starts an adapter that is told by its medium; returns its id. One that cannot start is
        not added: raises Unavailable, or the RapportError that it raised.

        `name` is its id and that of its durable memory, so give one that stays the same after a
        restart. `trusted` says of a message whether the medium proves its sender.
        """
        return await self._assembly.inputs.add_push(
            adapter, name=name, owner=str(self._application), trusted=trusted
        )

    async def add_pull_adapter(
        self,
        adapter: InputPullAdapter,
        interval_ms: int | None,
        delete_if_successful: bool = False,
        *,
        deadline_ms: int | None = None,
        name: str = "",
        trusted: Trusted = never,
    ) -> str:
        """Lets an adapter look every `interval_ms`, never twice at a time; returns its id. With
        `delete_if_successful` it is removed after the first pull that found something, with a
        deadline (ms UTC) after a last pull then. Without an interval it is pulled at the deadline
        or when `request_pull` asks.

        Raises InvalidInput for an interval that is not positive. `name` and `trusted` as in
        `add_push_adapter`.
        """
        return await self._assembly.inputs.add_pull(
            adapter,
            interval_ms,
            delete_if_successful,
            deadline_ms,
            name=name,
            owner=str(self._application),
            trusted=trusted,
        )

    async def request_pull(self, adapter_id: str, *, ttl_ms: int = 0) -> str:
        """Asks a pull adapter to look now; returns the request's id, durable. With a time to live
        it looks again until something came; after it notification callbacks hear TIMEOUT.

        Raises UnknownName, or InvalidInput for an adapter that is not pulled.
        """
        return await self._assembly.inputs.request(
            adapter_id, requester=self._application, ttl_ms=ttl_ms
        )

    async def remove_input_adapter(self, adapter_id: str) -> InputAdapter | None:
        """Ends an input adapter: nothing of it runs when this returns. Gives the adapter, or None
        when there is none of that id.
        """
        return await self._assembly.inputs.remove(adapter_id)

    # --- output ---

    async def register_output_adapter(self, kind: type[Any]) -> str:
        """Adds a medium: a class declared with `@adapter(NAME)`, whose id is that name. Stateless:
        one instance, made now. Stateful: one for each peer, made when first needed.

        What waited for a medium of that name since before the last start fails before this can be
        called; give it to `open_communication` instead.

        Raises InvalidInput for a class that is not declared, cannot be made or has no usable name,
        DuplicateName when there is such a medium.
        """
        return await self._assembly.outputs.register(kind)

    async def remove_output_adapter(self, adapter_id: str) -> bool:
        """Takes a medium away: nothing more is queued for it from now on; returns when what waited
        has gone out. Deliveries that failed have some seconds for their next attempt; then they go
        to the peer's next address, or their sender is notified. False when there is none of that
        id.
        """
        return await self._assembly.outputs.remove(adapter_id)

    # --- callbacks ---

    async def add_notification_callback(
        self, callback: NotificationCallback, *, name: str = ""
    ) -> str:
        """Calls this with messages to components, with messages that have no receiver, and with
        ACK, COMERROR and TIMEOUT about messages that components sent; in order. Returns its id.

        A plain function is called in the event loop and must not block it. With a `name` it goes on
        after a restart where it was, at least once; without, it hears what comes from now on. What
        it raises is logged, and harms nobody. Raises DuplicateName.
        """
        return self._assembly.engine.add_notification(callback, name)

    async def remove_notification_callback(self, callback_id: str) -> bool:
        """Calls it no more; False when there is none of that id."""
        return self._assembly.engine.remove_notification(callback_id)

    # --- what was handled, and what it means ---

    def create_query(self, **criteria: Unpack[GivenCriteria]) -> QueryCriteria:
        """A query over all messages that were handled: narrow it down with `where`, then read it
        page by page (`page`) or with `async for`. Raises InvalidInput for criteria that cannot be.
        """
        return self._assembly.services.queries.create_query(**criteria)

    async def info_for_message(
        self, message: Message | None = None, *, id: str = "", type: str = "", subtype: str = ""
    ) -> MessageInformation:
        """What a message means, how to answer it, and which messages relate to it: of a message, of
        the one with this id, or of a type.

        Raises UnknownName (`message.unknown`) when no message has that id or nothing is known of
        the type, InvalidInput when nothing or too much is asked.
        """
        if message is not None:
            if id or type or subtype:
                raise InvalidInput(
                    "a message says its type itself",
                    code="info.asked_twice",
                    hint="give the message, or its id, or a type",
                )
            type, subtype = message.type, message.subtype
        infos = self._assembly.services.infos
        return (await infos.info_for_message(id=id, type=type, subtype=subtype)).information

    async def add_message_info(
        self, type: str, subtype: str, information: MessageInformation
    ) -> None:
        """Tells this of a type of message from now on, in place of what was told before; durable
        when it returns. An empty subtype stands for all that have nothing of their own.

        Raises InvalidInput for a text, name or JSON Schema that cannot be.
        """
        infos = self._assembly.services.infos
        await infos.add_message_info(type, subtype, information, by=str(self._application))
