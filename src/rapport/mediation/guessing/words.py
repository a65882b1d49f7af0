"""What the words of a column's name mean, in five languages. Pure. [ME-13]

Only words for what sites mostly measure; others stand for themselves.
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
"""English word -> the words that mean it; one word may mean two things together."""
QUANTITIES = ("temperature", "humidity", "wind", "pressure", "rain", "radiation")
"""What is measured."""
DISTINCT = tuple(word for word in _MEANINGS if word not in (*QUANTITIES, "speed", "mean"))
"""What makes it another quantity: the highest temperature of an hour is not the temperature."""

_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])")
_KNOWN: dict[str, tuple[str, ...]] = {}
for _meaning, _words in _MEANINGS.items():
    for _word in _words.split():
        _KNOWN[_word] = (*_KNOWN.get(_word, ()), _meaning)


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name as they stand, without accents and capitals.

    >>> words_of("relativeHumidity"), words_of("VENTO, DIREÇÃO (gr)")
    (('relative', 'humidity'), ('vento', 'direcao', 'gr'))
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return tuple(word.lower() for word in _PARTS.split(plain) if word)


def meanings_of(name: str) -> frozenset[str]:
    """What the words mean; one that is not known means itself.

    >>> sorted(meanings_of("VENTO, VELOCIDADE HORARIA"))
    ['horaria', 'speed', 'wind']
    """
    return frozenset(meaning for word in words_of(name) for meaning in _KNOWN.get(word, (word,)))


def short_name(name: str) -> str:
    """The known quantity that a name says, in a few words; empty when it says none.

    >>> short_name("TEMPERATURA MÁXIMA NA HORA ANT. (°C)"), short_name("frp")
    ('temperature-max', '')
    """
    said = meanings_of(name)
    if said.isdisjoint(QUANTITIES):
        return ""
    return "-".join(meaning for meaning in _MEANINGS if meaning in said)
