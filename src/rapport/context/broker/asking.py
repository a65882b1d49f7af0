"""Searches that began here: rounds, deadlines, and one answer to who asked. [CX-3, CX-5]"""

from __future__ import annotations

from collections.abc import Callable

from rapport.context.broker.walking import Walking
from rapport.context.broker.workplace import Workplace
from rapport.context.messages import NOT_FOUND, TOO_BUSY, Ask, Found, Question, Refused
from rapport.context.search.strategies import WALK, make_strategy
from rapport.overlay.liveness import UNKNOWN_MS
from rapport.transport.base import Address, Now

Ended = Found | Refused
Answered = Callable[[Ended, Now], None]

OWN_CONSUMER: Address = ("own", 0)
"""The first on the path of a search that the broker makes for itself."""

_PAUSES = 32
_MARGIN_MS = 200.0
_MOST_ROUNDS = 40
NO_NEIGHBOURS = "this broker has no neighbours to ask"
DEADLINE = "nothing was found before the deadline"
EXHAUSTED = "nothing was found"
NOT_BEGUN = "what was found is not valid yet by this broker's clock"


class Search:
    """A search under way."""

    __slots__ = (
        "answered",
        "away",
        "consumer",
        "deadline_ms",
        "doubtful",
        "fresh",
        "id",
        "identity",
        "question",
        "round",
        "walkers",
        "within_ms",
        "without",
    )

    def __init__(
        self, id: int, consumer: Address, question: Question, within_ms: int, identity: str
    ) -> None:
        self.id, self.consumer, self.question = id, consumer, question
        self.within_ms, self.identity = within_ms, identity
        self.deadline_ms = 0.0
        self.round = 0
        self.walkers = 0
        """How many set out; each has its number."""
        self.away: set[int] = set()
        """Walkers that did not come home yet."""
        self.doubtful = False
        self.without: tuple[Address, ...] = ()
        self.fresh = False
        self.answered: Answered


class Asking:
    """The searches of this broker's clients and its own.

    Each ends exactly once, by Found or Refused, a tenth of its time (at most 0.2 s) before its
    deadline at the latest. What comes afterwards finds no search and does nothing.
    """

    __slots__ = ("_place", "_searches", "_strategy", "_walking")

    def __init__(self, place: Workplace, walking: Walking) -> None:
        self._place, self._walking = place, walking
        self._searches: dict[int, Search] = {}
        self._strategy = make_strategy(place.settings.search)

    def __len__(self) -> int:
        """How many searches are under way."""
        return len(self._searches)

    def begin(
        self,
        consumer: Address,
        question: Question,
        within_ms: int,
        identity: str,
        now: Now,
        answered: Answered,
        without: tuple[Address, ...] = (),
        *,
        fresh: bool = False,
    ) -> None:
        """Looks in the network for what is not here; `answered` is called once, perhaps at once.
        Copies of what `without` held are no answer, and no copy at all if it is to be `fresh`.
        """
        place = self._place
        limits = place.settings.limits
        within_ms = min(max(within_ms, 1), limits.within_ms)
        id = place.chance.getrandbits(63)
        search = Search(id, consumer, question, within_ms, identity)
        search.answered, search.without, search.fresh = answered, without, fresh
        if len(self._searches) >= limits.searches:
            answered(_refusal(search, TOO_BUSY, "this broker has too many searches under way"), now)
            return
        # A refusal must reach the consumer in time, also when it has to ask for it once more.
        search.deadline_ms = now.steady_ms + within_ms - min(within_ms / 10, _MARGIN_MS)
        self._searches[id] = search
        place.counts["searches"] += 1
        place.agenda.at(search.deadline_ms, self._time_is_up, id)
        self._launch(search, now)

    def found(self, found: Found, now: Now) -> None:
        """A walker or flood brought the record home."""
        search = self._searches.get(found.search)
        if search is None:
            self._place.counts["late_answers"] += 1
            return
        record, question = found.record, search.question
        if record.entity != question.entity or record.scope != question.scope:
            self._place.counts["malformed"] += 1
            return
        if record.valid_from > now.wall_ms:
            self._await_beginning(search, found, now)
        elif record.valid_until > now.wall_ms:
            del self._searches[search.id]
            search.answered(found, now)

    def _await_beginning(self, search: Search, found: Found, now: Now) -> None:
        """It is valid where it was found; by this clock, which is behind, it is in a moment."""
        begins_ms = now.steady_ms + (found.record.valid_from - now.wall_ms)
        if begins_ms >= search.deadline_ms:
            self._end(search, NOT_FOUND, NOT_BEGUN, now)
            return
        search.round += 1  # and none sets out: what was planned for the one before does nothing
        self._place.agenda.at(begins_ms, self.found, found)

    def refused(self, refused: Refused, now: Now) -> None:
        """A walker came home with nothing. When all did, the search has failed, unless some broker
        did not answer them: then it begins again after a pause.
        """
        search = self._searches.get(refused.search)
        if search is None or refused.walker not in search.away:
            return
        search.away.discard(refused.walker)
        search.doubtful |= refused.doubtful
        if search.away:
            return
        if not search.doubtful:
            self._end(search, refused.status, refused.why or EXHAUSTED, now)
            return
        pause_ms = search.within_ms / _PAUSES
        self._place.agenda.at(now.steady_ms + pause_ms, self._next, search.id, search.round)

    def _launch(self, search: Search, now: Now) -> None:
        place = self._place
        launches = self._strategy.launches(search.round)
        if not place.membership.neighbours or not launches or search.round >= _MOST_ROUNDS:
            why = EXHAUSTED if place.membership.neighbours else NO_NEIGHBOURS
            self._end(search, NOT_FOUND, why, now)
            return
        search.doubtful = False
        left_ms = int(search.deadline_ms - now.steady_ms)
        wait_ms = self._strategy.patience_ms(search.round, search.within_ms, self._hop_ms())
        place.agenda.at(now.steady_ms + wait_ms, self._next, search.id, search.round)
        first = search.walkers
        search.walkers += len(launches)
        # Walkers of earlier rounds may still bring it home; their refusals count no more.
        search.away = {number for number, one in enumerate(launches, first) if one.travels == WALK}
        for number, launch in enumerate(launches, first):
            ask = Ask(
                search.id,
                number,
                0,
                search.question,
                (search.consumer,),
                left_ms,
                launch.hops,
                launch.travels,
                search.identity,
                without=search.without,
                fresh=search.fresh,
            )
            self._walking.take(ask, None, now)

    def _next(self, id: int, round_number: int, now: Now) -> None:
        """A round is over, unless the search is or has begun another."""
        search = self._searches.get(id)
        if search is not None and search.round == round_number:
            self._place.counts["rounds_again"] += 1
            search.round += 1
            self._launch(search, now)

    def _time_is_up(self, id: int, now: Now) -> None:
        search = self._searches.get(id)
        if search is not None:
            self._end(search, NOT_FOUND, DEADLINE, now)

    def _end(self, search: Search, status: int, why: str, now: Now) -> None:
        if self._searches.pop(search.id, None) is not None:
            search.answered(_refusal(search, status, why), now)

    def _hop_ms(self) -> float:
        membership = self._place.membership
        return max(map(membership.timeout_ms, membership.neighbours), default=UNKNOWN_MS)


def _refusal(search: Search, status: int, why: str) -> Refused:
    return Refused(search.id, 0, 0, (search.consumer,), status, why)
