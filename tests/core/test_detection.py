from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import (
    UNDECIDED,
    Detection,
    Undecided,
    detection_lines,
    identity_order,
    unique_undecided,
)
from rapport.core.event import CHANCE_BYTES, content_id, id_ends, id_start, time_ordered_id

DETECTIONS = st.builds(
    Detection,
    policy=st.sampled_from(["a", "b"]),
    time=st.integers(0, 5),
    bindings=st.dictionaries(st.sampled_from("ABR"), st.sampled_from(["1", "10", "9", "r1"])),
    causes=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["e1", "e10", "e9"])), max_size=2
    ).map(lambda causes: tuple(sorted(causes))),
)


def test_the_line_has_the_fixed_form() -> None:
    found = Detection(
        policy="name",
        time=1005061,
        bindings={"R": "53", "A": "182"},
        causes=((1000061, "e10"),),
    )
    assert detection_lines([found]) == (
        b'{"policy":"name","time":1005061,"bindings":{"A":"182","R":"53"},"causes":["e10"]}\n'
    )


def test_identities_of_digits_sort_by_number_before_others() -> None:
    assert sorted(["r2", "10", "9", "r10"], key=identity_order) == ["9", "10", "r10", "r2"]


@given(st.lists(DETECTIONS, max_size=6), st.randoms())
def test_the_output_does_not_depend_on_the_order_found(
    found: list[Detection], chance: object
) -> None:
    shuffled = list(found)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert detection_lines(shuffled + found) == detection_lines(found)


@given(DETECTIONS)
def test_a_detection_survives_the_channel(found: Detection) -> None:
    assert Detection.from_event(found.to_event(source="here")) == found


def test_content_ids_tell_parts_apart() -> None:
    assert content_id("a", "bc") != content_id("ab", "c")
    assert content_id("a") == content_id("a")


@given(st.integers(0, 2**48 - 1), st.integers(1, 40), st.randoms(use_true_random=False))
def test_many_time_ordered_ids_are_those_made_one_by_one(time_ms, count, random) -> None:
    chance = random.randbytes(CHANCE_BYTES * count)
    each = [chance[at : at + CHANCE_BYTES] for at in range(0, len(chance), CHANCE_BYTES)]
    many = [id_start(time_ms) + end for end in id_ends(chance)]
    assert many == [time_ordered_id(time_ms, one) for one in each]


def test_time_ordered_ids_sort_by_time() -> None:
    assert time_ordered_id(1, b"\xff" * 10) < time_ordered_id(2, bytes(10))


@given(DETECTIONS, st.lists(st.sampled_from(["gate", "cameras"]), unique=True).map(sorted))
def test_what_is_undecided_survives_the_channel_and_is_no_detection(
    found: Detection, silent: list[str]
) -> None:
    unsure = Undecided.of(found, tuple(silent))
    event = unsure.to_event(source="site")
    assert event.type == UNDECIDED
    assert Undecided.from_event(event) == unsure
    assert event.id == unsure.id() != found.id()
    assert Undecided.of(found, (*silent, "x")).id() != unsure.id()
    assert unique_undecided([unsure, unsure]) == [unsure]
