"""The public API for programs without asyncio: the same calls, from any thread. [CO-15]

The room works in a thread of its own with its own event loop, until it is closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from rapport.communication.adapters.input_base import (
    InputAdapter,
    InputPullAdapter,
    InputPushAdapter,
    Trusted,
    never,
)
from rapport.communication.api.opening import Opening
from rapport.communication.api.thread import LoopThread
from rapport.communication.callbacks import NotificationCallback
from rapport.communication.delivering.wishes import NO_WISHES, Wishes
from rapport.communication.history.ledger import Page, Question, TimelineLine
from rapport.communication.services.info import MessageInformation
from rapport.communication.services.query import LoggedMessage, MessagePage, QueryCriteria
from rapport.communication.services.query_criteria import GivenCriteria
from rapport.communication.services.routing import RoutingRule
from rapport.core.message import Message


class QuerySync:
    """A query for programs without asyncio; see QueryCriteria."""

    def __init__(self, thread: LoopThread, query: QueryCriteria) -> None:
        self._thread, self._query = thread, query

    def where(self, **given: Unpack[GivenCriteria]) -> QuerySync:
        """Narrowed down by more criteria; those given again are replaced."""
        return QuerySync(self._thread, self._query.where(**given))

    def newest_first(self) -> QuerySync:
        """The newest message first, instead of the oldest."""
        return QuerySync(self._thread, self._query.newest_first())

    def page(self, token: str = "") -> MessagePage:
        """The first page, or that of a token which an earlier page gave."""
        return self._thread.call(self._query.page(token))

    def __iter__(self) -> Iterator[LoggedMessage]:
        """Every match, page after page."""
        page = self.page()
        yield from page.messages
        while page.next_token:
            page = self.page(page.next_token)
            yield from page.messages


class LedgerSync:
    """The ledger for programs without asyncio; see Ledger."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    def find(self, question: Question) -> Page:
        """The rows that fit, newest change first, a page of them; up to date."""
        return self._thread.call(self._thread.communication.ledger.find(question))

    def timeline(self, message: str) -> list[TimelineLine]:
        """All that was said about a message, in order; raises UnknownName."""
        return self._thread.call(self._thread.communication.ledger.timeline(message))


class CommunicationSync:
    """`Communication` for programs without asyncio: every call may come from any thread and waits
    until it is done. What each promises, costs and raises stands there.

    Opens as `open_communication` does and takes the same arguments; `with` closes it. Callbacks
    that are plain functions are called in worker threads, one message at a time, and may call back.
    Adapters have coroutines as always: they work in the loop.
    """

    def __init__(self, directory: Path | str, **options: Unpack[Opening]) -> None:
        self._thread = LoopThread(directory, options)
        self._all = self._thread.communication
        self.ledger = LedgerSync(self._thread)

    def __enter__(self) -> CommunicationSync:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes everything, after calls of other threads that are under way; a second call is no
        error.
        """
        self._thread.close()

    def send(self, message: Message, *, wishes: Wishes = NO_WISHES) -> str:
        """See Communication.send."""
        return self._thread.call(self._all.send(message, wishes=wishes))

    def send_all(self, messages: Sequence[Message], *, wishes: Wishes = NO_WISHES) -> list[str]:
        """See Communication.send_all."""
        return self._thread.call(self._all.send_all(messages, wishes=wishes))

    def add_routing(self, rule: RoutingRule) -> str:
        """See Communication.add_routing."""
        return self._thread.call(self._all.add_routing(rule))

    def remove_routing(self, rule_id: str) -> RoutingRule | None:
        """See Communication.remove_routing."""
        return self._thread.call(self._all.remove_routing(rule_id))

    def add_push_adapter(
        self, adapter: InputPushAdapter, *, name: str = "", trusted: Trusted = never
    ) -> str:
        """See Communication.add_push_adapter."""
        return self._thread.call(self._all.add_push_adapter(adapter, name=name, trusted=trusted))

    def add_pull_adapter(
        self,
        adapter: InputPullAdapter,
        interval_ms: int | None,
        delete_if_successful: bool = False,
        *,
        deadline_ms: int | None = None,
        name: str = "",
        trusted: Trusted = never,
    ) -> str:
        """See Communication.add_pull_adapter."""
        return self._thread.call(
            self._all.add_pull_adapter(
                adapter,
                interval_ms,
                delete_if_successful,
                deadline_ms=deadline_ms,
                name=name,
                trusted=trusted,
            )
        )

    def request_pull(self, adapter_id: str, *, ttl_ms: int = 0) -> str:
        """See Communication.request_pull."""
        return self._thread.call(self._all.request_pull(adapter_id, ttl_ms=ttl_ms))

    def remove_input_adapter(self, adapter_id: str) -> InputAdapter | None:
        """See Communication.remove_input_adapter."""
        return self._thread.call(self._all.remove_input_adapter(adapter_id))

    def register_output_adapter(self, kind: type[Any]) -> str:
        """See Communication.register_output_adapter."""
        return self._thread.call(self._all.register_output_adapter(kind))

    def remove_output_adapter(self, adapter_id: str) -> bool:
        """See Communication.remove_output_adapter."""
        return self._thread.call(self._all.remove_output_adapter(adapter_id))

    def add_notification_callback(self, callback: NotificationCallback, *, name: str = "") -> str:
        """See Communication.add_notification_callback; a plain function may block and call back."""
        aside = self._thread.aside(callback)
        return self._thread.call(self._all.add_notification_callback(aside, name=name))

    def remove_notification_callback(self, callback_id: str) -> bool:
        """See Communication.remove_notification_callback."""
        return self._thread.call(self._all.remove_notification_callback(callback_id))

    def create_query(self, **criteria: Unpack[GivenCriteria]) -> QuerySync:
        """See Communication.create_query; read it with `page` or `for`."""
        return QuerySync(self._thread, self._all.create_query(**criteria))

    def info_for_message(
        self, message: Message | None = None, *, id: str = "", type: str = "", subtype: str = ""
    ) -> MessageInformation:
        """See Communication.info_for_message."""
        asked = self._all.info_for_message(message, id=id, type=type, subtype=subtype)
        return self._thread.call(asked)

    def add_message_info(self, type: str, subtype: str, information: MessageInformation) -> None:
        """See Communication.add_message_info."""
        self._thread.call(self._all.add_message_info(type, subtype, information))
