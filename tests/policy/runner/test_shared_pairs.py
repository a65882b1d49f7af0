"""Pairs used up, joins and followed-by that policies have in common: executed once while they know
the same past, by each otherwise; and the ordinals all of it rests on.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import msgspec
import pytest

from rapport.core.detection import Detection
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.operators import make_operator
from rapport.policy.operators.columns import pack_state, unpack_state
from rapport.policy.operators.correlations import Correlator, SharedPairs
from rapport.policy.operators.match_finder import JoinPath, MatchFinder
from rapport.policy.operators.shared_cache import SharedCache
from rapport.policy.operators.window import saved_ordinals
from rapport.policy.plan import Plan
from rapport.policy.runner.deployed_plans import SavedGroup
from rapport.policy.runner.local import LocalRunner, read_snapshot
from support.judge.occurrences import Reading
from support.varied.feeding import fed, of
from support.varied.worlds import ONTOLOGY, random_world, readings_batch
from support.work import calls

WORLD = random_world(Chance(11), events=120)
HALF = len(WORLD.readings) // 2
NEAR = "  {a} is within 3m of B\n"
NEAR_INSIDE = "  {a} is within 3m of B\n  {a} is inside R\n"
THEN = "  {a} is inside R FOLLOWED-BY {a} is within 3m of B\n"
NOT_THEN = "  {a} is within 3m of B FOLLOWED-BY NOT B is inside R\n"
INSIDE_BOTH = "  {a} is inside R\n  B is inside Q\n"
RECENT = f"{NEAR}  consume recent\n"
EVERY = {
    "near": NEAR,
    "near and inside": NEAR_INSIDE,
    "then": THEN,
    "not then": NOT_THEN,
    "recent": RECENT,
}
every_kind = pytest.mark.parametrize("conditions", EVERY.values(), ids=EVERY.keys())


def plan(conditions: str, name: str, *, alias: str = "A", window_ms: int = 200) -> Plan:
    text = (
        f"concepts\n  person {alias} (status='guest')\n  room R\n  person B\n  cart K\n"
        "  person E (status='employee')\n  room Q\n"
        f"conditions\n{conditions.format(a=alias)}actions\n  look\n"
    )
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=window_ms).plan


def unlike(conditions: str, count: int = 3) -> list[Plan]:
    """Policies that say the same with other names and differ in what they leave out."""
    return [
        plan(
            f"{conditions}  at most once per {10 + number} ms\n",
            f"p{number}",
            alias="AXYZ"[number % 4],
        )
        for number in range(count)
    ]


def started(*plans: Plan) -> LocalRunner:
    return LocalRunner(plans, WORLD.pull, lateness_ms=0)


def alone(plan: Plan, readings: Sequence[Reading], since: int = 0) -> list[Detection]:
    runner = started()
    fed(runner, readings[:since])
    runner.deploy(plan)
    return fed(runner, readings[since:]) + runner.finish()


def pairs(runner: LocalRunner) -> set[SharedPairs]:
    groups = runner._running._groups
    own = [one.operator._window.correlations._pairs for one in groups]
    return {each.common for readers in own for each in readers.values()}


def finders(runner: LocalRunner) -> list[MatchFinder]:
    groups = runner._running._groups
    return [each for one in groups for each in one.operator._pending._finders]


# --- what is executed once ---


@every_kind
def test_policies_that_begin_together_execute_it_once(conditions: str) -> None:
    plans = unlike(conditions)
    runner, single = started(*plans), started(plans[0])
    found = fed(runner, WORLD.readings)
    fed(single, WORLD.readings)
    assert len(runner._running._groups) == 3
    assert len(pairs(runner)) == 1
    computed = sum(each.computed for each in runner.steps.values())
    assert computed == single.steps["p0"].computed
    assert all(each.wanted == single.steps["p0"].wanted for each in runner.steps.values())
    found += runner.finish()
    assert found
    for each in plans:
        assert of(each.policy, found) == alone(each, WORLD.readings)


@pytest.mark.slow
def test_a_hundred_policies_walk_the_pairs_once_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    more = ("", "  A is inside R\n", "  B is not inside R\n", "  A is inside R\n  R is leads Q\n")
    plans = [
        plan(f"{NEAR}{more[place % 4]}  at most once per {10 + place} ms\n", f"p{place}")
        for place in range(100)
    ]
    walked: list[int] = []
    walk = Correlator.pairs

    def counted(self: Correlator, *sides: object) -> object:
        walked.append(id(self))
        return walk(self, *sides)

    monkeypatch.setattr(Correlator, "pairs", counted)
    fed(started(*plans), WORLD.readings)
    assert len(set(walked)) == 1
    many = len(walked)
    walked.clear()
    fed(started(plans[0]), WORLD.readings)
    assert many == len(walked) > 5


@pytest.mark.parametrize("conditions", [NEAR_INSIDE, THEN], ids=["and", "then"])
def test_joins_are_made_once_per_batch(conditions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    join = JoinPath._joined

    def counted(self: JoinPath, *given: object) -> object:
        joined.append(1)
        return join(self, *given)

    monkeypatch.setattr(JoinPath, "_joined", counted)
    fed(started(*unlike(conditions, 12)), WORLD.readings)
    many = len(joined)
    joined.clear()
    fed(started(unlike(conditions, 1)[0]), WORLD.readings)
    assert many == len(joined) > 5


def test_work_that_policies_have_in_common_is_done_once() -> None:
    """What each policy adds is small beside what the first costs; none of them finds anything."""
    never = f"{NEAR_INSIDE}  no position of K for 9 hours\n".replace("position", "place")

    def work(count: int) -> int:
        runner = started(*unlike(never, count))
        batches = [readings_batch(WORLD.readings[at : at + 20]) for at in range(0, 120, 20)]
        runner.feed(batches[0])
        return calls(lambda: [runner.feed(batch) for batch in batches[1:]])

    one, five, ten = work(1), work(5), work(10)
    assert ten - five == pytest.approx(five - one, rel=0.3)
    assert (ten - five) / 5 < one / 2


def test_who_says_more_begins_with_what_others_joined() -> None:
    common = unlike(NEAR_INSIDE, 2)
    more = plan(f"{NEAR_INSIDE}  B is inside Q\n", "more")
    runner = started(*common, more)
    found = fed(runner, WORLD.readings) + runner.finish()
    wider = finders(runner)[2]
    assert wider._key is None
    keys = [step.key is not None for path in wider._paths.values() for step in path.steps]
    assert True in keys
    assert False in keys
    assert of("more", found) == alone(more, WORLD.readings) != []


def test_the_order_in_which_conditions_are_written_does_not_matter() -> None:
    turned = "  {a} is inside R\n  {a} is within 3m of B\n"
    first, second = plan(NEAR_INSIDE, "p"), plan(f"{turned}  at most once per 1 ms\n", "q")
    runner = started(first, second)
    found = fed(runner, WORLD.readings) + runner.finish()
    keys = {finder._key for finder in finders(runner)}
    assert len(keys) == 1
    assert None not in keys
    assert of("q", found) == alone(second, WORLD.readings)


def test_the_same_joins_may_be_matches_for_one_and_not_for_another() -> None:
    turned = "  {a} is within 3m of B FOLLOWED-BY {a} is inside R\n"
    first, second = plan(THEN, "p"), plan(turned, "q")
    runner = started(first, second)
    found = fed(runner, WORLD.readings) + runner.finish()
    joined = [{path.steps[-1].key for path in one._paths.values()} for one in finders(runner)]
    assert joined[0] == joined[1] != {None}
    for each in (first, second):
        assert of(each.policy, found) == alone(each, WORLD.readings) != []


@pytest.mark.parametrize(
    "other",
    [RECENT, NEAR.replace("3m", "2m"), "  B is within 3m of {a}\n"],
    ids=["consumption", "distance", "sides"],
)
def test_what_differs_is_used_up_by_each(other: str) -> None:
    runner = started(plan(NEAR, "p"), plan(f"{other}  at most once per 1 ms\n", "q"))
    fed(runner, WORLD.readings)
    assert len(pairs(runner)) == 2


def test_other_windows_use_up_other_pairs_and_windows_of_their_own_the_same() -> None:
    short = plan("  ({a} is within 3m of B) within 200 ms\n", "p", window_ms=900)
    runner = started(plan(NEAR, "q"), plan(NEAR, "r", window_ms=201), short)
    found = fed(runner, WORLD.readings) + runner.finish()
    assert len(pairs(runner)) == 2
    assert of("p", found) == alone(short, WORLD.readings)


def test_who_looks_further_joins_for_himself() -> None:
    """Their occurrences are the same, and kept once."""
    plans = [plan(INSIDE_BOTH, f"p{ms}", window_ms=ms) for ms in (20, 60, 200)]
    runner = started(*plans)
    found = fed(runner, WORLD.readings) + runner.finish()
    for number in (0, 1):
        groups = runner._running._groups
        assert len({id(one.operator._window.occurrences[number]) for one in groups}) == 1
    for each in plans:
        assert of(each.policy, found) == alone(each, WORLD.readings)
    counts = [len(of(each.policy, found)) for each in plans]
    assert counts == sorted(set(counts))


def test_a_function_of_the_site_is_called_by_each_policy() -> None:
    own = "  {a} is beside 1m of K\n"
    runner = started(*unlike(own))
    fed(runner, WORLD.readings)
    assert len(pairs(runner)) == 3


# --- the same past ---


@every_kind
def test_who_begins_later_knows_less_and_executes_for_himself(conditions: str) -> None:
    first, second, third = unlike(conditions)
    runner = started(first)
    found = fed(runner, WORLD.readings[:HALF])
    runner.deploy(second)
    runner.deploy(third)  # these two have missed the same
    assert len(pairs(runner)) == 2
    found += fed(runner, WORLD.readings[HALF:]) + runner.finish()
    assert of("p0", found) == alone(first, WORLD.readings)
    assert of("p1", found) == alone(second, WORLD.readings, HALF)
    assert of("p2", found) == alone(third, WORLD.readings, HALF)


def test_who_begins_before_the_first_pair_does_not_get_pairs_of_earlier_events() -> None:
    """Events came that make no pair yet: there are no pairs, but an event that one may take."""
    first, second, _ = unlike("  {a} is within 3m of E\n")
    people = WORLD.pull.instances("person")
    status = people.columns["status"].tolist()
    guest, other = (people.ids[status.index(one)] for one in ("guest", "employee"))
    readings = [
        Reading(10 * place, f"e{place}", "person.position", who, (1.0, 1.0))
        for place, who in enumerate((guest, other, other, guest))
    ]
    together, lone = started(first), started()
    found = fed(together, readings[:1]) + together.advance(5)
    fed(lone, readings[:1]) + lone.advance(5)
    for runner in (together, lone):
        runner.deploy(second)
    found += fed(together, readings[1:], 1) + together.finish()
    expected = fed(lone, readings[1:], 1) + lone.finish()
    assert of("p1", found) == expected
    assert len(of("p0", found)) > len(expected)


def test_who_begins_later_does_not_get_occurrences_of_before() -> None:
    first, second, _ = unlike(INSIDE_BOTH)
    for since in range(40, 60, 3):
        runner = started(first)
        found = fed(runner, WORLD.readings[:since])
        runner.deploy(second)
        found += fed(runner, WORLD.readings[since:80]) + runner.finish()
        assert of("p1", found) == alone(second, WORLD.readings[:80], since)


@pytest.mark.slow
@every_kind
def test_it_lives_on_when_the_policy_that_brought_it_is_withdrawn(conditions: str) -> None:
    first, second, third = unlike(conditions)
    runner = started(first, second)
    found = fed(runner, WORLD.readings[:HALF])
    runner.withdraw("p0")
    gc.collect()
    runner.deploy(third)
    found += fed(runner, WORLD.readings[HALF:]) + runner.finish()
    assert of("p1", found) == alone(second, WORLD.readings)
    assert of("p2", found) == alone(third, WORLD.readings, HALF)


@every_kind
def test_what_was_common_is_common_after_a_restart_too(conditions: str) -> None:
    plans = unlike(conditions)
    plans.append(plan(f"{conditions}  K is parked Q\n", "cart"))  # knows other streams too
    runner = started(*plans)
    found = fed(runner, WORLD.readings[:HALF], 3)
    again = started(*plans)
    again.restore(runner.snapshot())
    assert len(pairs(again)) == 1
    found += fed(again, WORLD.readings[HALF:], 3) + again.finish()
    for each in plans:
        assert of(each.policy, found) == alone(each, WORLD.readings)


def test_a_snapshot_holds_all_that_each_policy_needs_alone() -> None:
    plans = unlike(THEN)
    runner = started(*plans)
    before = fed(runner, WORLD.readings[:HALF])
    groups = read_snapshot(runner.snapshot()).groups
    for each in plans:
        [saved] = [group for group in groups if each.policy in group.plans]
        operator = make_operator(each, WORLD.pull)
        operator.restore(saved.state)
        rest = readings_batch(WORLD.readings[HALF:])
        found = of(each.policy, before) + operator.process(rest, 2**62)
        assert found == alone(each, WORLD.readings)


def test_a_failing_step_fails_for_all_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = started(*unlike(NEAR), plan("  A is inside R\n", "other"))
    fed(runner, WORLD.readings[:HALF])
    [common] = pairs(runner)
    tried = []

    def walk(first: object, second: object) -> object:
        tried.append(1)
        raise ValueError("no")

    monkeypatch.setattr(common.correlator, "pairs", walk)
    fed(runner, WORLD.readings[HALF:])
    assert sorted(runner.failed()) == ["p0", "p1", "p2"]
    assert len(tried) == 1
    assert list(runner.policies()) == ["other"]


# --- memory ---


@pytest.mark.slow
def test_what_is_common_is_kept_once_and_as_long_as_the_longest_memory_needs() -> None:
    world = random_world(Chance(11), events=1_500)
    texts = {
        "p": NEAR,
        "q": f"{NEAR}  at most once per 1 ms\n",
        "r": f"{NEAR}  A is inside R FOLLOWED-BY A is inside Q\n",  # remembers six windows
    }
    plans = [plan(text, name, window_ms=1_000) for name, text in texts.items()]
    runner = LocalRunner(plans, world.pull, lateness_ms=0)
    fed(runner, world.readings, 50)
    [common] = pairs(runner)
    assert len(common.readers) == 3
    tables = {id(one.operator._window.occurrences[0]) for one in runner._running._groups}
    assert len(tables) == 1
    runner.snapshot()
    held, side = common.correlator.size(), common.sides[0].table
    assert side is not None
    assert held > 20
    assert 20 < len(side) < len(world.readings) / 3
    before = len(side)
    runner.withdraw("r")
    gc.collect()
    last = world.readings[-1]
    fed(runner, [msgspec.structs.replace(last, id="z", time=last.time + 1)])
    runner.snapshot()
    assert common.correlator.size() < held / 3
    assert len(side) < before / 3


def test_what_no_policy_has_any_more_is_not_kept() -> None:
    runner = started(*unlike(THEN))
    fed(runner, WORLD.readings[:HALF])
    for policy in list(runner.policies()):
        runner.withdraw(policy)
    gc.collect()
    assert len(runner._running._shared._kept) == 0


# --- ordinals ---


def test_events_have_the_same_ordinals_for_all_operators() -> None:
    runner = started(plan("  A is inside R\n", "p"))
    fed(runner, WORLD.readings[:HALF], 1)
    runner.deploy(plan(f"{NEAR}  K is parked Q\n", "q"))
    fed(runner, WORLD.readings[HALF:], 1)
    logs = [one.operator._window.events for one in runner._running._groups]
    known = [
        dict(zip(saved_ordinals(saved).tolist(), saved["ids"], strict=True))
        for saved in (log.state(0) for log in logs)
    ]
    both = known[0].keys() & known[1].keys()
    assert both
    assert all(known[0][one] == known[1][one] for one in both)


@every_kind
def test_a_state_saved_where_each_plan_counted_for_itself_is_taken_over(conditions: str) -> None:
    """Before, ordinals had no gaps and were each plan's own."""
    plans = [*unlike(conditions, 2), plan(f"{conditions}  K is parked Q\n", "cart")]
    runner, readings = started(*plans), WORLD.readings[:HALF]
    found = fed(runner, readings[:50], 1)
    saved = read_snapshot(runner.snapshot())
    saved.groups = [counted_alone(group) for group in saved.groups]
    again = started(*plans)
    again.restore(msgspec.msgpack.encode(saved))
    found += fed(again, readings[50:], 1) + again.finish()
    for each in plans:
        assert of(each.policy, found) == alone(each, readings)


def counted_alone(group: SavedGroup) -> SavedGroup:
    state = unpack_state(group.state)
    window = state["window"]
    ordinals = saved_ordinals(window["events"])
    del window["events"]["ordinals"]
    own = {-1: -1, **{one: place for place, one in enumerate(ordinals.tolist(), 7)}}
    window["events"]["next"] = 7 + len(ordinals)
    tables = [*window["occurrences"].values(), *window["correlations"]["sides"].values()]
    tables += [*state["open"].values(), *([] if state["waiting"] is None else [state["waiting"]])]
    for table in tables:
        for name in table:
            if name.startswith(("event", "other")):
                table[name][:] = [own[one] for one in table[name].tolist()]
    for used in window["correlations"]["used"].values():
        for pair in used:
            pair[2] = {
                own.get(event, event): value if event >= 0 else own.get(value, 0)
                for event, value in pair[2].items()
                if event < 0 or event in own
            }
    return msgspec.structs.replace(group, state=pack_state(state))


def test_a_state_grows_into_a_later_numbering() -> None:
    shared = SharedCache()
    assert shared.reserve_ordinals(5) == 0
    assert shared.begin_batch(readings_batch(WORLD.readings[:3])) == 5
    assert shared.reserve_ordinals(2) == 6
    assert shared.reserve_ordinals(20) == 0
    assert shared.begin_batch(readings_batch(WORLD.readings[:3])) == 20


@every_kind
def test_what_another_runner_knows_is_taken_over_whatever_it_counted(conditions: str) -> None:
    plans = unlike(conditions)
    runner, other, expected = started(*plans), started(plans[1]), started(*plans)
    fed(runner, WORLD.readings[:HALF])
    fed(expected, WORLD.readings[:HALF])
    fed(other, WORLD.readings[:HALF], size=7)
    runner.adopt(other, ())
    rest = WORLD.readings[HALF:]
    assert fed(runner, rest) + runner.finish() == fed(expected, rest) + expected.finish()
