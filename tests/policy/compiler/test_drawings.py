"""Drawings of logic trees and plans: whole, escaped, nothing overlapping, nothing cut off."""

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.policy.compiler.compile import compile_conditions
from rapport.policy.compiler.plan_drawing import (
    Join,
    box,
    draw_logic_tree,
    draw_plan,
    place_columns,
    stack_columns,
    svg,
)
from rapport.policy.ontology import Ontology

NAMESPACE = "{http://www.w3.org/2000/svg}"
POLICY = """concepts
  person A (status='<guest> & "co"')
  person B
  room R
  station S
conditions
  A is inside R FOLLOWED-BY A is within 5m of B within 10 s
  (A is within 5m of B OR B is not inside R OR A is inside R FOLLOWED-BY B is inside R) within 20 s
  (temperature of S above 30 degC AND humidity of S below 30 % AND wind of S above 30 km/h) for 2 h
  no event of S for 3 hours
actions
  raise alarm & tell <everybody>
  note it
"""


def drawings(text: str, ontology: Ontology) -> list[str]:
    compiled = compile_conditions(text, name="p", ontology=ontology, window_ms=5000)
    return [
        draw_logic_tree(compiled.logic_tree, title="t < 1"),
        draw_plan(compiled.plan, title="p & q"),
    ]


def rectangles(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    found = [each for each in root.iter(f"{NAMESPACE}rect") if "x" in each.attrib]
    names = ("x", "y", "width", "height")
    return [tuple(float(each.attrib[name]) for name in names) for each in found]  # type: ignore[misc]


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(
        one[axis] < other[axis] + other[axis + 2] and other[axis] < one[axis] + one[axis + 2]
        for axis in (0, 1)
    )


@pytest.mark.parametrize("which", [0, 1])
def test_boxes_lie_inside_the_drawing_apart_from_each_other_and_hold_their_text(
    which: int, every_form: Ontology
) -> None:
    root = ElementTree.fromstring(drawings(POLICY, every_form)[which])
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = rectangles(root)
    assert len(boxes) > 10
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))
    for text in root.iter(f"{NAMESPACE}text"):
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        line = (x, y - 10, float(text.attrib["textLength"]), 12)
        inside = [each for each in boxes if overlap(each, line)]
        assert len(inside) == 1
        assert x + line[2] <= inside[0][0] + inside[0][2]


def test_every_part_of_the_policy_is_drawn(every_form: Ontology) -> None:
    tree, plan = (ElementTree.fromstring(each) for each in drawings(POLICY, every_form))
    shown = " ".join("".join(tree.itertext()).split())
    for part in ("followed-by within 10s", "or within 20s", "not inside", "no event of S for 3h"):
        assert part in shown
    assert """status='<guest> & "co"'""" in shown
    said = " ".join("".join(plan.itertext()).split())
    for part in ("lasting 2h", "silent 3h", "raise alarm & tell <everybody>", "window 5s"):
        assert part in said


def test_negated_parts_hang_on_dashed_lines(every_form: Ontology) -> None:
    for drawing in drawings(POLICY, every_form):
        assert drawing.count('class="join not"') == 1


def test_a_drawing_is_readable_in_light_and_dark(every_form: Ontology) -> None:
    for drawing in drawings(POLICY, every_form):
        assert "prefers-color-scheme:dark" in drawing
        assert len(re.findall(r"\.ground\{fill:#\w+\}", drawing)) == 2


@given(texts=st.lists(st.text(max_size=120), min_size=1, max_size=6))
def test_any_text_can_be_drawn(texts: list[str]) -> None:
    boxes = [box(text, "term", number % 2) for number, text in enumerate(texts)]
    place_columns(boxes)
    stack_columns(boxes)
    joins = [Join(0, number) for number in range(1, len(boxes))]
    root = ElementTree.fromstring(svg(texts[0], boxes, joins))
    assert len(list(root.iter(f"{NAMESPACE}path"))) == len(joins)
