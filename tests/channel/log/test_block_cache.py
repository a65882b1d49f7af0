"""The cache of decoded blocks: finds by position, lets go of the oldest. [CH-13]"""

from __future__ import annotations

from rapport.channel.log.logged_channel import DecodedBlock, DecodedBlocks
from rapport.core.event import Event


def block(first: int, count: int, size: int = 10) -> DecodedBlock:
    events = [Event("s", str(first + number), "t", "", 0) for number in range(count)]
    return DecodedBlock(first, 99, events, size)


def test_a_block_is_found_by_any_position_it_holds():
    blocks = DecodedBlocks()
    for first in (21, 1, 11):
        blocks.put("c", block(first, 10))
    for position in range(1, 31):
        found = blocks.holding("c", position)
        assert found.first == (position - 1) // 10 * 10 + 1
    assert blocks.holding("c", 31) is None
    assert blocks.holding("c", 0) is None
    assert blocks.holding("other", 1) is None


def test_events_after_a_position_come_in_order_up_to_the_limit():
    one = block(11, 5)
    assert [item.position for item in one.after(12, 2)] == [13, 14]
    assert [item.position for item in one.after(0, 100)] == [11, 12, 13, 14, 15]
    assert one.after(15, 5) == []
    assert one.after(0, 1)[0].received == 99


def test_the_least_recently_used_block_leaves_first():
    blocks = DecodedBlocks(limit_bytes=100)
    for first in (1, 2, 3, 4):
        blocks.put("c", block(first, 1, size=25))
    assert blocks.holding("c", 1) is not None
    blocks.put("d", block(1, 1, size=25))
    assert blocks.holding("c", 2) is None
    assert blocks.holding("c", 1) is not None


def test_a_block_that_would_push_out_all_others_is_not_kept():
    blocks = DecodedBlocks(limit_bytes=100)
    blocks.put("c", block(1, 1, size=90))
    assert blocks.holding("c", 1) is None
