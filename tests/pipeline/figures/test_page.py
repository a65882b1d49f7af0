"""The page stands alone, says everything in tables too, and cuts what is too much with a count."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from rapport.pipeline.figures.page import report_page
from rapport.pipeline.figures.plots import series_plot, spreads_plot, steps_plot
from rapport.pipeline.figures.provenance_plot import provenance_plot
from rapport.pipeline.figures.reports import EdgeCount, Report
from rapport.pipeline.figures.rows import (
    AdapterRow,
    BrokerRow,
    ChannelRow,
    DelayRow,
    Edge,
    FunnelRow,
    GapRow,
    GossipMessages,
    GossipRow,
    HourCount,
    LateCount,
    MediationRow,
    MessageCount,
    PeerRow,
    PolicyCount,
    ReasonCount,
    SensorToPhone,
    SeriesPoint,
    SilentCount,
    Spread,
)

HOUR, DAY = 3_600_000, 86_400_000
NOON = 1_772_452_800_000  # 2026-03-02T12:00:00Z
EVIL = '<script>alert("x")</script>'
QUICK = Spread(3, 20, 300, 4_000, 50_000)
NOTHING = dict.fromkeys(
    ("quarantined", "detections", "hours", "undecided", "late_readings", "messages", "funnel"), ()
) | dict.fromkeys(
    ("deliveries", "peers", "adapters", "sensor_to_phone", "mediation", "channels", "gaps"), ()
)
EMPTY = Report(
    readings=0, late=0, answered=0, series_step=60_000, series=(), delays=(), edges=(),
    edge_counts=(), gossip=(), gossip_messages=(), brokers=(), **NOTHING,
)  # fmt: skip


def edge(relation: str, start: str, end: str, conversation: str = "c", **more: Any) -> Edge:
    (from_kind, from_id), (to_kind, to_id) = start.split(":", 1), end.split(":", 1)
    names = {"from_kind": from_kind, "from_id": from_id, "to_kind": to_kind, "to_id": to_id}
    return Edge(conversation=conversation, relation=relation, time=NOON, **names, **more)


FULL = msgspec.structs.replace(
    EMPTY,
    readings=7,
    late=1,
    quarantined=(ReasonCount("no.unit", "gate", "gate@1", "mediation", 2, 3, NOON, NOON),),
    detections=(
        PolicyCount(EVIL, 3, 1, 0, NOON, NOON + DAY),
        PolicyCount("b", 0, 1, 0, None, None),
    ),
    hours=(HourCount(EVIL, NOON, 2, 0), HourCount(EVIL, NOON + DAY, 1, 1)),
    undecided=(SilentCount("b", "gate", 1),),
    late_readings=(LateCount("", 1, NOON, NOON),),
    messages=(MessageCount("done", 1), MessageCount("open", 1)),
    answered=1,
    funnel=(
        FunnelRow(
            policy=EVIL, detected=3, with_message=2, messages=2, missing=1, handed=2, confirmed=1,
            answered=1, escalated=1, done=1, failed=0, timed_out=0, open=1, unmapped=0,
        ),
    ),
    peers=(
        PeerRow(
            peer=EVIL, asked=3, reached=2, answered=1, unanswered=1, unreached=1, failed=1,
            timed_out=1, refused=0, held=0, response=QUICK,
        ),
    ),
    adapters=(
        AdapterRow(
            adapter="mail", deliveries=3, attempts=4, failed_attempts=1, reached=2, confirmed=1,
            failed=1, waiting=0, stopped=0, timed_out=0, answered=1, handing=QUICK,
        ),
    ),
    sensor_to_phone=(SensorToPhone("a", 3, QUICK, Spread(3, -5, 0, 7, 7)),),
    mediation=(MediationRow("gate", "gate@1", 7, 0, 0, 2, 1),),
    channels=(ChannelRow("events", 7, NOON, NOON + DAY, 3, 4, 0, 1, DAY),),
    gaps=(GapRow("events", NOON, NOON + DAY, DAY),),
    series=(SeriesPoint("events", NOON, 3), SeriesPoint("events", NOON + 600_000, 4)),
    delays=(DelayRow("events", "gate", 3, 1, QUICK),),
    gossip=(
        GossipRow(
            node=EVIL, begin=NOON, end=NOON + HOUR, covered=HOUR, sent=120, received=60, first=2,
            replaced=58, replicas=2, age=QUICK,
        ),
        GossipRow(
            node="alone", begin=NOON, end=NOON, covered=0, sent=1, received=0, first=0, replaced=0,
            replicas=0,
        ),
    ),
    gossip_messages=(GossipMessages(EVIL, "pull_parts", 120, 60),),
    brokers=(
        BrokerRow(
            broker="127.0.0.1:7", answer="not_found", requests=3,
            response_us=Spread(3, 153, 2_549, 40_000, 1_234_567),
        ),
    ),
    edges=(
        edge("shows", "reading:e1", "detection:d1"),
        edge("led to", "detection:d1", "message:m1", via=EVIL, state="done"),
        edge("told", "message:m1", "peer:ana", via="mail", state="handed"),
        edge("answered", "peer:ana", "message:m1"),
    ),
    edge_counts=(EdgeCount("all", 9, 4),),
)  # fmt: skip


class Outline(HTMLParser):
    """Counts what opens and closes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "rect", "line", "circle", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line", "circle", "path"):
            assert self.open.pop() == tag


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    assert found.open == []
    return found


def plots(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.S)]


def test_behind_every_plot_stands_a_table() -> None:
    page = report_page(FULL, site="here")
    assert "script" not in outline(page).seen
    for section in re.findall(r"<section.*?</section>", page, re.S):
        assert "<svg" in section
        assert "<table" in section
    assert page.count("<section") == 12


def test_every_plot_has_a_title_and_a_description() -> None:
    for plot in plots(report_page(FULL, site="here")):
        title, said = plot[0], plot[1]
        assert (title.tag.rpartition("}")[2], said.tag.rpartition("}")[2]) == ("title", "desc")
        assert title.text
        assert said.text


def test_names_are_text_and_never_markup() -> None:
    page = report_page(FULL, site=EVIL)
    assert EVIL not in page
    assert "&lt;script&gt;" in page


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = report_page(FULL, site="here")
    addresses = set(re.findall(r"""(?:href|src|url)\s*[=(]\s*["']?([^"')> ]+)""", page))
    assert {address for address in addresses if not address.startswith("#")} == set()


def test_an_empty_report_is_a_page_too() -> None:
    page = report_page(EMPTY, site="here")
    outline(page)
    assert "The lake is empty." in page
    assert "<svg" not in page


def test_figures_of_gossip_and_brokers_say_how_exact_they_are() -> None:
    page = report_page(FULL, site="here")
    assert "at most 3 % too low" in page
    assert "127.0.0.1:7 · not found: median 153 us, 90 % 2.5 ms, longest 1.234 s" in page
    assert "pull parts, sent: 120" in page
    assert "<td>2.0</td>" in re.sub(r"<td[^>]*>", "<td>", page)  # messages a minute


@pytest.mark.parametrize("values", [(0, 0, 0, 0), (-5, -5, -5, -5), (1, 10**12, 10**13, 10**14)])
def test_durations_of_any_size_have_a_place(values: tuple[int, ...]) -> None:
    (plot,) = plots(spreads_plot([("x", Spread(1, *values))], "t"))
    width = float(plot.attrib["viewBox"].split()[2])
    for shape in plot.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(shape.attrib.get(name, 0)) <= width


def test_nothing_at_all_is_drawn_without_a_fault() -> None:
    plots(steps_plot([("detected", 0), ("messages", 0)], "t"))
    plots(series_plot({"a": [SeriesPoint("a", 0, 1)]}, 60_000, "t"))
    plots(provenance_plot([], "t"))


def test_a_large_conversation_is_cut_with_a_count() -> None:
    edges = [edge("shows", f"reading:e{n}", "detection:d") for n in range(30)]
    for n in range(9):
        edges.append(edge("led to", "detection:d", f"message:m{n}", via="p", state="open"))
        edges += [
            edge("told", f"message:m{n}", f"peer:p{k}", via="mail", state="failed")
            for k in range(12)
        ]
    drawn = provenance_plot(edges, "t")
    plots(drawn)
    assert "and 27 more" in drawn  # readings: three are shown
    assert "and 6 more" in drawn  # messages
    assert "and 5 more" in drawn  # people of each message


def test_a_message_without_a_detection_is_drawn_too() -> None:
    drawn = provenance_plot(
        [
            edge("told", "message:m1", "peer:ana", via="mail", state="queued"),
            edge("refers to", "message:m1", "message:m0"),
            edge("escalated", "message:m1", "receiver:collective:leads"),
            edge("appended", "message:m1", "event:a", via="raw.x"),
        ],
        "t",
    )
    for words in ("ana · mail: queued", "refers to m0", "escalated: collective:leads", "raw.x"):
        assert words in drawn


def test_the_newest_conversation_stands_first() -> None:
    old = edge("told", "message:m1", "peer:old", conversation="a", via="mail", state="handed")
    new = edge("told", "message:m2", "peer:new", conversation="b", via="mail", state="handed")
    drawn = provenance_plot([old, msgspec.structs.replace(new, time=NOON + 1)], "t")
    assert drawn.index("new · mail") < drawn.index("old · mail")
