"""Every UN/CEFACT common code we know, held against the published list (Recommendation 20, revision
14, annexes II and III): the unit and the factor printed there. [ME-11]
"""

from __future__ import annotations

import re

import pytest

from rapport.units.catalogue import UNITS
from rapport.units.quantities import unit_named

# By the unit in which the list prints its factor: code and factor, as printed (rounded there).
PUBLISHED = {
    "K": "KEL 1, CEL 1, FAH 0.5555556, A48 0.5555556",
    "m": "MTR 1, C45 1e-9, 4H 1e-6, MMT 1e-3, CMT 1e-2, DMT 1e-1, KMT 1e3, INH 25.4e-3, FOT 0.3048,"
    " YRD 0.9144, AK 1.8288, SMI 1609.344, NMI 1852",
    "m/s": "MTS 1, C16 1e-3, 2M 1e-2, KMH 0.277778, HM 0.44704, KNT 0.514444, FS 0.3048, IU 0.0254,"
    " 2X 0.016666, H81 1.666666667e-5",
    "m/s2": "MSK 1, A73 0.3048, K40 9.80665",
    "rad": "C81 1, DD 1.745329e-2, D61 2.908882e-4, D62 4.848137e-6, C25 1e-3, A91 1.570796e-2",
    "1": "C62 1, P1 1e-2, NX 1e-3, 59 1e-6, 61 1e-9",
    "kg/m3": "KMQ 1, A93 1e-3, GP 1e-6, GQ 1e-9, 23 1e3, GL 1, M1 1e-3",
    "mol": "C34 1, C18 1e-3",
    "mmol/L": "C38 1e3, M33 1",
    "pH": "Q30 1",
    "s": "SEC 1, C47 1e-9, B98 1e-6, C26 1e-3, MIN 60, HUR 3600, DAY 86400, WEE 6.048e5",
    "Hz": "HTZ 1, KHZ 1e3, MHZ 1e6, A86 1e9",
    "1/s": "C97 1, C94 1.666667e-2, RPM 1.6667e-2",
    "count": "H87 1",
    "m2": "MTK 1, MMK 1e-6, CMK 1e-4, KMK 1e6, HAR 1e4, INK 6.4516e-4, FTK 9.290304e-2,"
    " YDK 8.361274e-1, MIK 2.589988e6",
    "m3": "MTQ 1, CMQ 1e-6, LTR 1e-3, DMQ 1e-3, MLT 1e-6, HLT 1e-1, INQ 16.387064e-6,"
    " FTQ 2.831685e-2, GLL 3.785412e-3, GLI 4.546092e-3, BLL 158.9873e-3",
    "m3/s": "MQS 1, G53 1.66667e-2, MQH 2.77778e-4, G51 1e-3, L2 1.66667e-5, E32 2.77778e-7,"
    " 41 1.66667e-8, 2L 4.719474e-4, G2 6.309020e-5",
    "kg/s": "KGS 1, E93 2.77778e-4, E18 2.77778e-1, 4U 1.259979e-4",
    "kg": "KGM 1, MC 1e-9, MGM 1e-6, GRM 1e-3, TNE 1e3, LBR 0.45359237, ONZ 2.834952e-2,"
    " STI 6.350293",
    "N": "NEW 1, B47 1e3, C78 4.448222",
    "N.m": "NU 1",
    "Pa": "PAL 1, A97 1e2, MBR 1e2, KPA 1e3, MPA 1e6, BAR 1e5, ATM 101325, HN 133.3224,"
    " F79 3.38639e3, PS 6.894757e3",
    "J": "JOU 1, KJO 1e3, 3B 1e6, GV 1e9, WHR 3.6e3, KWH 3.6e6, MWH 3.6e9, GWH 3.6e12, D35 4.184,"
    " K53 4.184e3, BTU 1.055056e3",
    "W": "WTT 1, C31 1e-3, KWT 1e3, MAW 1e6, A90 1e9, BHP 7.457e2",
    "VA": "D46 1, KVA 1e3",
    "var": "D44 1, KVR 1e3",
    "kvarh": "K3 1",
    "W/m2": "D54 1",
    "V": "VLT 1, D82 1e-6, 2Z 1e-3, KVT 1e3",
    "A": "AMP 1, B84 1e-6, 4K 1e-3, B22 1e3",
    "coulomb": "COU 1, AMH 3.6e3, E09 3.6",
    "Ohm": "OHM 1, B49 1e3, B75 1e6",
    "siemens": "SIE 1, C27 1e-3, B99 1e-6",
    "S/m": "D10 1, H61 1e-1, G42 1e-4",
    "farad": "FAR 1, 4O 1e-6, C41 1e-9, 4T 1e-12",
    "henry": "81 1",
    "tesla": "D33 1",
    "lx": "LUX 1, KLX 1e3",
    "lm": "LUM 1",
    "cd": "CDL 1",
    "cd/m2": "A24 1",
    "dB": "2N 1",
    "bit": "A99 1",
    "byte": "AD 1, 2P 1e3, 4L 1e6, E34 1e9, E35 1e12, E64 1024, E63 1048576, E62 1073741824",
    "bit/s": "B10 1, C74 1e3, E20 1e6, B80 1e9",
    "byte/s": "P93 1, P94 1e3, P95 1e6",
    "Bq": "BQL 1",
    "Bq/m3": "A19 1",
    "Sv": "D13 1, C28 1e-3",
    # The list prints a tenth of the right factor for these three; the names are unmistakable.
    "mSv/h": "P71 1, P72 1e-3, P73 1e-6",
}
ROWS = [(base, *pair.split()) for base, result in PUBLISHED.items() for pair in result.split(", ")]
_ROUNDED = 4.1e-5
"""`2X` (metre per minute) is printed with the fewest digits."""


@pytest.mark.parametrize(("base", "code", "factor"), ROWS, ids=[row[1] for row in ROWS])
def test_a_common_code_is_the_unit_of_the_published_list(base: str, code: str, factor: str) -> None:
    found, reference = unit_named(code), unit_named(base)
    assert found.dimension == reference.dimension
    size = float(found.scale / reference.scale)
    assert size == pytest.approx(float(factor), rel=_ROUNDED)


def test_no_common_code_of_ours_is_left_out() -> None:
    compared = {code for _, code, _ in ROWS}
    ours = {name for unit in UNITS for name in unit.names if re.fullmatch(r"[0-9A-Z]{2,3}", name)}
    assert sorted(ours - compared) == []
