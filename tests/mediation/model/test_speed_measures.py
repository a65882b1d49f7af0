"""The measuring function measures; figures are for the benchmark, not for tests. [ME-8]"""

from rapport.kernel.clock import SystemClock
from rapport.testing.mediation_speed import measure


def test_generated_transformers_are_at_least_ten_times_as_fast_as_direct_interpretation() -> None:
    figures = measure(SystemClock(), events=300, generations=20)
    rates = figures.events_per_second
    assert rates["generated: flat, 15 of 15"] > 10 * rates["reflective: flat, 15 of 15"]
    assert len(figures.generation_ms_per_1000) == 12
