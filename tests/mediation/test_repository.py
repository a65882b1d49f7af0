"""The active interpretations; changes in one step."""

from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository


def test_a_swap_replaces_everything_and_is_a_new_generation(feeds):
    repository = Repository(ActiveInterpretations(feeds))
    before = repository.generation
    repository.swap(ActiveInterpretations({"cameras": feeds["cameras"]}))
    assert repository.generation == before + 1
    assert list(repository.in_force.fields) == ["cameras"]


def test_changing_the_mapping_afterwards_changes_nothing(feeds):
    given = dict(feeds)
    repository = Repository(ActiveInterpretations(given))
    given.clear()
    assert sorted(repository.in_force.fields) == ["badge-readers", "cameras"]
