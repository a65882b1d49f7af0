from __future__ import annotations

import pytest

_INMET_HEAD = """REGIAO:;S
UF:;RS
ESTACAO:;PORTO ALEGRE - JARDIM BOTANICO
CODIGO (WMO):;A801
LATITUDE:;-30,05361111
LONGITUDE:;-51,17472221
ALTITUDE:;41,18
DATA DE FUNDACAO:;22/09/00
"""
_INMET_COLUMNS = (
    "Data;Hora UTC;PRECIPITAÇÃO TOTAL, HORÁRIO (mm);"
    "PRESSAO ATMOSFERICA AO NIVEL DA ESTACAO, HORARIA (mB);RADIACAO GLOBAL (Kj/m²);"
    "TEMPERATURA DO AR - BULBO SECO, HORARIA (°C);UMIDADE RELATIVA DO AR, HORARIA (%);"
    "VENTO, VELOCIDADE HORARIA (m/s);\n"
)


@pytest.fixture
def inmet() -> bytes:
    """A national station's year as INMET writes it: latin-1, semicolons, decimal commas."""
    rows = [
        f"2026/01/{1 + hour // 24:02};{hour % 24:02}00 UTC;0;10{hour % 9:02},4;"
        f"{'-9999' if hour % 24 < 10 else f'{412 + hour},7'};2{hour % 10},{hour % 10};"
        f"{60 + hour % 30};1,{hour % 10};\n"
        for hour in range(60)
    ]
    return (_INMET_HEAD + _INMET_COLUMNS + "".join(rows)).encode("latin-1")


@pytest.fixture
def firms() -> bytes:
    """Hotspots of a satellite as FIRMS writes them: kelvin, hours without leading zeros."""
    rows = [
        f"-30.{number:04},-51.{number:04},3{10 + number % 20}.{number % 10},1.0,1.1,"
        f"2026-01-{1 + number % 9:02},{number * 37 % 60 + 100 * (number % 24)},Terra,MODIS,"
        f"{50 + number % 40},6.1NRT,29{number % 9}.1,{5 + number % 7}.3,D\n"
        for number in range(50)
    ]
    heading = (
        "latitude,longitude,brightness,scan,track,acq_date,acq_time,satellite,instrument,"
        "confidence,version,bright_t31,frp,daynight\n"
    )
    return (heading + "".join(rows)).encode()


@pytest.fixture
def ngsi() -> bytes:
    """City stations as JSON lines of NGSI entities, without units."""
    lines = [
        f'{{"id":"station-{number % 3}","type":"WeatherObserved",'
        f'"dateObserved":{{"type":"DateTime","value":"2026-03-02T{number % 24:02}:00:00Z"}},'
        f'"temperature":{{"value":{20 + number / 10}}},'
        f'"relativeHumidity":{{"value":0.{15 + number}}},"windSpeed":{{"value":2}}}}\n'
        for number in range(30)
    ]
    return "".join(lines).encode()


@pytest.fixture
def senml() -> bytes:
    """A pack of one device."""
    return (
        b'[{"bn":"urn:dev:ow:10e2073a01080063:","bt":1.772442e9,"bu":"Cel","n":"temp","v":23.5},\n'
        b' {"n":"humidity","u":"%RH","v":40},\n {"n":"temp","t":60,"v":23.6},\n'
        b' {"n":"humidity","u":"%RH","t":60,"v":41}]'
    )
