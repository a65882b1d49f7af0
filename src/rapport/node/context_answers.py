"""What the tables of context were told: the last answer about each entity, as rows while it is
valid. [PO-2, CX-1]

Pure: answers and times in, rows and news out. A record stays the answer for as long as its provider
said, also when a later question finds nobody who has it, or an older copy; then it is gone, asked
anew or not.
"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.tables.context_source import ContextAnswer, ContextQuery


class ContextAnswers:
    """The answers by table and entity; those of entities nobody asks for any more are let go."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[str, ContextAnswer]] = {}

    def take(self, question: ContextQuery, told: Iterable[ContextAnswer]) -> list[ContextAnswer]:
        """Takes in answers to a question; returns those that are news."""
        known = self._answers.get(question.table, {})
        kept = {one: known[one] for one in question.ids if one in known}
        news = []
        for one in told:
            before = kept.get(one.id)
            answer = one.after(before)
            if before is not None and _stays(before, answer):
                continue
            if not answer.says_the_same_as(before):
                news.append(answer)
                kept[answer.id] = answer
        self._answers[question.table] = kept
        return news

    def rows(self, question: ContextQuery, now_ms: int) -> list[list[str]]:
        """A row for each entity of which something is known now, in the order of the question."""
        known = self._answers.get(question.table, {})
        found = ((one, known.get(one)) for one in question.ids)
        return [
            question.row(one, answer.values)
            for one, answer in found
            if answer is not None and answer.is_valid_at(now_ms)
        ]

    def next_change(self, now_ms: int) -> int | None:
        """When the first of what is known begins or ceases to be valid; None when nothing does."""
        times = [
            time
            for known in self._answers.values()
            for answer in known.values()
            if answer.is_found
            for time in (answer.valid_from, answer.valid_until)
            if time > now_ms
        ]
        return min(times, default=None)

    def known(self, now_ms: int) -> int:
        """How many entities something is known of."""
        every = (answer for known in self._answers.values() for answer in known.values())
        return sum(answer.is_valid_at(now_ms) for answer in every)


def _stays(before: ContextAnswer, answer: ContextAnswer) -> bool:
    """Whether what was known counts for more: it lasts while nothing is found, and of two that are
    valid the newer start counts, then the provider.
    """
    if not answer.is_found:
        return before.lasts_at(answer.time)
    older = (answer.valid_from, answer.provider) < (before.valid_from, before.provider)
    return older and before.is_valid_at(answer.time)
