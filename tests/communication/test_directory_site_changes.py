"""What a site file read again changes about people is told whole. [CO-3, CO-12]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.directory import changes_of_file
from rapport.communication.peers import Collective, Peer, SiteDirectory

NAMES = st.sampled_from(["ana", "ben", "lea", "zoe"])
PEERS = st.dictionaries(
    NAMES, st.sampled_from([("inbox:",), ("mail:x@example.org",), ("webhook:https://a:b@c/d",)])
)
COLLECTIVES = st.dictionaries(
    st.sampled_from(["guards", "leads"]),
    st.tuples(st.frozensets(NAMES), st.sampled_from(["to-any", "to-all-members"])),
)
DIRECTORIES = st.builds(
    lambda peers, collectives: SiteDirectory(
        {name: Peer(name=name, addresses=each) for name, each in peers.items()},
        {
            name: Collective(name=name, members=tuple(sorted(members)), delivery=delivery)
            for name, (members, delivery) in collectives.items()
        },
    ),
    PEERS,
    COLLECTIVES,
)


@given(before=DIRECTORIES, after=DIRECTORIES)
def test_the_changes_lead_from_one_version_to_the_other(
    before: SiteDirectory, after: SiteDirectory
) -> None:
    peers = set(before.peer_names())
    members = {name: set(before.member_names(name)) for name in before.collective_names()}
    for change in changes_of_file(before, after, "admin"):
        assert change.by == "admin"
        match change.kind, change.change:
            case "peer", "added":
                peers.add(change.name)
            case "peer", "removed":
                peers.remove(change.name)
            case "peer", "changed":
                assert before.peer(change.name) != after.peer(change.name)
            case "collective", "added":
                members[change.name] = set()
            case "collective", "removed":
                del members[change.name]
            case "collective", "joined":
                members[change.name] |= {*change.members}
            case "collective", "left":
                members[change.name] -= {*change.members}
    assert peers == set(after.peer_names())
    assert members == {name: set(after.member_names(name)) for name in after.collective_names()}


@given(same=DIRECTORIES)
def test_unchanged_entries_are_not_reported(same: SiteDirectory) -> None:
    assert changes_of_file(same, same, "admin") == []


def test_secrets_of_addresses_are_not_reported() -> None:
    new = SiteDirectory({"ana": Peer(name="ana", addresses=("webhook:https://a:b@c/d",))}, {})
    (change,) = changes_of_file(SiteDirectory({}, {}), new, "admin")
    assert "a:b@" not in str(change.settings)
