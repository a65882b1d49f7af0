"""What both sides need to know: weights, and products in German and English."""

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
