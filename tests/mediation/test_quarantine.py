"""Rejections as events."""

from rapport.core.event import check_envelope
from rapport.mediation.quarantine.rejection_events import rejection_event
from rapport.mediation.rejections import Rejection


def test_the_same_rejection_has_the_same_id_and_another_version_another(event, badge):
    raw = event(badge)
    first = rejection_event(Rejection("a", "b", "c", raw, 5, "x@1"), "badges")
    again = rejection_event(Rejection("a", "b", "c", raw, 5, "x@1"), "badges")
    later = rejection_event(Rejection("a", "b", "c", raw, 5, "x@2"), "badges")
    assert first == again
    assert first.id != later.id


def test_an_event_of_the_longest_names_can_be_quarantined(event):
    raw = event({}, id="i" * 256, source="s" * 256, type="t" * 256)
    held = rejection_event(Rejection("a", "b", "c", raw, 5), "x" * 120)
    check_envelope(held)
    assert held.payload()["raw"]["source"] == "s" * 256
    assert "interpretation" not in held.headers
