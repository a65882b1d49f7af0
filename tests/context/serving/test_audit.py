"""The audit log is whole, and bounded. [CX-9]"""

from rapport.context.audit import AuditLine, AuditTrail
from rapport.core.context_record import EntityRef

ROOM = EntityRef("room", "r3")


def test_reads_of_a_minute_are_one_line() -> None:
    trail = AuditTrail()
    for at in range(0, 50_000, 100):
        trail.read("ana", ROOM, 102, at)
    assert trail.due(59_000) == []
    (line,) = trail.due(60_000)
    assert line == AuditLine(
        what="read", identity="ana", entity="room/r3", status=102, since=0, until=49_900, count=500
    )
    assert trail.due(200_000) == []


def test_identities_entities_and_outcomes_are_distinguished() -> None:
    trail = AuditTrail()
    trail.read("ana", ROOM, 102, 0)
    trail.read("ben", ROOM, 102, 0)
    trail.read("ana", EntityRef("room", "r4"), 102, 0)
    trail.read("ana", ROOM, 202, 0)
    assert len(trail.due(0, all_of_it=True)) == 4


def test_each_refusal_is_a_line_until_there_are_too_many() -> None:
    trail = AuditTrail()
    for at in range(1_000):
        trail.refused("eve", at, entity="room/r3", scope="status", status=401, why="put")
    assert len(trail.due(1_000)) == 100
    (rest,) = trail.due(61_000)
    assert (rest.what, rest.identity, rest.count) == ("refused", "eve", 900)


def test_many_readers_do_not_fill_the_memory() -> None:
    trail = AuditTrail()
    counted = 0
    for number in range(25_000):
        trail.read(f"reader {number}", ROOM, 102, number)
        counted += sum(line.count for line in trail.due(0)) if number % 1_000 == 0 else 0
    assert len(trail._reads) <= 10_000
    counted += sum(line.count for line in trail.due(0, all_of_it=True))
    assert counted == 25_000


def test_a_clock_that_is_set_back_ends_the_minute() -> None:
    trail = AuditTrail()
    trail.read("ana", ROOM, 102, 100_000)
    assert len(trail.due(10_000)) == 1


def test_equal_lines_are_different_events() -> None:
    line = AuditLine(what="refused", identity="eve", since=1, until=1, count=1)
    assert (
        line.to_event(source="context", number=1).id != line.to_event(source="context", number=2).id
    )
