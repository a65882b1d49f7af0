"""Numbers that the source prints. What its figures only draw is not known, nor guessed. [EN-12]"""

from __future__ import annotations

from typing import Final, NamedTuple

TABLE_5: Final[dict[float, tuple[int, int]]] = {
    0.0: (36_200, 36_200),
    0.1: (42_600, 42_549),
    0.2: (52_522, 52_105),
    0.3: (66_474, 65_458),
    0.4: (86_106, 85_546),
    0.5: (120_407, 112_137),
    0.6: (314_844, 162_826),
    0.7: (392_155, 193_898),
    0.8: (511_723, 257_829),
    0.9: (639_448, 295_620),
    1.0: (958_077, 397_807),
}
"""Messages sent by the rebroadcast probability: simple, and with the boundary of 0.5 km."""

AGE_SIMPLE_S: Final = 475.0
"""Median age of knowledge of plain gossip (figure 34, section 7.4)."""
AGE_BOUNDARY_S: Final = 32.0
AGE_PULLING_S: Final = 6.0
"""Of the configurations of table 6."""
PULLING_THIRD_S: Final = 20.0
"""Only configurations whose third quartile is below are shown in figure 33."""
PULLING_MEDIANS_S: Final = (6.0, 16.0)
"""The range of the medians shown there."""


class PullingRow(NamedTuple):
    """A row of table 6."""

    configuration: int
    header_ms: int
    pull_ms: int
    probability: float
    local_ms: int
    global_ms: int


TABLE_6: Final = (
    PullingRow(24, 5_000, 11_000, 0.9, 9_000, 13_000),
    PullingRow(25, 5_000, 9_000, 0.9, 9_000, 13_000),
    PullingRow(26, 5_000, 7_000, 0.9, 9_000, 13_000),
    PullingRow(27, 5_000, 5_000, 0.9, 9_000, 13_000),
    PullingRow(28, 5_000, 9_000, 0.9, 11_000, 17_000),
    PullingRow(29, 5_000, 11_000, 0.9, 13_000, 21_000),
    PullingRow(30, 5_000, 11_000, 0.9, 11_000, 17_000),
    PullingRow(31, 5_000, 7_000, 0.9, 11_000, 17_000),
    PullingRow(33, 5_000, 9_000, 0.9, 13_000, 21_000),
    PullingRow(34, 9_000, 15_000, 0.9, 11_000, 17_000),
    PullingRow(35, 5_000, 5_000, 0.9, 11_000, 17_000),
    PullingRow(37, 5_000, 7_000, 0.9, 13_000, 21_000),
    PullingRow(38, 7_000, 13_000, 0.9, 11_000, 17_000),
    PullingRow(39, 7_000, 11_000, 0.9, 13_000, 21_000),
    PullingRow(40, 5_000, 5_000, 0.9, 13_000, 21_000),
    PullingRow(41, 7_000, 9_000, 0.9, 11_000, 17_000),
    PullingRow(42, 9_000, 9_000, 0.9, 11_000, 17_000),
    PullingRow(46, 7_000, 11_000, 0.9, 11_000, 17_000),
    PullingRow(50, 7_000, 13_000, 0.9, 13_000, 21_000),
    PullingRow(54, 7_000, 7_000, 0.9, 11_000, 17_000),
    PullingRow(89, 7_000, 9_000, 0.9, 13_000, 21_000),
)

TABLE_8: Final = (
    (4_782, "1 sends KN 1"),
    (4_883, "2 receives KN 1 from 1"),
    (7_795, "2 sends HD 1"),
    (7_896, "3 receives HD 1 from 2"),
    (8_837, "3 sends HD 1"),
    (8_938, "6 receives HD 1 from 3"),
    (11_585, "6 sends PL 1"),
    (11_686, "5 receives PL 1 from 6"),
    (14_984, "5 sends KN 1"),
    (15_186, "9 receives KN 1"),
    (25_186, "9 receives KN 1"),
    (35_186, "9 receives KN 1"),
)
TABLE_9: Final = (
    (21_408, "9 sends PL 1"),
    (21_585, "3 sends PL 1"),
    (21_585, "6 sends PL 1"),
    (24_850, "8 sends PL 1"),
    (28_657, "2 sends PL 1"),
    (29_726, "4 sends PL 1"),
    (29_850, "8 stops pulling 1"),
    (31_408, "9 stops pulling 1"),
    (33_657, "2 stops pulling 1"),
)

RUMOUR_ROUNDS: Final[dict[int, int]] = {1_000: 9, 10_000: 10, 100_000: 14, 1_000_000: 15}
"""Rounds of gossip with fan-out 3 until all know, as others measured; not from the source."""
