"""Interpretations by name and version; changes in one step."""

import pytest

from rapport.core.errors import UnknownName
from rapport.mediation.interpretations.repository import Repository


def test_a_name_gives_the_one_in_force_and_a_stamp_every_version(feeds, load, feeds_text):
    repository = Repository(feeds)
    old = feeds["cameras"]
    new = load(feeds_text.replace('unit = "ft"', 'unit = "m"'))[0]["cameras"]
    before = repository.generation
    assert repository.put(new) == new.stamp()
    assert repository.generation == before + 1
    assert repository.get("cameras") is new
    assert repository.stamped(old.stamp()) is old
    assert repository.names() == ["badge-readers", "cameras"]


def test_an_unknown_name_says_the_nearest(feeds):
    with pytest.raises(UnknownName) as caught:
        Repository(feeds).get("camera")
    assert caught.value.code == "interpretation.unknown"
    assert caught.value.hint == "did you mean 'cameras'?"
    with pytest.raises(UnknownName):
        Repository(feeds).stamped("cameras@000000000000")


def test_replacing_puts_exactly_these_in_force(feeds):
    repository = Repository(feeds)
    repository.replace({"cameras": feeds["cameras"]})
    assert repository.names() == ["cameras"]


def test_changing_the_given_mapping_afterwards_changes_nothing(feeds):
    given = dict(feeds)
    repository = Repository(given)
    given.clear()
    assert repository.names() == ["badge-readers", "cameras"]
