"""The words of column names: quantities in five languages, slugs. Pure. [ME-11, ME-13]

Other words stand for themselves.
"""

from __future__ import annotations

import re
import unicodedata

_MEANINGS = {
    "temperature": "temp temperature temperatura temperatur lufttemperatur",
    "humidity": "humidity humid hum rh umidade humedad humidite feuchte feuchtigkeit luftfeuchte "
    "luftfeuchtigkeit",
    "wind": "wind vento viento vent windspeed windgeschwindigkeit windrichtung winddirection "
    "windgust windboe",
    "pressure": "pressure press barometric pressao presion pression druck luftdruck",
    "rain": "rain rainfall precipitation precip precipitacao precipitacion chuva lluvia pluie "
    "niederschlag regen",
    "radiation": "radiation irradiance radiacao radiacion irradiancia rayonnement strahlung "
    "globalstrahlung",
    "speed": "speed velocity velocidade velocidad vitesse geschwindigkeit windspeed "
    "windgeschwindigkeit",
    "gust": "gust gusts rajada rafaga rafale boe boen windgust windboe",
    "direction": "direction direcao direccion richtung windrichtung winddirection",
    "dew": "dew dewpoint orvalho rocio rosee taupunkt",
    "wet": "wet umido humedo humide feucht",
    "soil": "soil ground solo suelo boden",
    "water": "water agua eau wasser",
    "indoor": "indoor inside interior interno innen interieur",
    "outdoor": "outdoor outside exterior externo aussen exterieur",
    "max": "max maximum maxima maximo maximale hoechst",
    "min": "min minimum minima minimo minimale tiefst",
    "mean": "mean average avg media medio moyenne mittel mittlere",
}
"""Words by English meaning; a word may have two meanings."""
QUANTITIES = ("temperature", "humidity", "wind", "pressure", "rain", "radiation")
"""Measured quantities."""
DISTINCT = tuple(word for word in _MEANINGS if word not in (*QUANTITIES, "speed", "mean"))
"""Words that denote another quantity: the maximum temperature of an hour is not the temperature."""

_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])")
_KNOWN: dict[str, tuple[str, ...]] = {}
for _meaning, _words in _MEANINGS.items():
    for _word in _words.split():
        _KNOWN[_word] = (*_KNOWN.get(_word, ()), _meaning)


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name in lower case without accents.

    >>> words_of("relativeHumidity"), words_of("VENTO, DIREÇÃO (gr)")
    (('relative', 'humidity'), ('vento', 'direcao', 'gr'))
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return tuple(word.lower() for word in _PARTS.split(plain) if word)


def meanings_of(name: str) -> frozenset[str]:
    """The meanings of the words; an unknown word means itself.

    >>> sorted(meanings_of("VENTO, VELOCIDADE HORARIA"))
    ['horaria', 'speed', 'wind']
    """
    return frozenset(meaning for word in words_of(name) for meaning in _KNOWN.get(word, (word,)))


def short_name(name: str) -> str:
    """The known quantity in a name, in a few words; empty if there is none.

    >>> short_name("TEMPERATURA MÁXIMA NA HORA ANT. (°C)"), short_name("frp")
    ('temperature-max', '')
    """
    meanings = meanings_of(name)
    if meanings.isdisjoint(QUANTITIES):
        return ""
    return "-".join(meaning for meaning in _MEANINGS if meaning in meanings)


_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


_BRACKETED = re.compile(r"[(\[].*")


_LONGEST = 40


def slug(text: str) -> str:
    """A name from any text: lower-case letters, digits and dashes.

    >>> slug("TEMPERATURA DO AR - BULBO SECO, HORÁRIA (°C)")
    'temperatura-do-ar-bulbo-seco-horaria'
    """
    plain = unicodedata.normalize("NFKD", _BRACKETED.sub("", text) or text)
    ascii_only = plain.encode("ascii", "ignore").decode().lower()
    return _NOT_IN_NAMES.sub("-", ascii_only)[:_LONGEST].strip("-")
