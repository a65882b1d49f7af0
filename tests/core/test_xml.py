"""XML from outside: what is read, what is refused, and that refusing costs little."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from xml.parsers import expat

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.xml import (
    MAX_XML_BYTES,
    MAX_XML_DEPTH,
    MAX_XML_NAMESPACES,
    MAX_XML_PARTS,
    MAX_XML_TAG_BYTES,
    XmlNode,
    check_xml,
    parse_xml,
)
from support.examples import examples

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


# --- namespaces -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "<a xmlns:p=''/>",
        "<a xmlns:xmlns='urn:x'/>",
        "<a xmlns:xml='urn:x'/>",
        "<a xmlns:p='http://www.w3.org/XML/1998/namespace'/>",
        "<a xmlns='http://www.w3.org/2000/xmlns/'/>",
        "<a xmlns='urn:a b'/>",
        "<a xmlns:p='u' xmlns:q='u' p:x='' q:x=''/>",
        "<a p:x=''/>",
        "<a:b:c xmlns:a='urn:a'/>",
        "<a: xmlns:a='urn:a'/>",
        "<:a/>",
        "<a:1 xmlns:a='urn:a'/>",
        "<xmlns:a/>",
        "<a><b xmlns:p='urn:p'/><p:c/></a>",
    ],
)
def test_namespaces_that_are_not_declared_rightly_are_refused(text: str) -> None:
    assert fault(text).code == "xml.not_well_formed"


def by_expat(data: str) -> object:
    """The document as expat resolves its namespaces, or None where it refuses it."""
    parser = expat.ParserCreate(namespace_separator=" ")
    found: list[object] = []
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, given: found.append((name, given))
    parser.EndElementHandler = lambda _name: found.append(None)
    parser.CharacterDataHandler = found.append
    try:
        parser.Parse(data, True)
    except expat.ExpatError:
        return None
    return found


def by_us(data: str) -> object:
    try:
        root = parse_xml(data)
    except InvalidInput:
        return None
    found: list[object] = []

    def add(node: XmlNode) -> None:
        attributes = {
            name[1:].replace("}", " ") if name.startswith("{") else name: value
            for name, value in node.attributes.items()
        }
        found.append((f"{node.namespace} {node.name}".strip(), attributes))
        for part in node.content:
            found.append(part) if isinstance(part, str) else add(part)
        found.append(None)

    add(root)
    return found


PREFIXES = st.sampled_from(["", "p:", "q:", "xml:", "r:"])
ADDRESSES = st.sampled_from(["", "urn:1", "urn:2", "http://www.w3.org/XML/1998/namespace"])


@st.composite
def elements(draw: st.DrawFn, depth: int = 3) -> str:
    name = draw(PREFIXES) + draw(st.sampled_from(["a", "b", "é", "_1"]))
    declared = draw(st.dictionaries(st.sampled_from(["", ":p", ":q", ":xml"]), ADDRESSES))
    given = draw(st.dictionaries(st.tuples(PREFIXES, st.sampled_from("xy")), st.just("1")))
    tag = [name, *(f"xmlns{key}='{value}'" for key, value in declared.items())]
    tag += [f"{prefix}{local}='{value}'" for (prefix, local), value in given.items()]
    inner = draw(st.lists(elements(depth - 1), max_size=2)) if depth else []
    return f"<{' '.join([tag[0], *draw(st.permutations(tag[1:]))])}>{''.join(inner)}</{name}>"


@given(elements())
def test_namespaces_are_resolved_as_expat_resolves_them(text: str) -> None:
    assert by_us(text) == by_expat(text)


# --- hostile documents ----------------------------------------------------------------------------

PEAK_BYTES = 96 * 1024 * 1024


def peak_of(read: Callable[[], object]) -> int:
    """Most memory in use while reading, expat's own included; a refusal is fine."""
    tracemalloc.start()
    try:
        read()
    except InvalidInput:
        pass
    finally:
        _now, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def declarations(count: int, address: str = "u") -> str:
    return "".join(f" xmlns:p{n}='{address}{n}'" for n in range(count))


BOMBS = {
    "each child repeats the scope": "<a{}>{}</a>".format(
        declarations(9_000), "".join(f"<b xmlns:q='{n}'/>" for n in range(9_000))
    ),
    "each level repeats the scope": "".join(
        f"<a{declarations(200, f'{level}-')}>" for level in range(90)
    )
    + "</a>" * 90,
    "a long namespace of many elements": f"<a xmlns='{'u' * 200_000}'>{'<b/>' * 50_000}</a>",
    "a long namespace of many attributes": "<a xmlns:p='{}'{}/>".format(
        "u" * 200_000, "".join(f" p:a{n}=''" for n in range(20_000))
    ),
    "long namespaces of many names": "<a{}>{}</a>".format(
        declarations(90, "u" * 900), "".join(f"<b p{n % 90}:c{n}=''/>" for n in range(20_000))
    ),
    "namespaces declared again everywhere": "<a xmlns:p='u'>{}</a>".format(
        "".join(f"<p:b xmlns:p='{'u' * 20}{n % 7}'/>" for n in range(10_000))
    ),
    "very many attributes": "<a{}/>".format("".join(f" a{n}=''" for n in range(50_000))),
    "very many elements": f"<a>{'<b/>' * 100_000}</a>",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_document_never_takes_much_memory(name: str) -> None:
    data = BOMBS[name]
    assert len(data) < 2_000_000
    for read in (check_xml, parse_xml):
        assert peak_of(lambda read=read: read(data)) < PEAK_BYTES  # type: ignore[misc]


def test_documents_within_the_limits_of_namespaces_are_read() -> None:
    node = parse_xml(f"<a{declarations(MAX_XML_NAMESPACES - 1)}><b xmlns:p1='other'/></a>")
    (b,) = node.children
    assert (node.prefixes["p1"], b.prefixes["p1"], b.prefixes["p2"]) == ("u1", "other", "u2")
    assert len(b.prefixes) == len(list(b.prefixes)) == MAX_XML_NAMESPACES
    assert fault(f"<a{declarations(MAX_XML_NAMESPACES)}/>").code == "xml.too_large"
    assert fault(f"<a xmlns='{'u' * 1_001}'/>").code == "xml.too_large"


def test_a_tag_of_many_megabytes_is_refused() -> None:
    check_xml(f"<a b='{'1' * (MAX_XML_TAG_BYTES - 100)}'/>")
    assert fault(f"<a b='{'1' * (MAX_XML_TAG_BYTES * 5 // 4)}'/>").code == "xml.too_large"


@st.composite
def hostile(draw: st.DrawFn) -> str:
    """A document that repeats one awkward thing, within some levels that declare namespaces."""
    around = "".join(
        f"<a{declarations(draw(st.integers(0, 60)), 'u' * draw(st.integers(1, 1_100)))}>"
        for _level in range(draw(st.integers(1, 6)))
    )
    part = draw(
        st.sampled_from(
            [
                *("<b/>", "<p1:b/>", "<b p1:c='' p2:c=''/>", "<b xmlns='x'/>"),
                *("<b xmlns:p1='{n}'/>", "<b p1:c{n}=''/>", "<p1:b{n}/>"),
                *("t<!--c-->", "<![CDATA[t]]>", "&#65;", "<b>"),
            ]
        )
    )
    inner = "".join(part.replace("{n}", str(n)) for n in range(draw(st.integers(0, 3_000))))
    return around + inner + "</a>" * around.count("<a")


@settings(max_examples=examples(40), deadline=None)
@given(hostile())
def test_memory_stays_in_proportion_to_the_document(data: str) -> None:
    assert peak_of(lambda: parse_xml(data)) < 100 * len(data) + 2_000_000
