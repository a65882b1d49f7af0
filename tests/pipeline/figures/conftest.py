"""A slow judge of the report: the same figures by plain loops over the lake's files, and lakes of
odd ledgers to judge.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rapport.context.broker_status import BrokerSummary
from rapport.core.detection import Detection, Undecided
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.message import Identifier, Message
from rapport.core.times import DurationCounts, DurationHistogram
from rapport.ensemble.runtime.gossip_summary import GossipSummary
from rapport.lake.bronze import PARTITION_BY, SCHEMA, bronze_table, envelope_rows
from rapport.lake.places import Lake
from rapport.lake.table import Table

Row = dict[str, Any]
Tables = dict[str, list[Row]]
MINUTE, HOUR = 60_000, 3_600_000
NODE = {
    "control",
    "dead_letters",
    "detections",
    "intercepted",
    "log",
    "overlay.summaries",
    "pipeline",
    "policies",
    "tables.rows",
}
NODE |= {
    "quarantine",
    "releases",
    "site.changes",
    "context.audit",
    "context.found",
    "context.wishes",
}
BEGIN = 1_772_452_800_000  # 2026-03-02T12:00:00Z


# --- the judge ---


def read_lake(lake: Path) -> dict[str, list[Row]]:
    """Every row of bronze, by channel, in the order of positions."""
    found: dict[str, list[Row]] = defaultdict(list)
    for channel in Lake.at(lake).names("bronze"):
        for row in envelope_rows(Lake.at(lake).open("bronze", channel).read()).to_pylist():
            row["channel"] = channel
            row["headers"] = dict(row["headers"] or [])
            try:
                row["said"] = json.loads(row["data"])
            except ValueError:
                row["said"] = None
            row["said"] = row["said"] if isinstance(row["said"], dict) else {}
            found[channel].append(row)
    return {name: sorted(rows, key=lambda row: row["position"]) for name, rows in found.items()}


def causes_of(row: Row) -> list[str]:
    texts = row["headers"].get("cause", "").split()
    return [text.replace("%20", " ").replace("%25", "%") for text in texts]


def groups(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in keys)].append(row)
    return dict(sorted(found.items()))


def spread(values: Iterable[int | None], prefix: str) -> Row:
    known = sorted(value for value in values if value is not None)
    if not known:
        names = ("timed", "median", "p90", "p99", "longest")
        return dict.fromkeys(f"{prefix}_{name}" for name in names)
    ranks = {"median": 50, "p90": 90, "p99": 99}
    told = {name: known[-(-len(known) * percent // 100) - 1] for name, percent in ranks.items()}
    told = {"timed": len(known)} | told | {"longest": known[-1]}
    return {f"{prefix}_{name}": value for name, value in told.items()}


def first_time(rows: Iterable[Row], *states: str) -> int | None:
    return min((row["time"] for row in rows if row["state"] in states), default=None)


def between(begin: int | None, end: int | None) -> int | None:
    return end - begin if begin is not None and end is not None and end >= begin else None


def judge(lake: Path) -> Tables:
    """Every table of the report."""
    rows = read_lake(lake)
    tables: Tables = {}
    judge_channels(rows, tables)
    judge_findings(rows, tables)
    judge_ledger(rows, tables)
    judge_mediation(rows, tables)
    judge_timing(rows, tables)
    judge_overlay(rows, tables)
    judge_provenance(rows, tables)
    return {name: table for name, table in tables.items() if not name.startswith("_")}


def judge_channels(rows: dict[str, list[Row]], tables: Tables) -> None:
    tables |= {"channels": [], "channel_gaps": [], "delays": []}
    for channel, own in sorted(rows.items()):
        received = sorted(row["received"] for row in own)
        gaps = [
            {"channel": channel, "begin": a, "end": b, "duration": b - a}
            for a, b in pairwise(received)
            if b - a >= MINUTE
        ]
        gaps.sort(key=lambda gap: (-gap["duration"], gap["begin"]))
        tables["channel_gaps"] += gaps[:10]
        for row in own:
            row["minute"] = row["received"] // MINUTE * MINUTE
        minutes = groups(own, "channel", "minute")
        tables["channels"].append(
            {
                "channel": channel,
                "events": len(own),
                "first": received[0],
                "last": received[-1],
                "minutes": len(minutes),
                "busiest": max(map(len, minutes.values())),
                "missing": own[-1]["position"] - own[0]["position"] + 1 - len(own),
                "gaps": len(gaps),
                "longest_gap": gaps[0]["duration"] if gaps else 0,
            }
        )
        if channel in NODE or channel.startswith("output."):
            continue
        for (_, source), within in groups(own, "channel", "source").items():
            delays = [row["received"] - row["time"] for row in within]
            told = {"channel": channel, "source": source, "events": len(within)}
            told["ahead"] = sum(delay < 0 for delay in delays)
            tables["delays"].append(told | spread(delays, "delay"))


def judge_findings(rows: dict[str, list[Row]], tables: Tables) -> None:
    found: dict[str, Row] = {}
    for row in rows.get("detections", []):
        kind = {"rapport.policy.detected": "detected", "rapport.policy.undecided": "undecided"}
        if row["type"] not in kind:
            continue
        new = {
            "id": row["id"],
            "kind": kind[row["type"]],
            "policy": row["said"].get("policy", ""),
            "time": row["time"],
            "received": row["received"],
            "second_look": "secondlook" in row["headers"],
            "causes": causes_of(row),
            "silent": row["said"].get("silent") or [],
            "hour": row["time"] // HOUR * HOUR,
        }
        known = found.setdefault(row["id"], new)
        known["received"] = min(known["received"], new["received"])
        known["second_look"] |= new["second_look"]
    tables["_found"] = list(found.values())
    tables |= {"detections": [], "detections_by_hour": [], "undecided": []}
    for (policy,), own in groups(found.values(), "policy").items():
        detected = [one for one in own if one["kind"] == "detected"]
        tables["detections"].append(
            {
                "policy": policy,
                "count": len(detected),
                "undecided": len(own) - len(detected),
                "second_look": sum(one["second_look"] for one in detected),
                "first": min((one["time"] for one in detected), default=None),
                "last": max((one["time"] for one in detected), default=None),
            }
        )
        silent: dict[str, int] = defaultdict(int)
        for one in own:
            for source in set(one["silent"]):
                silent[source] += 1
        tables["undecided"] += [
            {"policy": policy, "silent": source, "count": count}
            for source, count in sorted(silent.items())
        ]
    for (policy, hour), own in groups(found.values(), "policy", "hour").items():
        kinds = [one["kind"] for one in own]
        tables["detections_by_hour"].append(
            {
                "policy": policy,
                "hour": hour,
                "detected": kinds.count("detected"),
                "undecided": kinds.count("undecided"),
            }
        )
    late: dict[str, Row] = {}
    for row in rows.get("detections", []):
        if row["type"] == "rapport.policy.late":
            known = late.setdefault(row["id"], row["said"] | {"received": row["received"]})
            known["received"] = min(known["received"], row["received"])
    verdicts = []
    for one in late.values():
        fits = [
            (row["received"], site_source(row))
            for row in rows.get("events", [])
            if (row["id"], row["time"]) == (one["id"], one["time"])
            and row["received"] <= one["received"]
        ]
        verdicts.append({"source": max(fits)[1] if fits else "", "time": one["time"]})
    tables["late"] = [
        {
            "source": source,
            "count": len(own),
            "first": min(one["time"] for one in own),
            "last": max(one["time"] for one in own),
        }
        for (source,), own in groups(verdicts, "source").items()
    ]


def site_source(row: Row) -> str:
    return row["headers"].get("rawchannel", "raw." + row["source"])[4:]


def judge_ledger(rows: dict[str, list[Row]], tables: Tables) -> None:
    log = rows.get("log", [])
    lines = []
    for row in log:
        if row["type"].startswith("rapport.delivery."):
            said = row["said"]
            names = ("peer", "address", "adapter", "policy", "detection", "result", "reason")
            line = {name: said.get(name, "") for name in (*names, "receiver")}
            line |= {name: said.get(name, 0) for name in ("attempt", "until", "queued")}
            line |= {"message": said.get("message") or row["subject"], "time": row["time"]}
            line |= {"state": row["type"][17:], "position": row["position"]}
            lines.append(line)
        elif row["type"] == "rapport.message" and row["said"].get("peer"):
            line = dict.fromkeys(("result", "reason", "receiver"), "")
            names = ("peer", "address", "adapter", "policy", "detection")
            line |= {name: row["said"].get(name, "") for name in names}
            line |= {"attempt": 1, "until": 0, "queued": 0, "state": "queued"}
            lines.append(
                line | {key: row[key] for key in ("time", "position")} | {"message": row["id"]}
            )
    tables["_lines"] = lines
    judge_deliveries(lines, tables)
    judge_people(lines, tables)
    judge_messages(log, lines, tables)
    judge_adapters(tables)


def judge_deliveries(lines: list[Row], tables: Tables) -> None:
    tables["deliveries"] = []
    addressed = [line for line in lines if line["address"]]
    for (message, peer, address), own in groups(addressed, "message", "peer", "address").items():
        newest = max(own, key=lambda line: line["position"])
        tables["deliveries"].append(
            {
                "message": message,
                "peer": peer,
                "address": address,
                "adapter": max(line["adapter"] for line in own),
                "policy": max(line["policy"] for line in own),
                "detection": max(line["detection"] for line in own),
                "state": newest["state"],
                "again_at": newest["until"],
                "attempts": max(line["attempt"] for line in own),
                "failed_attempts": len(
                    {line["attempt"] for line in own if line["state"] == "failed"}
                ),
                "queued_at": min(
                    (
                        line["time"] if line["state"] == "queued" else line["queued"]
                        for line in own
                        if line["state"] == "queued" or line["queued"]
                    ),
                    default=None,
                ),
                "handed_at": first_time(own, "handed"),
                "confirmed_at": first_time(own, "confirmed"),
                "taken_at": first_time(own, "handed", "confirmed"),
            }
        )


def judge_people(lines: list[Row], tables: Tables) -> None:
    tables |= {"people": [], "peers": []}
    for (message, peer), own in groups(
        [line for line in lines if line["peer"]], "message", "peer"
    ).items():
        personal = {line["state"] for line in own if not line["address"]}
        taken, answered = first_time(own, "handed", "confirmed"), first_time(own, "answered")
        tables["people"].append(
            {
                "message": message,
                "peer": peer,
                "policy": max(line["policy"] for line in own),
                "taken_at": taken,
                "answered_at": answered,
                **{
                    state: state in personal for state in ("failed", "timed_out", "refused", "held")
                },
                "response": between(taken, answered),
            }
        )
    for (peer,), own in groups(tables["people"], "peer").items():
        reached = [one for one in own if one["taken_at"] is not None]
        answered_by = [one for one in own if one["answered_at"] is not None]
        tables["peers"].append(
            {
                "peer": peer,
                "asked": len(own),
                "reached": len(reached),
                "answered": len(answered_by),
                "unanswered": sum(one["answered_at"] is None for one in reached),
                "unreached": sum(one["taken_at"] is one["answered_at"] is None for one in own),
                **{
                    state: sum(one[state] for one in own)
                    for state in ("failed", "timed_out", "refused", "held")
                },
                **spread([one["response"] for one in own], "response"),
            }
        )


def judge_adapters(tables: Tables) -> None:
    people = {(one["message"], one["peer"]): one for one in tables["people"]}
    tables["adapters"] = []
    for (adapter,), own in groups(tables["deliveries"], "adapter").items():
        taken = [one for one in own if one["taken_at"] is not None]
        asked = [people.get((one["message"], one["peer"])) for one in taken]
        answers = [person["answered_at"] if person else None for person in asked]
        response = [
            between(one["taken_at"], answer) for one, answer in zip(taken, answers, strict=True)
        ]
        waits = [
            one["state"] in ("queued", "unknown") or (one["state"] == "failed" and one["again_at"])
            for one in own
        ]
        tables["adapters"].append(
            {
                "adapter": adapter,
                "deliveries": len(own),
                "attempts": sum(one["attempts"] for one in own),
                "failed_attempts": sum(one["failed_attempts"] for one in own),
                "reached": len(taken),
                "confirmed": sum(one["confirmed_at"] is not None for one in own),
                "failed": sum(one["state"] == "failed" and not one["again_at"] for one in own),
                "waiting": sum(map(bool, waits)),
                "stopped": sum(one["state"] == "closed" for one in own),
                "timed_out": sum(bool(person and person["timed_out"]) for person in asked),
                "answered": sum(answer is not None for answer in answers),
                **spread([between(one["queued_at"], one["taken_at"]) for one in own], "handing"),
                **spread(response, "response"),
            }
        )


def judge_messages(log: list[Row], lines: list[Row], tables: Tables) -> None:
    written: dict[str, list[Row]] = defaultdict(list)
    for row in log:
        if row["type"] == "rapport.message":
            written[row["id"]].append(row)
    told = {message: own for (message,), own in groups(lines, "message").items()}
    tables["messages"] = []
    for message in sorted({*written, *told}):
        events, own = written.get(message, []), told.get(message, [])
        states = {line["state"] for line in own}
        unmapped = any(line["reason"].startswith("action.unmapped") for line in own)
        results = [line for line in own if line["result"]]
        ended = max(results, key=lambda line: line["position"])["result"] if results else "open"

        def known(name: str, events: list[Row] = events, own: list[Row] = own) -> str:
            lines = max((line[name] for line in own), default="")
            return lines or max((row["said"].get(name, "") for row in events), default="")

        def field(name: str, events: list[Row] = events) -> str:
            return max((row["said"].get(name, "") for row in events), default="")

        tables["messages"].append(
            {
                "message": message,
                "policy": known("policy"),
                "detection": known("detection"),
                "conversation": field("conversation-id") or known("detection") or message,
                "refers_to": field("refers-to"),
                "time": min(row["time"] for row in events or own),
                "written": bool(events),
                "unmapped": unmapped,
                "handed": bool(states & {"handed", "confirmed"}),
                "confirmed": "confirmed" in states,
                "answered": "answered" in states,
                "escalated": "escalated" in states,
                "result": "unmapped" if unmapped else ended,
            }
        )
    judge_funnel(tables)


def judge_funnel(tables: Tables) -> None:
    counts = {row["policy"]: row["count"] for row in tables["detections"]}
    by_policy = {policy: own for (policy,), own in groups(tables["messages"], "policy").items()}
    tables["funnel"] = []
    for policy in sorted({*counts, *by_policy}):
        own = by_policy.get(policy, [])
        said = [one for one in own if not one["unmapped"]]
        row: Row = {"policy": policy, "detected": counts.get(policy, 0)}
        row["with_message"] = len({one["detection"] for one in said} - {""})
        row["messages"] = len(said)
        row["missing"] = sum(not one["written"] for one in said)
        for step in ("handed", "confirmed", "answered", "escalated"):
            row[step] = sum(one[step] for one in own)
        for result in ("done", "failed", "timed_out", "open", "unmapped"):
            row[result] = sum(one["result"] == result for one in own)
        tables["funnel"].append(row)


def judge_mediation(rows: dict[str, list[Row]], tables: Tables) -> None:
    held = []
    for row in rows.get("quarantine", []):
        said, headers = row["said"], row["headers"]
        event = said.get("event") or {}
        place = row["id"]
        for told in (headers, event):
            if "rawchannel" in told:
                place = f"{told['rawchannel']}/{told['rawposition']}"
                break
        source = said.get("source") or event.get("rawchannel", "")[4:] or event.get("source", "")
        meaning = said.get("interpretation") or headers.get("interpretation")
        held.append(
            {
                "reason": said.get("reason") or row["type"],
                "source": source,
                "interpretation": meaning or event.get("interpretation", ""),
                "found_by": "policy" if row["type"].startswith("rapport.policy") else "mediation",
                "place": place,
                "id": row["id"],
                "received": row["received"],
            }
        )
    keys = ("reason", "source", "interpretation", "found_by")
    quarantine = [
        dict(zip(keys, key, strict=True))
        | {
            "count": len({one["place"] for one in own}),
            "times": len({one["id"] for one in own}),
            "first": min(one["received"] for one in own),
            "last": max(one["received"] for one in own),
        }
        for key, own in groups(held, *keys).items()
    ]
    tables["quarantine"] = sorted(quarantine, key=lambda row: -row["count"])
    readings = [
        {
            "source": site_source(row),
            "interpretation": row["headers"].get("interpretation", ""),
            "released": "released" in row["headers"],
            "corrects": "corrects" in row["headers"],
        }
        for row in rows.get("events", [])
    ]
    read = groups(readings, "source", "interpretation")
    stopped = groups(held, "source", "interpretation")
    tables["mediation"] = []
    for key in sorted({*read, *stopped}):
        made, not_made = read.get(key, []), stopped.get(key, [])
        by = {
            who: len({one["place"] for one in not_made if one["found_by"] == who})
            for who in ("mediation", "policy")
        }
        tables["mediation"].append(
            {
                "source": key[0],
                "interpretation": key[1],
                "readings": len(made),
                "released": sum(one["released"] for one in made),
                "corrections": sum(one["corrects"] for one in made),
                "rejected": by["mediation"],
                "set_aside": by["policy"],
            }
        )


def judge_timing(rows: dict[str, list[Row]], tables: Tables) -> None:
    raw = [row for channel, own in rows.items() if channel.startswith("raw.") for row in own]
    arrived: dict[tuple[str, str], int] = {}
    for row in raw:
        key = row["source"], row["id"]
        arrived[key] = max(row["received"], arrived.get(key, row["received"]))
    readings: dict[str, list[Row]] = defaultdict(list)
    for row in rows.get("events", []):
        readings[row["id"]].append(row)
    found = {one["id"]: one for one in tables["_found"] if one["kind"] == "detected"}
    messages = {one["message"]: one for one in tables["messages"]}
    told = []
    for one in tables["deliveries"]:
        detection = found.get(messages[one["message"]]["detection"])
        if detection is None or one["taken_at"] is None:
            continue
        behind = [
            row
            for cause in detection["causes"]
            for row in readings[cause]
            if row["received"] <= detection["received"]
        ]
        doors = [
            min(row["received"], arrived.get((row["source"], row["id"]), row["received"]))
            for row in behind
        ]
        names = ("message", "peer", "address", "adapter")
        told.append(
            {name: one[name] for name in names}
            | {
                "policy": detection["policy"],
                "detection": detection["id"],
                "sensor_at": max((row["time"] for row in behind), default=None),
                "received_at": max(doors, default=None),
                "due_at": detection["time"],
                "detected_at": detection["received"],
                "taken_at": one["taken_at"],
            }
        )
    order = ("taken_at", "message", "peer", "address")
    tables["sensor_to_phone"] = sorted(told, key=lambda row: [row[name] for name in order])


def judge_provenance(rows: dict[str, list[Row]], tables: Tables) -> None:
    found = {one["id"]: one for one in tables["_found"] if one["kind"] == "detected"}
    messages = {one["message"]: one for one in tables["messages"]}
    edges: list[tuple[Any, ...]] = []
    for one in messages.values():
        conversation, id = one["conversation"], one["message"]
        if one["detection"]:
            led = ("detection", one["detection"], "message", id, one["policy"], one["result"])
            edges.append((conversation, "led to", *led, one["time"]))
        if one["refers_to"]:
            refers = ("message", id, "message", one["refers_to"], "", "", one["time"])
            edges.append((conversation, "refers to", *refers))
        detection = found.get(one["detection"])
        for cause in detection["causes"] if detection else ():
            shown = ("reading", cause, "detection", detection["id"], "", "", detection["time"])
            edges.append((conversation, "shows", *shown))
        escalated = [
            line
            for line in tables["_lines"]
            if line["message"] == id and line["state"] == "escalated"
        ]
        for line in escalated:
            asked = line["receiver"]
            first = min(other["time"] for other in escalated if other["receiver"] == asked)
            edges.append(
                (conversation, "escalated", "message", id, "receiver", asked, "", "", first)
            )
    for one in tables["deliveries"]:
        time = one["queued_at"] if one["taken_at"] is None else one["taken_at"]
        told = ("message", one["message"], "peer", one["peer"], one["adapter"], one["state"], time)
        edges.append((messages[one["message"]]["conversation"], "told", *told))
    for one in tables["people"]:
        if one["answered_at"] is not None:
            answer = ("peer", one["peer"], "message", one["message"], "", "", one["answered_at"])
            edges.append((messages[one["message"]]["conversation"], "answered", *answer))
    for channel, own in rows.items():
        for row in own:
            cause = row["headers"].get("cause", "").replace("%20", " ").replace("%25", "%")
            if "actionhops" in row["headers"] and cause in messages:
                event = ("message", cause, "event", row["id"], channel, "", row["time"])
                edges.append((messages[cause]["conversation"], "appended", *event))
    names = ("conversation", "relation", "from_kind", "from_id", "to_kind", "to_id", "via")
    names += ("state", "time")
    once = [edge for edge in edges if edge[1] not in ("shows", "appended", "escalated")]
    once += list({edge for edge in edges if edge[1] in ("shows", "appended", "escalated")})
    tables["provenance"] = [dict(zip(names, edge, strict=True)) for edge in once]


def judge_overlay(rows: dict[str, list[Row]], tables: Tables) -> None:
    """Every count of every step becomes so many durations again."""
    every = reversed(rows.get("overlay.summaries", []))
    once = {(row["source"], row["id"]): row for row in every}.values()
    tables |= {"gossip": [], "gossip_messages": [], "brokers": []}
    gossip = [
        row["said"] | {"position": row["position"]}
        for row in once
        if row["type"] == "rapport.ensemble.summary" and row["said"]
    ]
    for (node,), own in groups(gossip, "node").items():
        newest = max(own, key=lambda one: (one["until"], one["position"]))
        tables["gossip"].append(
            {
                "node": node,
                "begin": min(one["since"] for one in own),
                "end": max(one["until"] for one in own),
                "covered": sum(one["until"] - one["since"] for one in own),
                "sent": sum(sum(one["sent"].values()) for one in own),
                "received": sum(sum(one["received"].values()) for one in own),
                "first": sum(one["first"] for one in own),
                "replaced": sum(one["ages"]["count"] for one in own),
                "replicas": newest["replicas"],
                **spread_of_steps([one["ages"] for one in own], "age"),
            }
        )
        kinds = sorted({kind for one in own for kind in (*one["sent"], *one["received"])})
        tables["gossip_messages"] += [
            {
                "node": node,
                "kind": kind,
                "sent": sum(one["sent"].get(kind, 0) for one in own),
                "received": sum(one["received"].get(kind, 0) for one in own),
            }
            for kind in kinds
        ]
    answers = [
        {"broker": row["said"]["broker"], "answer": answer, "counts": counts}
        for row in once
        if row["type"] == "rapport.context.summary"
        for answer, counts in row["said"]["answers"].items()
    ]
    for (broker, answer), own in groups(answers, "broker", "answer").items():
        counts = [one["counts"] for one in own]
        told = {"broker": broker, "answer": answer, "requests": sum(one["count"] for one in counts)}
        tables["brokers"].append(told | spread_of_steps(counts, "response_us"))


def spread_of_steps(counts: list[Row], prefix: str) -> Row:
    every = [step for one in counts for step, times in one["steps"] for _ in range(times)]
    told = spread(every, prefix)
    return told | {f"{prefix}_longest": max(one["longest"] for one in counts)} if every else told


@pytest.fixture(scope="session")
def judged() -> Callable[[Path], Tables]:
    """The figures of a lake, by plain loops."""
    return judge


# --- odd lakes ---


class OddLog:
    """Channels filled with chance: lines out of order and twice, messages missing, clocks ahead."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = BEGIN
        self.rows: dict[str, list[StoredEvent]] = defaultdict(list)
        self.lines = 0

    def append(self, channel: str, event: Event) -> None:
        self.now += self.chance.choice((0, 1, 40, 900, 20_000, 70_000, 400_000))
        rows = self.rows[channel]
        position = rows[-1].position + self.chance.choice((1, 1, 1, 3)) if rows else 1
        rows.append(StoredEvent(position, self.now, event))

    def write(self, lake: Path, reported: Callable[[], object]) -> None:
        """The lake, cut into files at odd places; `reported` is called when half of it is there."""
        cuts = {
            channel: self.chance.randrange(len(rows)) if rows else 0
            for channel, rows in self.rows.items()
        }
        self._write(lake, {channel: rows[: cuts[channel]] for channel, rows in self.rows.items()})
        reported()
        self._write(lake, {channel: rows[cuts[channel] :] for channel, rows in self.rows.items()})

    def _write(self, lake: Path, parts: dict[str, list[StoredEvent]]) -> None:
        for channel, rows in parts.items():
            for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                if part:
                    uri = Lake.at(lake).table_uri("bronze", channel)
                    table = Table.ensure(uri, SCHEMA, partition_by=PARTITION_BY)
                    table.append(bronze_table(part), progress={"export": part[-1].position})

    def event(self, kind: str, id: str, time: int = 0, **more: Any) -> Event:
        made = {"source": "s", "time": time or self.now} | more
        return make_event(type=kind, id=id, **made)

    def readings(self) -> None:
        for number in range(60):
            source = self.chance.choice(("badges", "cameras", "doors"))
            time = self.now + self.chance.choice((-9_000, -50, -3, 0, 5_000))
            id = f"e {number % 50}"  # ids are unique per source only, and have blanks
            raw = self.event("badge", id, time, source=source)
            self.append(f"raw.{source}", raw)
            headers = {"cause": id.replace(" ", "%20"), "interpretation": f"{source}@1"}
            headers |= {"rawchannel": f"raw.{source}"} if self.chance.random() < 0.9 else {}
            headers |= {"released": "1"} if self.chance.random() < 0.1 else {}
            headers |= {"corrects": "e1"} if self.chance.random() < 0.1 else {}
            if self.chance.random() < 0.9:
                reading = self.event("person.position", id, time, source=source, headers=headers)
                self.append("events", reading)
                if self.chance.random() < 0.2:
                    data = {"id": id, "time": time + self.chance.choice((0, 0, 1))}
                    self.append(
                        "detections",
                        self.event("rapport.policy.late", f"l{number}", time, data=data),
                    )
            else:
                self.hold(raw, source, number)

    def hold(self, raw: Event, source: str, number: int) -> None:
        headers = {"rawchannel": f"raw.{source}", "rawposition": str(number % 7)}
        data: Row = {"reason": "no.unit", "source": source, "interpretation": f"{source}@1"}
        kind = "rapport.mediation.rejected"
        match self.chance.randrange(4):
            case 0:
                event = {"source": source, "rawposition": str(number % 3)}
                event |= {"rawchannel": "raw.x", "interpretation": "x@2"} if number % 2 else {}
                event = event if number % 2 else {"source": source}
                data, headers = {"reason": "policy.ahead", "event": event}, {}
                kind = "rapport.policy.quarantined"
            case 1:
                data, headers = {}, {}
            case _:
                pass
        self.append("quarantine", self.event(kind, f"q{number % 40}", data=data, headers=headers))

    def findings(self) -> list[str]:
        ids = []
        for number in range(25):
            causes = tuple((self.now, f"e {self.chance.randrange(60)}") for _ in range(number % 4))
            said: Row = {
                "policy": self.chance.choice(("alone", "crowd")),
                "time": self.now - self.chance.choice((0, 5_000, HOUR)),
                "bindings": {"A": str(number)},
                "causes": causes,
            }
            if number % 5 == 4:
                silent = ("gate",) if number % 2 else ("cameras", "gate")
                event = Undecided(**said, silent=silent).to_event(source="policy")
            else:
                event = Detection(**said).to_event(source="policy")
                ids.append(event.id)
            self.append("detections", event)
            if number % 7 == 0:
                self.append("detections", event)
        return ids

    def line(self, state: str, message: str, **data: Any) -> None:
        self.lines += 1
        line = {"message": message} | data
        event = self.event(
            f"rapport.delivery.{state}",
            f"line{self.lines}",
            self.now + self.chance.choice((0, 0, 3, -4_000)),
            subject=message,
            data=line,
            headers={"cause": message},
        )
        self.append("log", event)
        if self.chance.random() < 0.1:
            self.append("log", event)

    def message(self, number: int, detections: list[str]) -> None:
        chance, id = self.chance, f"m{number}"
        detection = chance.choice([*detections, "gone", ""])
        origin = {"policy": chance.choice(("alone", "crowd", "other")), "detection": detection}
        if chance.random() < 0.8:
            said = Message(
                type="NOTIFICATION",
                subtype="raise alarm",
                sender=Identifier("component", "policy"),
                id=id,
                conversation=chance.choice((detection, "", "c7")),
                refers_to=f"m{number - 1}" if chance.random() < 0.2 else "",
            )
            causes = (detection,) if detection else ()
            queued = {"peer": "tom", "address": "inbox:", "adapter": "inbox"}
            extra = origin | (queued if chance.random() < 0.2 else {})
            self.append("log", said.to_event(source="c", time=self.now, causes=causes, **extra))
        if chance.random() < 0.1:
            self.line("failed", id, reason="action.unmapped: nothing", **origin)
            return
        states: list[tuple[str, Row]] = []
        for peer in chance.sample(("ana", "ben", "lea"), chance.randrange(4)):
            states += self.told(peer)
        if chance.random() < 0.3:
            states.append(("escalated", {"reason": "no answer", "receiver": "collective:leads"}))
        if chance.random() < 0.6:
            result = chance.choice(("done", "failed", "timed_out"))
            states.append(("closed", {"result": result}))
        chance.shuffle(states)
        for state, data in states:
            self.line(state, id, **(origin if chance.random() < 0.9 else {}), **data)
        if chance.random() < 0.2:
            action = self.event("alarm", f"a{number}", headers={"cause": id, "actionhops": "1"})
            self.append("raw.doors", action)

    def told(self, peer: str) -> list[tuple[str, Row]]:
        states: list[tuple[str, Row]] = []
        for adapter in self.chance.sample(("mail", "webhook", "inbox"), self.chance.randrange(4)):
            place = {"peer": peer, "address": f"{adapter}:{peer}", "adapter": adapter}
            for attempt in range(1, self.chance.randrange(1, 4)):
                states.append(("queued", place | {"attempt": attempt}))
                ended = self.chance.choice(("handed", "confirmed", "failed", "unknown", "closed"))
                until = self.chance.choice((0, BEGIN + 9)) if ended == "failed" else 0
                states.append((ended, place | {"attempt": attempt, "until": until}))
        if self.chance.random() < 0.2:  # one line for queueing, handing over and closing
            place = {"peer": peer, "address": f"inbox:{peer}", "adapter": "inbox", "attempt": 1}
            states.append(("handed", place | {"queued": BEGIN + 5, "result": "done"}))
        for state in ("answered", "timed_out", "failed", "refused", "held"):
            if self.chance.random() < (0.6 if state == "answered" else 0.3):
                states.append((state, {"peer": peer}))
        return states

    def summaries(self) -> None:
        """Of two nodes' gossip and two brokers; some lines twice, some of nothing new, one that
        cannot be read.
        """
        chance = self.chance
        for number in range(40):
            since = self.now
            if number % 3:
                kinds = chance.sample(("knowledge", "headers", "pull"), chance.randrange(1, 4))
                told: GossipSummary | BrokerSummary = GossipSummary(
                    node=chance.choice(("n1", "n2")),
                    since=since,
                    until=since + chance.choice((0, 60_000)),
                    sent={kind: chance.randrange(1, 9) for kind in kinds},
                    received={"knowledge": 3} if chance.random() < 0.7 else {},
                    first=chance.randrange(3),
                    ages=self.durations(),
                    replicas=chance.randrange(9),
                )
            else:
                kinds = chance.sample(("here", "elsewhere", "not_found"), chance.randrange(1, 4))
                told = BrokerSummary(
                    broker=chance.choice(("10.0.0.1:7", "10.0.0.2:7")),
                    since=since,
                    until=since + 60_000,
                    answers={kind: self.durations(at_least=1) for kind in kinds},
                )
            event = told.to_event(source="site")
            self.append("overlay.summaries", event)
            if chance.random() < 0.2:
                self.append("overlay.summaries", event)
        broken = self.event("rapport.ensemble.summary", "broken", data=["no", "summary"])
        self.append("overlay.summaries", broken)

    def durations(self, at_least: int = 0) -> DurationCounts:
        found = DurationHistogram()
        for _ in range(self.chance.randrange(at_least, 30)):
            found.add(int(self.chance.expovariate(1 / 5_000)))
        return found.take()


@pytest.fixture(scope="session")
def odd_lake() -> Callable[[Path, int, Callable[[], object]], None]:
    """Writes a lake by chance, in two halves of each channel; a seed is a lake."""

    def write(lake: Path, seed: int, between: Callable[[], object]) -> None:
        log = OddLog(seed)
        log.readings()
        detections = log.findings()
        for number in range(120):
            log.message(number, detections)
        log.summaries()
        log.write(lake, between)

    return write
