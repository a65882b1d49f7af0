"""What the source side of every back end must do: queries, tokens, leases, takes. [CH-1, CH-2,
CH-3, CH-4]

A class that inherits the suite gives the fixture `channel_place`, as for the channel suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rapport.channel.dead_letters import DEAD_LETTERS, LetterFailure
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.requests.leases import Answers, SettlementResult
from rapport.channel.requests.request import Batch, Request
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.core.event import Event
from support.suites.channel import ChannelPlace, numbered, play

ME, YOU = "me", "you"


async def ask(
    channels: LoggedChannels, request: Request, *, identity: str = ME, name: str = "c"
) -> Batch:
    """One request."""
    return await channels.source.request(name, request, identity=identity)


async def go_on(channels: LoggedChannels, token: str | None, *, identity: str = ME) -> Batch:
    """The batch of a token."""
    assert token is not None
    return await ask(channels, Request(token=token), identity=identity)


def ids_of(batch: Batch) -> list[str]:
    """The ids of its messages."""
    return [stored.event.id for stored in batch.events]


def names(first: int, last: int) -> list[str]:
    """The ids that `numbered` gives."""
    return [str(number) for number in range(first, last + 1)]


def play_requests(
    place: ChannelPlace, *scenarios: Callable[[LoggedChannels], Awaitable[None]]
) -> None:
    """Runs scenarios one after the other, closing and opening the channels in between."""
    play(place, *scenarios)  # type: ignore[arg-type]  # the place opens channels with a source


def leased(**wishes: object) -> Request:
    """A request for messages that come again after ten seconds unless they are acked."""
    return Request(**{"query": {}, "take": True, "lease_ms": 10_000, **wishes})  # type: ignore[arg-type]


def ids_to_answer(batch: Batch) -> tuple[str, ...]:
    """The ids of a batch's deliveries."""
    return tuple(delivery.id for delivery in batch.deliveries)


async def buried_in(channels: LoggedChannels) -> list[LetterFailure]:
    """What the dead letters of the channels say."""
    letters = await channels.channel(DEAD_LETTERS).read_after(0)
    return [stored.event.payload_as(LetterFailure) for stored in letters]


class RequestSuite:
    """Needs the fixture `channel_place`."""

    def test_a_query_and_its_next_tokens_give_every_match_once(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 250))
            batch = await ask(channels, Request(query="time BETWEEN 11 AND 200", max_messages=30))
            found = ids_of(batch)
            while batch.next_token:
                batch = await go_on(channels, batch.next_token)
                assert 1 <= len(batch.events) <= 30
                found += ids_of(batch)
            assert found == names(11, 200)

        play_requests(channel_place, scenario)

    def test_the_same_token_gives_the_same_messages_while_others_append(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 10))
            first = await ask(channels, Request(query={}, max_messages=8))
            assert ids_of(first) == names(1, 8)
            await channels.channel("c").append(numbered(11, 30))
            second = await go_on(channels, first.next_token)
            assert ids_of(second) == names(9, 10)
            again = await go_on(channels, first.next_token)
            assert (again.events, again.current_token) == (second.events, first.next_token)
            assert ids_of(await go_on(channels, first.current_token)) == names(1, 8)
            assert ids_of(await go_on(channels, second.next_token)) == names(11, 18)

        play_requests(channel_place, scenario)

    def test_history_goes_on_live_without_gap_or_duplicate(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 3))
            batch = await ask(channels, Request(query="type = 'suite.counted'"))
            assert ids_of(batch) == names(1, 3)
            assert batch.next_token is None
            for number in (4, 5):
                waiting = asyncio.create_task(
                    ask(channels, Request(token=batch.current_token, seen=True, wait_ms=10_000))
                )
                await channel_place.clock.sleep(0)
                other = Event("suite", f"x{number}", "other", "", 0)
                await channels.channel("c").append([other])
                await channels.channel("c").append(numbered(number, number))
                answer = await waiting
                assert (answer.events, answer.current_token) == ((), batch.current_token)
                batch = await go_on(channels, answer.next_token)
                assert ids_of(batch) == [str(number)]

        play_requests(channel_place, scenario)

    def test_no_next_token_means_nothing_new_yet(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            empty = await ask(channels, Request(query="id = '7'"))
            assert (empty.events, empty.next_token) == ((), None)
            await channels.channel("c").append(numbered(1, 6))
            again = await go_on(channels, empty.current_token)
            assert (again.events, again.next_token) == ((), None)
            await channels.channel("c").append(numbered(7, 9))
            later = await go_on(channels, empty.current_token)
            assert later.events == ()
            assert ids_of(await go_on(channels, later.next_token)) == ["7"]

        play_requests(channel_place, scenario)

    def test_a_query_waits_for_its_first_match_and_no_longer(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            request = Request(query="id = '2'", wait_ms=5_000)
            waiting = asyncio.create_task(ask(channels, request))
            await channel_place.clock.sleep(0)
            await channels.channel("c").append(numbered(1, 2))
            assert ids_of(await waiting) == ["2"]
            nobody = asyncio.create_task(
                ask(channels, Request(query="id = 'nobody'", wait_ms=5_000))
            )
            while not nobody.done():
                await channel_place.clock.advance(1_000)
            assert nobody.result().events == ()

        play_requests(channel_place, scenario)

    def test_a_batch_spans_no_more_time_than_asked(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            events = [Event("s", str(t), "t", "", t) for t in (0, 50, 100, 40, 201, 99, 350)]
            await channels.channel("c").append(events)
            batch = await ask(channels, Request(query={}, max_time_range_ms=100))
            sets = [ids_of(batch)]
            while batch.next_token:
                batch = await go_on(channels, batch.next_token)
                sets.append(ids_of(batch))
            assert sets == [["0", "50", "100", "40"], ["201"], ["99"], ["350"]]

        play_requests(channel_place, scenario)

    def test_what_was_taken_is_seen_by_no_other_request(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 10))
            before = await ask(channels, Request(query={}, max_messages=6), identity=YOU)
            taken = await ask(channels, Request(query="time IN (2, 4, 8)", take=True))
            assert ids_of(taken) == ["2", "4", "8"]
            rest = await ask(channels, Request(query={}), identity=YOU)
            assert ids_of(rest) == ["1", "3", "5", "6", "7", "9", "10"]
            for token in (before.current_token, before.next_token):
                gone = await go_on(channels, token, identity=YOU)
                assert (gone.gone, gone.events, gone.current_token) == (True, (), token)
            gone = await go_on(channels, before.current_token, identity=YOU)
            assert ids_of(await go_on(channels, gone.next_token, identity=YOU)) == [
                "1",
                "3",
                "5",
                "6",
                "7",
                "9",
            ]
            assert ids_of(await go_on(channels, taken.current_token)) == ["2", "4", "8"]
            assert ids_of(await ask(channels, Request(query="time = 2", take=True))) == []

        play_requests(channel_place, scenario)

    def test_takers_at_once_share_the_messages_and_double_none(
        self, channel_place: ChannelPlace
    ) -> None:
        async def take(channels: LoggedChannels, number: int) -> list[str]:
            found: list[str] = []
            while len(found) < 200:
                request = Request(query={}, max_messages=1 + number, take=True)
                batch = await ask(channels, request, identity=f"taker{number}")
                if not batch.events:
                    break
                found += ids_of(batch)
            return found

        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 150))
            takers = [take(channels, number) for number in range(6)]
            shares = await asyncio.gather(*takers)
            together = [name for share in shares for name in share]
            assert sorted(together, key=int) == names(1, 150)

        play_requests(channel_place, scenario)

    def test_looking_first_and_taking_by_token_loses_nothing(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 5))
            looked = await ask(channels, Request(query={}, max_messages=3))
            take = Request(token=looked.current_token, take=True)
            for _answer_was_lost in range(3):
                assert ids_of(await ask(channels, take)) == names(1, 3)
            assert ids_of(await ask(channels, Request(query={}))) == names(4, 5)
            quietly = Request(token=looked.next_token or "", take=True, seen=True)
            assert (await ask(channels, quietly)).events == ()
            assert ids_of(await ask(channels, Request(query={}))) == []

        play_requests(channel_place, scenario)

    def test_tokens_are_of_use_only_where_and_to_whom_they_were_given(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 3))
            token = (await ask(channels, Request(query={}))).current_token
            with pytest.raises(NotAllowed, match="another identity"):
                await go_on(channels, token, identity=YOU)
            with pytest.raises(InvalidInput, match="another channel"):
                await ask(channels, Request(token=token), name="d")
            for wrong in (token[:-5], token + "AAAA", "", "é"):
                with pytest.raises(InvalidInput):
                    await ask(channels, Request(token=wrong))

        play_requests(channel_place, scenario)

    def test_tokens_and_takes_outlive_restart_and_lease(self, channel_place: ChannelPlace) -> None:
        kept: dict[str, Batch] = {}

        async def before(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 20))
            kept["taken"] = await ask(
                channels, Request(query="time <= 4", take=True, lease_minutes=600)
            )
            kept["first"] = await ask(channels, Request(query={}, max_messages=5, lease_minutes=1))

        async def after(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(21, 30))
            await channel_place.clock.advance(60 * 60_000)
            again = await go_on(channels, kept["first"].current_token)
            assert again.events == kept["first"].events
            assert ids_of(await go_on(channels, kept["first"].next_token)) == names(10, 14)
            assert ids_of(await ask(channels, Request(query="time < 7"))) == ["5", "6"]
            assert ids_of(await go_on(channels, kept["taken"].current_token)) == names(1, 4)

        play_requests(channel_place, before, after)

    # --- leased takes -----------------------------------------------------------------------------

    def test_a_leased_message_is_one_workers_and_readers_see_it_until_it_is_acked(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 5))
            mine = await ask(channels, leased(max_messages=2))
            yours = await ask(channels, leased(max_messages=2), identity=YOU)
            assert (ids_of(mine), ids_of(yours)) == (names(1, 2), names(3, 4))
            assert [one.tries for one in mine.deliveries] == [1, 1]
            assert ids_of(await ask(channels, Request(query={}, take=True))) == ["5"]
            assert ids_of(await ask(channels, leased())) == []
            assert ids_of(await ask(channels, Request(query={}))) == names(1, 4)
            answers = Answers(ack=ids_to_answer(mine))
            assert await channels.source.settle("c", answers) == SettlementResult(acked=2)
            assert await channels.source.settle("c", answers) == SettlementResult(acked=2)
            assert ids_of(await ask(channels, Request(query={}))) == names(3, 4)
            await channel_place.clock.advance(11_000)
            again = await ask(channels, leased())
            assert ids_of(again) == names(3, 4)

        play_requests(channel_place, scenario)

    def test_a_message_comes_again_when_its_lease_ends_and_only_the_last_lease_counts(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 3))
            first = await ask(channels, leased(max_messages=3))
            await channel_place.clock.advance(10_000)
            second = await ask(channels, leased(max_messages=2), identity=YOU)
            assert ids_of(second) == names(1, 2)
            assert [one.tries for one in second.deliveries] == [2, 2]
            settled = await channels.source.settle("c", Answers(ack=ids_to_answer(first)))
            assert settled == SettlementResult(acked=1, stale=ids_to_answer(first)[:2])
            await channels.channel("c").append(numbered(4, 4))
            await channel_place.clock.advance(10_000)
            assert ids_of(await ask(channels, leased())) == ["1", "2", "4"]

        play_requests(channel_place, scenario)

    def test_a_nak_gives_a_message_back_at_once_or_later(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 2))
            one, two = ids_to_answer(await ask(channels, leased()))
            waiting = asyncio.create_task(ask(channels, leased(wait_ms=5_000)))
            await channel_place.clock.sleep(0)
            assert await channels.source.settle("c", Answers(nak=(one,))) == SettlementResult(
                returned=1
            )
            assert ids_of(await waiting) == ["1"]
            delayed = Answers(nak=(two,), delay_ms=3_000)
            assert await channels.source.settle("c", delayed) == SettlementResult(returned=1)
            await channel_place.clock.advance(2_999)
            assert ids_of(await ask(channels, leased())) == []
            await channel_place.clock.advance(1)
            assert ids_of(await ask(channels, leased())) == ["2"]
            assert await channels.source.settle("c", delayed) == SettlementResult(stale=(two,))

        play_requests(channel_place, scenario)

    def test_what_was_tried_too_often_is_a_dead_letter_with_the_error(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 3))
            for number in (1, 2):
                (id, _, third) = ids_to_answer(await ask(channels, leased(max_tries=2)))
                failed = Answers(nak=(id,), ack=(third,) if number == 2 else (), error="no paper")
                settled = await channels.source.settle("c", failed)
                assert (settled.returned, settled.buried) == (1, number - 1)
                await channel_place.clock.advance(10_000)
            assert ids_of(await ask(channels, leased())) == []
            letters = await buried_in(channels)
            assert [(one.position, one.attempts, one.code) for one in letters] == [
                (1, 2, "worker.failed"),
                (2, 2, "channel.lease_expired"),
            ]
            assert letters[0].message == "no paper"
            assert ids_of(await ask(channels, Request(query={}))) == []

        play_requests(channel_place, scenario)

    def test_leases_and_acks_outlive_restart(self, channel_place: ChannelPlace) -> None:
        kept: list[str] = []

        async def before(channels: LoggedChannels) -> None:
            await channels.channel("c").append(numbered(1, 4))
            kept.extend(ids_to_answer(await ask(channels, leased(max_messages=3))))
            await channels.source.settle("c", Answers(ack=(kept[0],)))

        async def after(channels: LoggedChannels) -> None:
            assert ids_of(await ask(channels, leased(lease_ms=60_000))) == ["4"]
            assert await channels.source.settle("c", Answers(ack=(kept[1],))) == SettlementResult(
                acked=1
            )
            await channel_place.clock.advance(10_000)
            assert ids_of(await ask(channels, leased())) == ["3"]

        play_requests(channel_place, before, after)
