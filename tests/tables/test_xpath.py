"""XPath on documents: our rules of names, by comparison with lxml on the same document without
namespaces; and documents that are refused. [PO-2]"""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from rapport.core.errors import SiteError
from rapport.tables.xml_source import XPath, XPathFault, parse_document

PLAN = b"""<?xml version="1.0" encoding="UTF-8"?>
<plan floor="2">
  <wing name="east">
    <room id="r1" kind="office"><name>Lab &amp; store</name>
      <area x1="0" x2="5.5">a<b>b</b>c</area></room>
    <room id="r2"><name>Hall</name><seats>12</seats><seats>30</seats></room>
  </wing>
  <wing name="west"><wing name="inner"><room id="r3" kind="store"/></wing><room id="r4"/></wing>
</plan>"""

PATHS = [
    "/plan/wing/room",
    "//room",
    "//room[1]",
    "(//room)[1]",
    "//wing/room[last()]",
    "/plan/*/room[@kind]",
    "/plan/wing[@name='east']/room[@kind!='office']",
    "//room[@kind='office' or @kind='store']",
    "//room[not(@kind)]",
    "//room[name]",
    "//room[name='Hall']/@id",
    "//room[seats > 20]",
    "//room[seats < 13 and seats >= 30]",
    "//room[position() mod 2 = 1]",
    "//room[starts-with(@id, 'r') and contains(name, '&')]",
    "//wing//room",
    "//room/..",
    "//room/../@name",
    "//area/text()",
    "//area//text()",
    "//area/node()",
    "/plan/wing[2]/room | /plan/wing[1]/room",
    "//@id | //room | /plan",
    "/",
    "/plan/.",
    "/nothing",
    "//room[count(seats) = 2]",
    "//*[string-length(@name) = 4]",
    "//room[2][@id='r2']",
    "//room[@id='r2'][1]",
    "//wing[room[@id='r4']]/@name",
    "//room[normalize-space(name) = 'Hall']",
    "//seats[. = 30]",
    "//wing[wing]",
]
VALUES = [
    "count(//room)",
    "sum(//seats)",
    "string(//room[2]/name)",
    "concat(//room/@id, '-', 1 + 2 * 3, '-', 7 mod 3, '-', 1 div 4)",
    "substring('12345', 1.5, 2.6)",
    "substring('12345', 0, 3)",
    "substring('12345', 0 div 0, 3)",
    "substring('12345', 2)",
    "substring('12345', -42, 1 div 0)",
    "substring-before('a=b', '=')",
    "substring-after('a=b', '=')",
    "substring-before('ab', '=')",
    "translate('bar', 'abc', 'AB')",
    "normalize-space('  a \n b ')",
    "number('  12.5 ')",
    "number(true())",
    "- - 3",
    "-(-3) - 2",
    "1 div 0",
    "-1 div 0",
    "0 div 0",
    "5 mod -2",
    "-5 mod 2",
    "floor(-1.5)",
    "ceiling(1.2)",
    "round(2.5)",
    "round(-2.5)",
    "boolean(//nothing)",
    "not(//room)",
    "//seats = 12",
    "//seats != 12",
    "//seats = '30'",
    "//nothing != 1",
    "true() = //room",
    "'a' < 'b'",
    "1 = true()",
    "local-name(//room/@id)",
    "name(/plan)",
    "string(1.0)",
    "string(0.1)",
    "string(1 div 3 > 0.33)",
]


def shown(node: object) -> str:
    if isinstance(node, str):
        return node
    name = node.tag.rpartition("}")[2]
    return f"{name}:{dict(node.attrib)}:{''.join(node.itertext())}"


def in_a_namespace(data: bytes) -> bytes:
    """The same document with a default namespace."""
    head, space, rest = data.partition(b"<plan" if b"<plan" in data else b"<a")
    return head + space + b' xmlns="urn:x"' + rest


def selected(data: bytes, path: str, *, from_root: bool = True) -> list[str]:
    root = parse_document(data, name="d.xml")
    return [shown(node) for node in XPath(path, from_root=from_root).nodes(root)]


@pytest.mark.parametrize("path", PATHS)
def test_paths_select_the_same_with_and_without_a_namespace(path: str) -> None:
    expected = [shown(node) for node in etree.fromstring(PLAN).getroottree().xpath(path)]
    assert selected(PLAN, path) == expected
    assert selected(in_a_namespace(PLAN), path) == expected


@pytest.mark.parametrize("expression", VALUES)
def test_values_are_those_of_the_standard(expression: str) -> None:
    for data in (PLAN, in_a_namespace(PLAN)):
        found = XPath(expression).text_at(parse_document(data, name="plan.xml"))
        assert found == etree.fromstring(PLAN).xpath(f"string({expression})")


def test_relative_paths_for_rows_begin_at_the_document() -> None:
    absolute = selected(PLAN, "/plan/wing/room")
    for path in ("plan/wing/room", "./plan/wing/room", "(plan/wing/room)[position() > 0]"):
        assert selected(PLAN, path) == absolute
    assert selected(PLAN, "plan/wing[room] | plan") == selected(PLAN, "/plan/wing[room] | /plan")


names = st.sampled_from(["a", "b", "c", "*"])
tests = names | st.sampled_from([".", "..", "@x", "@*", "text()"])
literals = st.sampled_from(["1", "2", "'1'", "'p'", "0.5"])


@st.composite
def paths(draw: st.DrawFn, depth: int = 2) -> str:
    steps = []
    for number in range(draw(st.integers(1, 3))):
        step = draw(tests)
        plain = step not in (".", "..")
        if plain and depth and draw(st.booleans()):
            step += f"[{draw(conditions(depth - 1))}]"
        steps.append(("" if number == 0 else draw(st.sampled_from(["/", "//"]))) + step)
        if step.startswith(("@", "text")):
            break
    return draw(st.sampled_from(["", "/", "//"])) + "".join(steps)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 1) -> str:
    path = draw(paths(depth))
    return draw(
        st.sampled_from(
            [
                path,
                f"not({path})",
                f"{path} = {draw(literals)}",
                f"{draw(literals)} <= {path}",
                f"{path} != {draw(paths(depth))}",
                f"position() = last() or {path}",
                f"position() {draw(st.sampled_from(['<', '>=', '=']))} 2",
                f"count({path}) = 1 and contains(., 'p')",
                "1",
                "last()",
            ]
        )
    )


elements = st.recursive(
    st.just(""),
    lambda inner: st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["", ' x="1"', ' x="p" y="2"']),
            st.sampled_from(["", "1", "p", " 2 "]),
            inner,
        ).map(lambda t: f"<{t[0]}{t[1]}>{t[2]}{t[3]}</{t[0]}>{t[2]}"),
        max_size=3,
    ).map("".join),
    max_leaves=8,
)


@pytest.mark.slow
@given(elements, paths())
def test_any_path_on_any_document_selects_the_same(inner: str, path: str) -> None:
    data = f"<a>{inner}</a>".encode()
    expected = [shown(node) for node in etree.fromstring(data).xpath(path)]
    assert selected(data, path, from_root=False) == expected
    assert selected(in_a_namespace(data), path, from_root=False) == expected


plain_steps = st.lists(
    st.sampled_from(["a", "b", "c", "a[1]", "b[2]", "c[3]", "a[0]"]), min_size=1, max_size=3
)


@given(elements, plain_steps, st.sampled_from(["", "/@x"]))
def test_paths_of_names_give_the_text_of_the_first_node(
    inner: str, steps: list[str], last: str
) -> None:
    data, path = f"<a>{inner}</a>".encode(), "/".join(steps) + last
    found = XPath(path).text_at(parse_document(in_a_namespace(data), name="d.xml"))
    root = etree.fromstring(data)
    assert found == (root.xpath(f"string({path})") if root.xpath(path) else None)


@given(st.text("ab/@.*[]()'=|<>+-1 ,:$x", max_size=30) | st.text(max_size=20))
def test_any_text_is_an_expression_or_refused_with_a_place(text: str) -> None:
    root = parse_document(b"<a><b x='1'/></a>", name="d.xml")
    try:
        XPath(text).text_at(root)
    except XPathFault as error:
        assert error.code == "tables.bad_xpath"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("/plan/", "character 7"),
        ("//room[", "character 8"),
        ("//room[1", "character"),
        ("//room]", "character 7"),
        ("following-sibling::a", "axes by name"),
        ("$x", "variables"),
        ("id('x')", "no function 'id'"),
        ("contains(a)", "takes 2 arguments"),
        ("//room[contains(a)]", "takes 2 arguments"),
        ("//room[concat(a, (b), c) = last(1)]", "last() takes 0 arguments"),
        ("count(1)", "Invalid type"),
        ("p:room", "prefix 'p' is not declared"),
        ("comment()", "no function"),
        ("a/comment()", "no function"),
        ("a | 1", "Invalid type"),
        ("'open", "has no meaning"),
        ("a" * 3_000, "longer than"),
    ],
)
def test_unsupported_expressions_are_refused_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(XPathFault) as caught:
        XPath(text)
    assert words in caught.value.message


def test_a_name_without_a_prefix_matches_in_any_namespace_and_a_prefix_means_its_own() -> None:
    root = parse_document(b'<p xmlns="urn:a"><r xmlns="urn:b">1</r><r>2</r></p>', name="p.xml")
    assert [node.text for node in XPath("/p/r").nodes(root)] == ["1", "2"]
    assert [node.text for node in XPath("/q:p/q:r", {"q": "urn:a"}).nodes(root)] == ["2"]
    assert len(XPath("/q:p/q:*", {"q": "urn:a"}).nodes(root)) == 1


def test_rows_must_be_elements() -> None:
    with pytest.raises(XPathFault):
        XPath("count(//a)").nodes(parse_document(b"<a/>", name="a.xml"))


def test_names_have_no_prefix() -> None:
    root = parse_document(b'<p:a xmlns:p="urn:a"/>', name="a.xml")
    assert XPath("name(.)").text_at(root) == "a"


@pytest.mark.parametrize(
    ("data", "code", "line"),
    [
        (b"<a>\n<b></a>", "tables.bad_xml", 2),
        (b"", "tables.bad_xml", 1),
        (b"<a>&who;</a>", "tables.bad_xml", 1),
        (b'<?xml version="1.0" encoding="ebcdic-nowhere"?><a/>', "tables.bad_xml", 1),
        (b"<a>" * 300 + b"</a>" * 300, "tables.bad_xml", 1),
        (
            b'<?xml version="1.0"?>\n<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
            b"<a>&x;</a>",
            "tables.doctype_refused",
            2,
        ),
        (
            b'<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]><a>&y;</a>',
            "tables.doctype_refused",
            1,
        ),
        (b'<!DOCTYPE a SYSTEM "http://127.0.0.1:1/a.dtd"><a/>', "tables.doctype_refused", 1),
    ],
)
def test_documents_that_are_not_accepted(data: bytes, code: str, line: int) -> None:
    with pytest.raises(SiteError) as caught:
        parse_document(data, name="plan.xml")
    problem = caught.value.problems[0]
    assert (problem.file, problem.code, problem.line) == ("plan.xml", code, line)


@pytest.mark.parametrize(
    "data",
    [
        f"<a xmlns='{'u' * 200_000}'>{'<b/>' * 20_000}</a>",
        "<a xmlns:p='{}'>{}</a>".format("u" * 999, "".join(f"<p:b{n}/>" for n in range(20_000))),
        "<a{}/>".format("".join(f" xmlns:p{n}='u'" for n in range(20_000))),
    ],
)
def test_namespaces_are_bounded_before_they_take_memory(data: str) -> None:
    tracemalloc.start()
    with pytest.raises(SiteError) as caught:
        parse_document(data.encode(), name="plan.xml")
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.problems[0].code == "tables.too_large"
    assert peak < 48 * 1024 * 1024
