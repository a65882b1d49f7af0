"""`zone` of a table in the site file: the time zone of local times that say none. [UX-2]"""

from __future__ import annotations

from rapport.core.errors import InvalidInput
from rapport.kernel.fields import Fields
from rapport.units.timeformats import zone_named


def read_zone(fields: Fields) -> str:
    """The declared zone, empty without one; an unknown name is a fault at its place."""
    zone = fields.filled_text("zone", "", example='"Europe/Berlin"')
    try:
        if zone:
            zone_named(zone)
    except InvalidInput as error:
        fields.report("zone", error)
        return ""
    return zone
