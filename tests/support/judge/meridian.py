"""Transverse Mercator a second time, by Redfearn's series over an integrated meridian: the judge of
`units/geodesy.py`. [ME-4]

Good to a millimetre within some 200 km of the meridian, at any latitude up to 80 degrees.
"""

from __future__ import annotations

import math

_A, _F = 6_378_137.0, 1 / 298.257223563
_E2 = _F * (2 - _F)
_PIECES = 200


def plan_of(latitude: float, longitude: float, origin: tuple[float, float]) -> tuple[float, float]:
    """(x, y) in metres of a place, as seen from the origin (latitude, longitude)."""
    across = (longitude - origin[1] + 180.0) % 360.0 - 180.0
    if abs(across) > 45 or abs(latitude) > 89:  # the series is of no use there
        return math.inf, math.inf
    phi, omega = math.radians(latitude), math.radians(across)
    sine, cosine, t = math.sin(phi), math.cos(phi), math.tan(phi)
    nu = _A / math.sqrt(1 - _E2 * sine**2)
    psi = (1 - _E2 * sine**2) / (1 - _E2)
    c = omega * cosine
    east = (
        nu
        * c
        * (
            1
            + c**2 / 6 * (psi - t**2)
            + c**4
            / 120
            * (4 * psi**3 * (1 - 6 * t**2) + psi**2 * (1 + 8 * t**2) - psi * 2 * t**2 + t**4)
            + c**6 / 5040 * (61 - 479 * t**2 + 179 * t**4 - t**6)
        )
    )
    north = (
        nu
        * sine
        * omega
        * c
        / 2
        * (
            1
            + c**2 / 12 * (4 * psi**2 + psi - t**2)
            + c**4
            / 360
            * (
                8 * psi**4 * (11 - 24 * t**2)
                - 28 * psi**3 * (1 - 6 * t**2)
                + psi**2 * (1 - 32 * t**2)
                - psi * 2 * t**2
                + t**4
            )
            + c**6 / 20160 * (1385 - 3111 * t**2 + 543 * t**4 - t**6)
        )
    )
    return east, north + _arc(origin[0], latitude)


def lat_lon_of(x: float, y: float, origin: tuple[float, float]) -> tuple[float, float]:
    """(latitude, longitude) of a place on the plan: improved until the plan agrees."""
    latitude, longitude = origin
    metres = math.radians(1) * _A
    for _ in range(60):
        found_x, found_y = plan_of(latitude, longitude, origin)
        latitude += (y - found_y) / metres
        longitude += (x - found_x) / (metres * math.cos(math.radians(latitude)))
    return latitude, (longitude + 180.0) % 360.0 - 180.0


def _arc(one: float, other: float) -> float:
    """Metres along a meridian between two latitudes, by Simpson's rule."""
    begin, step = math.radians(one), math.radians(other - one) / _PIECES
    ends = _bend(begin) + _bend(begin + _PIECES * step)
    odd = sum(_bend(begin + n * step) for n in range(1, _PIECES, 2))
    even = sum(_bend(begin + n * step) for n in range(2, _PIECES, 2))
    return step / 3 * (ends + 4 * odd + 2 * even)


def _bend(phi: float) -> float:
    return float(_A * (1 - _E2) / (1 - _E2 * math.sin(phi) ** 2) ** 1.5)
