"""The delivery policies told naively, straight from the text of CO-8: everybody in one list, looked
at from the beginning after everything that happens. No counters, no records, no slices.

Judges `rapport.communication.delivery` on random runs (test_delivery_judged.py).
"""

from __future__ import annotations


class Person:
    """Somebody who was asked."""

    def __init__(self, name, addresses, policy, stage):
        self.name, self.policy, self.stage = name, policy, stage
        self.states = dict.fromkeys(addresses, "untried")
        self.attempts = dict.fromkeys(addresses, 0)
        self.failures = dict.fromkeys(addresses, 0)
        self.again_at = {}
        self.answered = self.declined = self.refused = self.gone = False
        self.was_reached = self.was_lost = False
        self.held_until = None
        self.reminded, self.remind_at = 0, None
        self.next_at = None

    def has_spoken(self):
        return self.answered or self.declined


class Naive:
    """One message; `queued` and `told` are what it did so far."""

    def __init__(self, settings, verdicts, chain, now):
        self.settings, self.verdicts, self.chain, self.now = settings, verdicts, list(chain), now
        self.people, self.stages = [], []
        self.queued, self.told, self.result = [], [], ""

    # --- what happens ---

    def ask(self, policy, least, within, people):
        stage = {"policy": policy, "least": least, "within": within, "by": None, "over": False}
        stage["number"] = len(self.stages)
        self.stages.append(stage)
        if self.settings["expires"] and self.settings["expires"] <= self.now:
            self.close("timed_out")
            return
        known = [person.name for person in self.people]
        for name, addresses, peer_policy in people:
            if name not in known:
                person = Person(name, addresses, peer_policy, len(self.stages) - 1)
                self.people.append(person)
                self.first_try(person)
                if policy == "to-all-members" and not self.chain:
                    self.complain_if_lost(stage, everybody_is_there=False)
        self.decide()

    def hear(self, name, address, attempt, state, retry, unavailable=False):
        person = self.find(name)
        came_back = attempt == 0  # the medium took it and gave it back, and does not say which
        if person is None or address not in person.states:
            return
        if not _is_news(person, address, attempt, state):
            return
        was_done = self.is_done(person)
        if state == "failed":
            person.failures[address] += 1
            pause = min(1_000 * 2 ** (person.failures[address] - 1), 4_000)
            ends = self.settings["expires"]
            in_time = not ends or self.now + pause < ends
            again = retry and in_time and person.failures[address] < 3
            if again and not self.result and not person.has_spoken():
                person.states[address] = "waiting"
                person.again_at[address] = self.now + pause
            else:
                person.states[address] = "failed"
            if came_back and not self.is_reached(person):
                person.was_reached = False
            self.go_on_from(person, address, unavailable)
        elif state == "dropped":
            person.states[address] = "stopped"
        else:
            person.states[address] = state
            if state != "unknown":
                person.failures[address] = 0
        self.look_at(person)
        self.decide()
        is_undone = was_done and not self.is_done(person)
        if self.result == "done" and is_undone and not any(map(self.is_met, self.stages)):
            self.tell("error")  # it came back: the sender believes what is not true

    def answer(self, name, says_no):
        person = self.find(name)
        if person is not None:
            person.answered, person.declined = not says_no, says_no
            if not self.result:
                self.give_up(person)
            self.decide()

    def pass_time(self, milliseconds):
        self.now += milliseconds
        if self.result:
            return
        if self.settings["expires"] and self.settings["expires"] <= self.now:
            self.close("timed_out")
            return
        stage = self.stages[-1]
        if stage["by"] is not None and stage["by"] <= self.now and not stage["over"]:
            stage["by"] = None
            if self.chain:
                self.ask_next(stage)
            else:
                self.close("timed_out")
        for person in list(self.people):
            self.look_at_the_clock(person)
            self.decide()

    # --- one person ---

    def first_try(self, person):
        if not person.states:
            person.was_lost = True
            return
        verdict, until = self.verdicts(person.name, self.now)
        if verdict == "hold":
            person.held_until = until
        elif verdict == "refuse":
            person.refused, person.held_until = True, None
        else:
            person.held_until = None
            first = list(person.states)
            for address in first[:1] if person.policy == "preferred" else first:
                self.queue(person, address)
            if "untried" in person.states.values():
                person.next_at = self.now + self.patience()
            stage = self.stages[person.stage]
            if stage["within"] and stage["by"] is None:
                stage["by"] = self.now + stage["within"]
            if self.settings["repeat_every"] and self.settings["done_when"] == "answered":
                person.remind_at = self.now + self.settings["repeat_every"]

    def is_reached(self, person):
        taken = [state in ("handed", "confirmed") for state in person.states.values()]
        every = person.policy == "to-all-channels"
        return person.has_spoken() or (all(taken) if every else any(taken))

    def look_at(self, person):
        """Whether the media's words decide about this person."""
        if person.was_reached or person.was_lost or person.refused or person.gone:
            return
        states = list(person.states.values())
        failed = [state == "failed" for state in states]
        every = person.policy == "to-all-channels"
        if self.is_reached(person):
            person.was_reached, person.next_at = True, None
        elif any(failed) if every else all(failed):
            person.was_lost, person.remind_at = True, None

    def untried(self, person):
        open_still = not (person.was_reached or person.was_lost or person.refused or person.gone)
        found = [a for a, state in person.states.items() if state == "untried"]
        return found if open_still and not self.result and not person.has_spoken() else []

    def go_on_from(self, person, failed, unavailable):
        """The last address that was tried has failed for good, or knows that it is no use now."""
        untried, addresses = self.untried(person), list(person.states)
        if not untried:
            return
        is_last = addresses.index(untried[0]) == addresses.index(failed) + 1
        if is_last and (person.states[failed] == "failed" or unavailable):
            self.go_on(person)
        elif person.next_at is None:
            person.next_at = self.now + self.patience()

    def go_on(self, person):
        untried = self.untried(person)
        if untried:
            self.queue(person, untried[0])
        person.next_at = self.now + self.patience() if len(untried) > 1 else None

    def patience(self):
        return 30_000 if self.settings["urgent"] else 120_000

    def look_at_the_clock(self, person):
        if self.result:
            return
        if person.held_until is not None and person.held_until <= self.now:
            self.first_try(person)
        for address, state in list(person.states.items()):
            if state == "waiting" and person.again_at[address] <= self.now:
                self.queue(person, address)
        if person.remind_at is not None and person.remind_at <= self.now:
            self.remind(person)
        if person.next_at is not None and person.next_at <= self.now:
            self.go_on(person)

    def remind(self, person):
        verdict, until = self.verdicts(person.name, self.now)
        if self.stages[person.stage]["over"] or self.is_out(person) or verdict == "refuse":
            person.remind_at = None
        elif verdict == "hold":
            person.remind_at = max(until, self.now + 1)
        else:
            taken = ("handed", "confirmed", "failed")
            again = [a for a, state in person.states.items() if state in taken]
            if person.was_reached and again:
                person.reminded += 1
                for address in again:
                    person.failures[address] = 0
                    self.queue(person, address)
            most = self.settings["repeat_most"]
            ended = most and person.reminded >= most
            person.remind_at = None if ended else self.now + self.settings["repeat_every"]

    def give_up(self, person):
        person.remind_at = person.next_at = None
        if person.held_until is not None:
            person.held_until, person.gone = None, True
        for address, state in person.states.items():
            if state in ("waiting", "untried"):
                person.states[address] = "stopped"

    def queue(self, person, address):
        person.states[address] = "queued"
        person.attempts[address] += 1
        self.queued.append((person.name, address, person.attempts[address]))

    # --- the message ---

    def is_done(self, person):
        was_told = person.was_reached or person.declined
        return person.answered or (self.settings["done_when"] == "sent" and was_told)

    def is_out(self, person):
        return (person.was_lost or person.refused or person.declined) and not self.is_done(person)

    def of(self, stage):
        return [person for person in self.people if person.stage == stage["number"]]

    def is_met(self, stage):
        people = self.of(stage)
        done = [person for person in people if self.is_done(person)]
        if stage["policy"] == "to-all-members":
            return bool(people) and len(done) == len(people)
        return len(done) >= (stage["least"] if stage["policy"] == "at-least" else 1)

    def is_lost(self, stage, *, everybody_is_there=True):
        people = self.of(stage)
        out = [person for person in people if self.is_out(person)]
        if stage["policy"] == "to-all-members":
            return bool(out) or not people
        needed = stage["least"] if stage["policy"] == "at-least" else 1
        return everybody_is_there and len(people) - len(out) < needed

    def complain_if_lost(self, stage, *, everybody_is_there):
        if self.is_lost(stage, everybody_is_there=everybody_is_there):
            self.tell("comerror")

    def decide(self):
        if self.result:
            return
        if any(self.is_met(stage) for stage in self.stages):
            self.close("done")
            return
        stage = self.stages[-1]
        if stage["over"] or not self.is_lost(stage):
            return
        if self.chain:
            self.ask_next(stage)
        elif all(self.is_done(person) or self.is_out(person) for person in self.of(stage)):
            self.close("failed")
        else:
            self.tell("comerror")

    def ask_next(self, stage):
        stage["over"] = True
        policy, least, within, people = self.chain.pop(0)
        self.ask(policy, least, within, people)

    def close(self, result):
        self.result = result
        for person in self.people:
            self.give_up(person)
        self.tell({"done": "ack", "timed_out": "timeout", "failed": "comerror"}[result])

    def tell(self, what):
        failures = [each for each in self.told if each in ("comerror", "error")]
        if what not in ("comerror", "error", "ack") or not failures:
            self.told.append(what)

    def find(self, name):
        return next((person for person in self.people if person.name == name), None)


def _is_news(person, address, attempt, state):
    before = person.states[address]
    if attempt == 0:
        return state == "failed" and before in ("handed", "confirmed")
    if attempt != person.attempts[address]:
        return False
    return before in ("queued", "unknown") or (before == "handed" and state == "confirmed")
