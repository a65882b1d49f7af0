"""Points tell how accurate they are while everybody goes on speaking as before."""

from rapport.mediation.conversion.conversions import Call, converts
from rapport.mediation.interpretations.type_changes import ReplaceType
from rapport.mediation.types import Attribute, ComplexType

CHANGES = [
    ReplaceType(
        old="Point",
        new=ComplexType(
            "Fix", (Attribute("x", "m"), Attribute("y", "m"), Attribute("accuracy", "m"))
        ),
        forth=converts("guess", "Point", "Fix", Call("functions:with_accuracy")),
        back=converts("forget", "Fix", "Point", Call("functions:without_accuracy")),
    )
]
