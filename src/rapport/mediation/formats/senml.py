"""SenML (RFC 8428) in JSON: measurements with units and times, base fields resolved. [ME-13]

Records of one base name and time are one document: `[{"bn": "urn:dev:ow:10e2:", "bt": 1276020076,
"n": "temperature", "u": "Cel", "v": 23.5}]` becomes `{"device": "urn:dev:ow:10e2", "temperature":
23.5}` with unit and time. A record with an empty base name or name gives `value`. CBOR, XML and EXI
forms are not supported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.times import from_epoch
from rapport.mediation.formats.base import (
    MAX_DOCUMENTS,
    Document,
    bad_option,
    json_of,
    read_options,
)
from rapport.mediation.rejections import RejectedValue

DEVICE, VALUE, SUM = "device", "value", "_sum"
_VERSION = 10
_RELATIVE_BELOW = 2.0**28
"""Smaller values are relative to now, not to 1970 (RFC 8428, 4.5.3)."""
_SEPARATORS = ":/"
_LONGEST_NAME = 256
_VALUES = ("v", "vs", "vb", "vd")
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("bt", "bv", "bs", "t", "ut", "v", "s"), (int, float)),
    **dict.fromkeys(("bn", "bu", "n", "u", "vs", "vd"), (str,)),  # codespell:ignore
    "bver": (int,),
    "vb": (bool,),
}
FIELDS = frozenset(_KINDS)
"""The fields of records."""


class SenmlOptions(msgspec.Struct, frozen=True):
    split: str = ""
    """A character that separates device and attribute in a full name (its last occurrence), for
    packs without base names. Empty: the base name is the device.
    """


class SenmlFormat:
    """Each event is a pack of its own with its own base fields."""

    name = "senml"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._split = read_options(SenmlOptions, self.name, options).split
        if len(self._split) > 1:
            raise bad_option(self.name, "split is one sign", 'such as split = "/"')

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        """See Format; relative times count from the time of the envelope."""
        pack = json_of(event)
        if isinstance(pack, dict):
            pack = [pack]  # a single record, as in streamed lists
        if not isinstance(pack, list) or not pack:
            raise _refused("a pack is a list of records, at least one")
        if len(pack) > MAX_DOCUMENTS:
            raise _refused(f"a pack has at most {MAX_DOCUMENTS:,} records", "format.too_many")
        gathered = _DocumentBuilder()
        base = _BaseFields()
        for number, record in enumerate(pack, start=1):
            _check_record(record, number)
            base.take(record)
            self._add(gathered, base, record, number, event.time)
        return gathered.documents()

    def _add(
        self,
        gathered: _DocumentBuilder,
        base: _BaseFields,
        record: dict[str, Any],
        number: int,
        now_ms: int,
    ) -> None:
        values = [name for name in _VALUES if name in record]
        has_sum = "s" in record
        if len(values) > 1:
            raise _refused(f"record {number} has the values {' and '.join(values)}; one is allowed")
        if not values and not has_sum:
            if {"n", "t", "u", "ut"} & record.keys():
                raise _refused(f"record {number} has neither value nor sum")
            return  # only base fields
        device, attribute = self._named(base.name, record.get("n", ""), number)
        # The base unit applies to numbers; texts and booleans have none.
        is_number = has_sum or "v" in record
        unit = record.get("u", base.unit if is_number else "")
        time = _time(_plus(record.get("t", 0), base.time, number), number, now_ms)
        if values:
            found = record[values[0]]
            value = _plus(found, base.value, number) if values[0] == "v" else found
            gathered.add(device, time, attribute, value, unit)
        if has_sum:
            total = _plus(record["s"], base.sum, number)
            gathered.add(device, time, attribute + SUM, total, unit)

    def _named(self, base_name: str, name: str, number: int) -> tuple[str, str]:
        whole = base_name + name
        if not whole or len(whole) > _LONGEST_NAME or not whole.isprintable():
            raise _refused(f"record {number} has no name, or one that is not printable or too long")
        device, attribute = self._parted(base_name, name)
        if not device or not attribute:
            return whole, VALUE
        if attribute == DEVICE:
            raise _refused(f"record {number}: an attribute cannot be named {DEVICE!r}")
        return device, attribute

    def _parted(self, base_name: str, name: str) -> tuple[str, str]:
        if self._split:
            device, _sign, attribute = (base_name + name).rpartition(self._split)
            return device, attribute
        if not base_name or not name:
            return "", ""
        device = base_name[:-1] if base_name[-1] in _SEPARATORS else base_name
        return device, name.lstrip(_SEPARATORS)


class _BaseFields:
    """The base fields for the following records."""

    name, unit = "", ""
    time: float = 0
    value: float = 0
    sum: float = 0

    def take(self, record: dict[str, Any]) -> None:
        self.name = record.get("bn", self.name)
        self.unit = record.get("bu", self.unit)  # codespell:ignore
        self.time = record.get("bt", self.time)
        self.value, self.sum = record.get("bv", self.value), record.get("bs", self.sum)


class _DocumentBuilder:
    """Builds one document per device and time, and another one for a repeated value."""

    def __init__(self) -> None:
        self._all: list[tuple[int | None, dict[str, Any], dict[str, str]]] = []
        self._open: dict[tuple[str, int | None], int] = {}

    def add(self, device: str, time: int | None, attribute: str, value: Any, unit: str) -> None:
        index = self._open.get((device, time))
        if index is None or attribute in self._all[index][1]:
            index = self._open[device, time] = len(self._all)
            self._all.append((time, {DEVICE: device}, {}))
        _time_ms, values, units = self._all[index]
        values[attribute] = value
        if unit:
            units[attribute] = unit

    def documents(self) -> list[Document]:
        """In the order of the records."""
        several = len(self._all) > 1
        return [
            Document(values, id=str(number) if several else "", time=time, units=units)
            for number, (time, values, units) in enumerate(self._all, start=1)
        ]


def _check_record(record: Any, number: int) -> None:
    if not isinstance(record, dict):
        raise _refused(f"record {number} is not an object")
    for field, value in record.items():
        kinds = _KINDS.get(field)
        if kinds is None:
            if field.endswith("_"):  # RFC 8428, 4.4: unknown mandatory field
                raise _refused(f"record {number}: the field {field[:40]!r} is not known")
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _refused(f"record {number}: {field!r} is of the wrong kind")
    if record.get("bver", _VERSION) > _VERSION:
        raise _refused(f"record {number}: version {record['bver']} is not known")


def _plus(value: float, base: float, number: int) -> float:
    if not base:
        return value
    try:
        found = value + base
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise _refused(f"record {number}: the value is too large", "value.not_finite")
    return found


def _time(seconds: float, number: int, now_ms: int) -> int | None:
    """None: now, the time of the envelope."""
    if seconds == 0:
        return None
    try:
        if seconds < _RELATIVE_BELOW:
            return from_epoch(now_ms + seconds * 1_000, 1)
        return from_epoch(seconds, 1_000)
    except (InvalidInput, OverflowError):
        raise _refused(f"record {number}: the time is out of range", "time.out_of_range") from None


def _refused(message: str, code: str = "format.bad_senml") -> RejectedValue:
    return RejectedValue(
        code, message, 'such as [{"bn": "dev:1:", "n": "temp", "u": "Cel", "v": 21}]'
    )
