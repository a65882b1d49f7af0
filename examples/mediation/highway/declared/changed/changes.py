"""Locations get an altitude while everybody goes on speaking as before."""

from rapport.mediation.conversion.conversions import Call, converts
from rapport.mediation.interpretations.type_changes import ReplaceType
from rapport.mediation.types import Attribute, ComplexType

CHANGES = [
    ReplaceType(
        old="Location",
        new=ComplexType(
            "Location3", (Attribute("x", "m"), Attribute("y", "m"), Attribute("altitude", "m"))
        ),
        forth=converts("up", "Location", "Location3", Call("functions:with_altitude")),
        back=converts("down", "Location3", "Location", Call("functions:without_altitude")),
    )
]
