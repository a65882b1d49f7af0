"""XML from outside: what is read, what is refused, and that refusing costs little."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.xml import MAX_XML_BYTES, MAX_XML_DEPTH, MAX_XML_PARTS, check_xml, parse_xml

ORDER = """<?xml version="1.0"?>
<o:order xmlns:o="urn:orders" xmlns="urn:plain" id="7" o:kind="new">
  <item><price currency="EUR">2.50</price></item>
  <item>a<b/>c<![CDATA[<&>]]></item>
</o:order>"""


def fault(data: bytes | str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        check_xml(data)
    with pytest.raises(InvalidInput) as again:
        parse_xml(data)
    assert caught.value.code == again.value.code
    (problem,) = caught.value.problems_found()
    assert problem.line >= 1
    assert problem.column >= 1
    assert problem.code == caught.value.code
    return caught.value


def test_a_document_becomes_elements_with_local_names() -> None:
    order = parse_xml(ORDER)
    assert (order.name, order.namespace) == ("order", "urn:orders")
    assert order.attributes == {"id": "7", "{urn:orders}kind": "new"}
    assert [child.name for child in order.children] == ["item", "item"]
    first, second = order.children
    assert first.namespace == "urn:plain"
    price = first.child("price")
    assert price is not None
    assert price.text == "2.50"
    assert first.child("price", "urn:other") is None
    assert second.text == "ac<&>"
    assert [part if isinstance(part, str) else part.name for part in second.content] == [
        "a",
        "b",
        "c<&>",
    ]
    assert price.prefixes["o"] == "urn:orders"
    assert price.prefixes is first.prefixes


def test_a_namespace_may_be_declared_again_within() -> None:
    node = parse_xml('<a xmlns="urn:1"><b xmlns=""><c xmlns="urn:2"/></b><d/></a>')
    b, d = node.children
    assert (b.namespace, b.children[0].namespace, d.namespace) == ("", "urn:2", "urn:1")
    assert (b.prefixes[""], d.prefixes[""]) == ("", "urn:1")


@pytest.mark.parametrize(
    "data",
    [
        "<é>ü</é>".encode(),
        "<é>ü</é>".encode("utf-16"),
        b"\xef\xbb\xbf" + "<é>ü</é>".encode(),
        '<?xml version="1.0" encoding="UTF-16"?><é>ü</é>'.encode("utf-16"),
        '<?xml version="1.0" encoding="ISO-8859-1"?><é>ü</é>'.encode("latin-1"),
        '<?xml version="1.0" encoding="windows-1252"?><é>ü</é>'.encode("cp1252"),
        '<?xml version="1.0" encoding="UTF-16"?><é>ü</é>',
    ],
)
def test_encodings_are_read_as_declared_and_a_text_as_it_is(data: bytes | str) -> None:
    check_xml(data)
    node = parse_xml(data)
    assert (node.name, node.text) == ("é", "ü")


LAUGHING = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
LAUGHS = f'<!DOCTYPE lolz [<!ENTITY a0 "lol">{LAUGHING}]><lolz>&a9;</lolz>'


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd"><a/>',
        '<!DOCTYPE a PUBLIC "-//X//Y" "http://127.0.0.1:9/a.dtd"><a/>',
        '<!DOCTYPE a [<!ENTITY % p SYSTEM "http://127.0.0.1:9/p"> %p;]><a/>',
        '<!DOCTYPE a [<!ENTITY x "&x;">]><a>&x;</a>',
        '<!DOCTYPE a [<!ATTLIST a b CDATA "default">]><a/>',
        "<!DOCTYPE a><a/>",
        '<?xml version="1.0" standalone="yes"?>\n<!DOCTYPE a [<!ELEMENT a ANY>]><a/>',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_document_types_and_entities_are_refused(text: str, encoding: str) -> None:
    error = fault(text.encode(encoding))
    assert error.code == "xml.doctype_refused"
    assert error.hint


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"   ",
        b"text",
        b"<a>",
        b"<a></b>",
        b"<a/><b/>",
        b"<a b=1/>",
        b"<a b='1' b='2'/>",
        b"<a>&undeclared;</a>",
        b"<a>&#0;</a>",
        b"<a>&#xD800;</a>",
        b"<a>\xff</a>",
        b"<a>\x00</a>",
        b"<x:a/>",
        b"<a>]]></a>",
        b"<?xml version='1.0' encoding='UTF-8'?><a>\xe9</a>",
        b"<?xml version='1.0' encoding='UTF-16'?><a/>",
        b"<?xml version='1.0' encoding='rot13'?><n/>",
        b"<?xml version='1.0' encoding='idna'?><a/>",
        b"<?xml version='1.0' encoding='utf-7'?><a/>",
        b"<?xml version='1.0' encoding='iso-8859-99'?><a/>",
        b"<?xml version='1.0' encoding='shift_jis'?><a/>",
        "<a/>".encode("utf-32"),
        "<a>\ud800</a>",
    ],
)
def test_what_is_not_well_formed_is_refused_with_its_place(data: bytes | str) -> None:
    error = fault(data)
    assert error.code == "xml.not_well_formed"
    assert error.hint or isinstance(data, str)


def test_the_place_of_a_fault_is_told() -> None:
    (problem,) = fault(b"<a>\n  <b></c>\n</a>").problems_found()
    assert (problem.line, problem.column) == (2, 8)


def test_deep_nesting_is_refused() -> None:
    check_xml(b"<a>" * MAX_XML_DEPTH + b"</a>" * MAX_XML_DEPTH)
    assert fault(b"<a>" * (MAX_XML_DEPTH + 1)).code == "xml.too_deep"
    assert fault(b"<a>" * 1_000_000).code == "xml.too_deep"


@pytest.mark.slow
def test_large_documents_are_refused() -> None:
    assert fault(b"<a>" + b" " * MAX_XML_BYTES + b"</a>").code == "xml.too_large"
    assert fault(b"<a>" + b"<b/>" * MAX_XML_PARTS + b"</a>").code == "xml.too_large"
    assert fault(b"<a " + b"".join(b"a%d='' " % n for n in range(250_000)) + b"/>").code == (
        "xml.too_large"
    )


@settings(max_examples=300)
@given(st.binary(max_size=80) | st.text("<>a/!?[]DOCTYPE&;x='\" \n", max_size=60))
@example(b"\xfe\xff\x00<")
def test_whatever_comes_is_read_or_refused(data: bytes | str) -> None:
    try:
        check_xml(data)
    except InvalidInput as error:
        assert error.code.startswith("xml.")
        with pytest.raises(InvalidInput):
            parse_xml(data)
    else:
        parse_xml(data)


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_document_is_read_or_refused(data: st.DataObject) -> None:
    whole = ORDER.encode(data.draw(st.sampled_from(["utf-8", "utf-16"])))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 8)))
    damaged = whole[:start] + data.draw(st.binary(max_size=6)) + whole[end:]
    try:
        parse_xml(damaged)
    except InvalidInput as error:
        assert json.dumps(error.message)
