"""`[context]` of a site: what it says, and every fault with its place. [CX-4, CX-9, UX-2]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.errors import Unsupported
from rapport.kernel.toml import TomlFile
from rapport.site.context import check_without_context, context_from_site
from rapport.site.site import check_site, load_site

PLAIN = """
[site]
name = "labs"
[concepts.room.attributes]
area = "rectangle"
status = "text"
[concepts.person.attributes]
position = "point"
[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = { area = ["x1", "y1", "x2", "y2"] }
[sources.badges]
concept = "person"
attribute = "position"
key = "who"
value = ["x", "y"]
[peers.ana]
addresses = ["inbox:"]
"""
TABLE = """
[tables.present]
concept = "room"
context = "room status"
ids_from = "rooms"
columns = { status = "status" }
"""
BROKER = '[context]\nlisten = "127.0.0.1:7411"\n'
POLICY = """concepts
  person A
  room R (status='closed')
conditions
  A is inside R
actions
  lock the room
"""
ACTION = """
[actions."lock the room"]
context = { entity = "room/{R}", scope = "lock", values = { locked = true }, valid = "10 min" }
"""


def make_site(directory: Path, text: str) -> Path:
    (directory / "site.toml").write_text(PLAIN + text)
    (directory / "rooms.csv").write_text("id,x1,y1,x2,y2\nr1,0,0,1,1\n")
    (directory / "closed.dpl").write_text(POLICY)
    return directory


def test_a_site_says_where_its_broker_is_and_who_may_what(tmp_path: Path) -> None:
    text = """
[context]
listen = "127.0.0.1:7411"
join = ["127.0.0.1:7421", "10.0.0.2:7411"]
keys = "context-keys.toml"
v0 = "127.0.0.1:7410"
[context.rights.guard]
read = ["room/* status"]
write = []
[context.rights.desk]
write = ["room/*"]
take_over = ["room/r1 status"]
control = true
"""
    (tmp_path / "context-keys.toml").write_text("")
    file = TomlFile.parse(text.encode(), name="site.toml")
    declared, problems = context_from_site(file, tmp_path)
    assert problems == []
    assert declared is not None
    assert declared.listen == ("127.0.0.1", 7411)
    assert declared.join == (("127.0.0.1", 7421), ("10.0.0.2", 7411))
    assert declared.v0 == ("127.0.0.1", 7410)
    assert declared.keys == tmp_path / "context-keys.toml"
    assert declared.rights is not None
    assert declared.rights["guard"].read == ("room/* status",)
    assert declared.rights["desk"].control


def test_a_site_without_the_table_has_no_broker(tmp_path: Path) -> None:
    file = TomlFile.parse(b"[site]\n", name="site.toml")
    assert context_from_site(file, tmp_path) == (None, [])


WRONG = {
    "": ("site.missing_key", 1),
    'listen = "127.0.0.1:port"': ("transport.bad_address", 2),
    'listen = "10.0.0.1:7411"': ("context.no_keys", 2),
    'listen = "127.0.0.1:7411"\njoin = ["10.0.0.1:7411"]': ("context.no_keys", 3),
    'listen = "127.0.0.1:7411"\nkeys = "absent.toml"': ("site.no_file", 3),
    'listen = "127.0.0.1:7411"\nv0_clients = ["10.0.0.0/8"]': ("context.open_door", 3),
    'listen = "127.0.0.1:7411"\nv0_clients = ["friends"]': ("site.wrong_type", 3),
    'listen = "127.0.0.1:7411"\njoins = []': ("site.unknown_key", 3),
    'listen = "127.0.0.1:7411"\n[context.rights.x]\nread = ["rooms"]': ("context.bad_pattern", 4),
    'listen = "127.0.0.1:7411"\n[context.rights.x]\nreads = []': ("site.unknown_key", 4),
    'listen = "127.0.0.1:7411"\n[context.search]\nhop_limt = 3': ("site.unknown_key", 4),
    'listen = "127.0.0.1:7411"\n[context.search]\nhop_limit = "3"': ("context.bad_settings", 3),
    'listen = "127.0.0.1:7411"\n[context.search]\nstrategy = "wlk"': ("context.bad_settings", 3),
    'listen = "127.0.0.1:7411"\n[context.search]\nrounds = 0': ("context.bad_settings", 3),
    'listen = "127.0.0.1:7411"\n[context.search]\nhop_limit = 501': ("context.bad_settings", 1),
    'listen = "127.0.0.1:7411"\n[context.search]\nfilter_bits = 0': ("context.bad_settings", 3),
    'listen = "127.0.0.1:7411"\n[context.replication]\ncopies = -1': ("context.bad_settings", 3),
    'listen = "127.0.0.1:7411"\n[context.membership]\nperiod_ms = 0': ("context.bad_settings", 3),
}


@pytest.mark.parametrize("keys", WRONG)
def test_what_is_wrong_is_told_at_its_place(keys: str, tmp_path: Path) -> None:
    file = TomlFile.parse(f"[context]\n{keys}\n".encode(), name="site.toml")
    _declared, problems = context_from_site(file, tmp_path)
    (problem,) = problems
    assert (problem.code, problem.line) == WRONG[keys]


def test_a_sound_site_has_no_problems_although_nobody_is_known_yet(tmp_path: Path) -> None:
    assert check_site(make_site(tmp_path, TABLE + ACTION + BROKER)) == []


def test_tables_and_actions_need_a_broker(tmp_path: Path) -> None:
    problems = check_site(make_site(tmp_path, TABLE + ACTION))
    assert {one.code for one in problems} == {"context.no_broker_here"}
    assert len({one.line for one in problems}) == 2


def test_context_is_not_read_on_spark(tmp_path: Path) -> None:
    spark = '[policies]\non_spark = ["closed"]\n'
    (problem,) = check_site(make_site(tmp_path, TABLE + ACTION + BROKER + spark))
    assert problem.code == "policy.not_on_spark"
    assert "room.status" in problem.message


def test_what_reads_context_is_not_replayed(tmp_path: Path) -> None:
    site = load_site(make_site(tmp_path, TABLE + ACTION + BROKER))
    plans = [one.plan for one in site.policies.values()]
    with pytest.raises(Unsupported, match=r"'closed', which reads room\.status from context"):
        check_without_context(site.tables, plans, "a replay")
