"""What a look takes when a folder holds more than it can take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.adapters.folder import FileEntry, FileQueue


def file(number: int, changed: int | None = None) -> FileEntry:
    return FileEntry(f"f{number:03}", 1, f"{number if changed is None else changed:05}")


@given(
    stuck=st.sets(st.integers(0, 30), max_size=31),
    left=st.sets(st.integers(0, 30), max_size=31),
    most=st.integers(1, 12),
)
def test_every_file_has_its_turn_whatever_stays(stuck, left, most):
    order, there, came = FileQueue(), [file(number) for number in range(31)], []
    for _look in range(31):
        now = order.next(there, there, most)
        assert len(now) <= most
        assert len(set(now)) == len(now)
        for one in now:
            order.tried(one)
            came.append(one)
            number = int(one.name[1:])
            if number in left:
                order.leave([one])
            elif number not in stuck:
                there.remove(one)
    assert set(came) == {file(number) for number in range(31)}
    assert all(came.count(file(number)) == 1 for number in range(31) if number not in stuck - left)
    assert list(dict.fromkeys(came)) == [file(number) for number in range(31)]  # in their order


def test_what_was_tried_comes_again_also_beside_many_new_ones_and_a_changed_file_is_new():
    order, stuck = FileQueue(), file(0)
    order.tried(stuck)
    new = [file(number) for number in range(1, 30)]
    assert order.next([stuck, *new], [stuck, *new], 10) == [*new[:9], stuck]
    order.leave([stuck])
    assert order.next([stuck], [stuck], 10) == []
    changed = file(0, 77)
    assert order.next([changed], [changed], 10) == [changed]
    order.next([], [], 10)  # it has gone
    assert order.next([stuck], [stuck], 10) == [stuck]
