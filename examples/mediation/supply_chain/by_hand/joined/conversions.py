"""What all sides need to know: weights, and products in three languages."""

KILOGRAMS_PER_POUND = 0.45359237

ENGLISH = {
    "Schraube": "screw",
    "Mutter": "nut",
    "Bohrer": "drill",
    "Leim": "glue",
    "Brett": "board",
    "Farbe": "paint",
    "Pinsel": "brush",
    "Leiter": "ladder",
}
GERMAN = {english: german for german, english in ENGLISH.items()}

TO_PORTUGUESE = {
    "Schraube": "parafuso",
    "Mutter": "porca",
    "Bohrer": "broca",
    "Leim": "cola",
    "Brett": "tábua",
    "Farbe": "tinta",
    "Pinsel": "pincel",
    "Leiter": "escada",
}
FROM_PORTUGUESE = {portuguese: german for german, portuguese in TO_PORTUGUESE.items()}


def by_way_of(first, second):
    """The events of the first module as the second would have them of the participant between."""

    def then(convert):
        def both(event):
            kind, between = convert(event)
            return second.EVENTS[kind](between)

        return both

    return {kind: then(convert) for kind, convert in first.EVENTS.items()}
