import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.mediation.formats.base import Document
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.formats.writers import write_event_data
from rapport.mediation.formats.xml_format import XmlFormat
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.rejections import RejectedValue

FEED = """<?xml version="1.0"?>
<f:feed xmlns:f="urn:feed" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" city="POA">
  <station id="A801">
    <obs at="2026-03-02T09:00:00Z"><temp unit="Cel">21,5</temp><rain xsi:nil="true"/></obs>
    <obs at="2026-03-02T10:00:00Z"><temp unit="Cel">22,0</temp><tag>a</tag><tag>b</tag></obs>
  </station>
  <station id="A802"><obs at="2026-03-02T09:00:00Z">calm &amp; dry</obs></station>
</f:feed>"""


def test_each_element_at_the_path_is_a_document_with_numbers_as_text(read: Any) -> None:
    documents = read("xml", FEED, path="feed/station/obs")
    assert [document.value for document in documents] == [
        {"@at": "2026-03-02T09:00:00Z", "temp": {"@unit": "Cel", "#text": "21,5"}, "rain": None},
        {
            "@at": "2026-03-02T10:00:00Z",
            "temp": {"@unit": "Cel", "#text": "22,0"},
            "tag": ["a", "b"],
        },
        {"@at": "2026-03-02T09:00:00Z", "#text": "calm & dry"},
    ]
    assert [document.id for document in documents] == ["1", "2", "3"]


def test_attributes_from_above_may_belong_to_each_document(read: Any) -> None:
    documents = read("xml", FEED, path="*/station/obs", above=True)
    assert [document.value["@id"] for document in documents] == ["A801", "A801", "A802"]
    assert documents[2].value["@city"] == "POA"


def test_without_a_path_the_whole_is_one_document(read: Any) -> None:
    assert read("xml", "<t>21.5</t>") == [Document({"#text": "21.5"})]
    assert read("xml", "<t><a>1</a></t>") == [Document({"a": "1"})]


def test_octets_keep_the_encoding_that_the_document_declares(read: Any) -> None:
    octets = '<?xml version="1.0" encoding="iso-8859-1"?><t>é</t>'.encode("latin-1")
    assert read("xml", octets) == [Document({"#text": "é"})]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("<a>", "xml.not_well_formed"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "xml.doctype_refused"),
        ("<a>" * 200 + "</a>" * 200, "xml.too_deep"),
        ("<b/>", "format.no_elements"),
    ],
)
def test_bad_xml_is_refused_with_its_reason(refusal: Any, data: str, code: str) -> None:
    assert refusal("xml", data, path="a").code == code


def test_a_path_with_an_empty_step_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty step"):
        get_format("xml", {"path": "a//b"})


names = st.from_regex(r"[a-z][a-z0-9_.-]{0,5}", fullmatch=True)
texts = st.text(
    st.characters(
        codec="utf-8", exclude_categories=["Cc", "Cs", "Z"], exclude_characters="\ufffe\uffff"
    ),
    min_size=1,
    max_size=8,
)
values = st.recursive(
    texts,
    lambda below: st.dictionaries(
        names, below | st.lists(below, min_size=2, max_size=3), min_size=1, max_size=3
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(names.map("@".__add__), texts, max_size=2), st.dictionaries(names, values))
def test_written_xml_reads_back(attributes: dict[str, str], below: dict[str, Any]) -> None:
    value = {**attributes, **below}
    data, headers = write_event_data(value, FormatChoice("xml"), "reading")
    assert headers == {"datacontenttype": "application/xml"}
    expected = value or {"#text": ""}
    assert XmlFormat({}).documents(msgspec.json.decode(data)) == [Document(expected)]


@pytest.mark.parametrize("value", [{"a b": 1}, {"a": [[1]]}, {"@ ": 1}, {"a": "\x00"}])
def test_a_value_that_xml_cannot_represent_is_not_written(value: dict[str, Any]) -> None:
    with pytest.raises(RejectedValue) as caught:
        write_event_data(value, FormatChoice("xml"), "event")
    assert caught.value.code == "format.unwritable"


def test_an_element_with_nil_false_is_its_text(read: Any) -> None:
    instance = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    payload = f'<f {instance}><t xsi:nil="false">3</t><u xsi:nil="true"/><v xsi:nil="0"> </v></f>'
    (document,) = read("xml", payload)
    assert document.value == {"t": "3", "u": None, "v": ""}


def test_many_attributes_above_many_elements_take_little_memory(read: Any, refusal: Any) -> None:
    attributes = "".join(f" a{n}=''" for n in range(9_000))
    feed = f"<feed{attributes}>{'<obs/>' * 9_000}</feed>"
    tracemalloc.start()
    assert len(read("xml", feed, path="feed/obs")) == 9_000
    assert refusal("xml", feed, path="feed/obs", above=True).code == "xml.too_large"
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * 1024 * 1024
