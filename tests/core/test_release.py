from rapport.core.release import BATCH_RELEASED, REEVALUATED, RELEASE_DONE, RELEASE_REQUESTED


def test_types_of_stored_events_keep_their_names_though_modules_are_renamed() -> None:
    assert RELEASE_REQUESTED == "rapport.mediation.holding.release"
    assert BATCH_RELEASED == "rapport.mediation.released"
    assert RELEASE_DONE == "rapport.mediation.release_done"
    assert REEVALUATED == "rapport.policy.replaying.second_look"
