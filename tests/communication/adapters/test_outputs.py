"""Registering and removing output adapters while traffic flows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent, adapter
from rapport.communication.adapters.dispatch import DispatchSettings
from rapport.communication.adapters.outputs import Outputs
from rapport.core.errors import DuplicateName, InvalidInput
from rapport.kernel.clock import Chance, ManualClock, SystemClock
from rapport.node.metrics import adapter_metrics
from rapport.testing.suites.adapter import make_delivery
from support.adapters import FaltersAdapter, GatedAdapter, ManyAdapter, ScriptedAdapter

NOW = 1_772_452_800_000


class Office:
    """Channels in memory and outputs over them."""

    def __init__(self, clock=None, **handed_in):
        self.clock = clock or ManualClock(NOW)
        self.channels = open_memory(self.clock)
        self.outputs = Outputs(self.channels, self.channels.records, self.clock, **handed_in)

    async def put(self, name, peer, *numbers):
        events = [
            Delivery(
                message=f"m{n}", peer=peer, address=f"{name}:{peer}", attempt=1, text="x"
            ).to_event()
            for n in numbers
        ]
        await self.channels.channel(f"output.{name}").append(events)

    async def outcomes(self, count):
        """Waits for that many, then gives all."""
        control = self.channels.channel("control")
        async with asyncio.timeout(10):
            await control.wait_after(count - 1)
        return [s.event.payload() for s in await control.read_after(0, limit=100_000)]


def play(scenario):
    async def run():
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(run())


def test_a_registered_adapter_is_in_force_and_serves_what_waits_already():
    async def scenario():
        office = Office()
        await office.put("many", "ana", 1)
        assert await office.outputs.register(ManyAdapter) == "many"
        assert list(office.outputs.names) == ["many"]
        await office.put("many", "ana", 2)
        assert [o["state"] for o in await office.outcomes(2)] == ["handed", "handed"]
        await office.outputs.close()

    play(scenario)


def test_a_class_without_a_declaration_is_refused():
    async def scenario():
        with pytest.raises(InvalidInput) as caught:
            await Office().outputs.register(GatedAdapter)
        assert caught.value.code == "adapter.not_declared"

    play(scenario)


def test_a_stateless_adapter_that_cannot_be_made_is_the_error_of_registering():
    @adapter("fax")
    class Fax(ManyAdapter):
        def __init__(self):
            raise OSError("no line")

    async def scenario():
        office = Office()
        with pytest.raises(InvalidInput, match="no line") as caught:
            await office.outputs.register(Fax)
        assert caught.value.code == "adapter.not_made"
        assert list(office.outputs.names) == []

    play(scenario)


@pytest.mark.parametrize("name", ["", "Mail", "a:b", "a.b", "../x", "x" * 65, "ä"])
def test_names_that_cannot_be_in_an_address_are_refused(name):
    async def scenario():
        with pytest.raises(InvalidInput) as caught:
            await Office().outputs.use(ScriptedAdapter(name))
        assert caught.value.code == "adapter.bad_name"

    play(scenario)


def test_a_name_belongs_to_one_adapter_until_that_is_removed():
    async def scenario():
        office = Office()
        await office.outputs.register(ManyAdapter)
        with pytest.raises(DuplicateName) as caught:
            await office.outputs.register(ManyAdapter)
        assert caught.value.code == "adapter.registered"
        assert await office.outputs.remove("many")
        assert not await office.outputs.remove("many")
        await office.outputs.register(ManyAdapter)
        await office.put("many", "ana", 1)
        assert [o["state"] for o in await office.outcomes(1)] == ["handed"]
        await office.outputs.close()

    play(scenario)


def test_removing_lets_what_waits_go_out_first_and_takes_nothing_more():
    async def scenario():
        office, mail = Office(), GatedAdapter()
        await office.outputs.use(mail)
        await office.put("mail", "ana", 1, 2, 3)
        await mail.has_begun(1)
        assert (office.outputs.status()[0].waiting, office.outputs.status()[0].workers) == (3, 1)
        removing = asyncio.create_task(office.outputs.remove("mail"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert list(office.outputs.names) == []
        assert mail.closed == 0
        mail.gate("ana").set()
        assert await removing
        assert [d.message for d in mail.ended] == ["m1", "m2", "m3"]
        assert mail.closed == 1
        await office.put("mail", "ana", 4)
        late = (await office.outcomes(4))[-1]
        assert (late["message"], late["state"]) == ("m4", "failed")
        assert late["reason"].startswith("adapter.unknown")
        await office.outputs.close()

    play(scenario)


def test_who_gives_up_waiting_for_a_removal_does_not_stop_it():
    async def scenario():
        office, mail = Office(), GatedAdapter()
        await office.outputs.use(mail)
        await office.put("mail", "ana", 1)
        await mail.has_begun(1)
        removing = asyncio.create_task(office.outputs.remove("mail"))
        await asyncio.sleep(0)
        removing.cancel()
        await asyncio.gather(removing, return_exceptions=True)
        mail.gate("ana").set()
        again = GatedAdapter()
        await office.outputs.use(again)  # waits for the end of the old one
        assert mail.closed == 1
        assert [d.message for d in mail.ended] == ["m1"]
        await office.outputs.close()

    play(scenario)


def test_an_adapter_that_was_held_and_never_started_is_drained_too():
    async def scenario():
        office, mail = Office(), ScriptedAdapter("mail")
        office.outputs.hold(mail)
        await office.put("mail", "ana", 1)
        assert await office.outputs.remove("mail")
        assert [d.message for d in mail.sent] == ["m1"]
        await office.outputs.close()

    play(scenario)


def test_what_was_queued_for_an_adapter_of_old_is_answered_for_until_it_comes_back():
    async def scenario():
        office = Office()
        await office.put("mail", "ana", 1)
        office.outputs.hold_absent()
        work = office.outputs.work()
        assert set(work) == {"adapter.mail"}
        running = asyncio.create_task(work["adapter.mail"]())
        (outcome,) = await office.outcomes(1)
        assert outcome["state"] == "failed"
        assert "retry" not in outcome, "nobody waits for what the site has no more"
        mail = ScriptedAdapter("mail")
        await office.outputs.use(mail)
        await running  # it made room
        await office.put("mail", "ana", 2)
        assert (await office.outcomes(2))[1]["state"] == "handed"
        await office.outputs.close()

    play(scenario)


def test_a_stateful_class_gets_an_instance_per_peer_and_says_so():
    made = []

    @adapter("line", stateful=True)
    class Line:
        def __init__(self, address):
            made.append(address)

        async def send(self, delivery):
            return Sent()

        async def close(self):
            return

    async def scenario():
        office = Office()
        await office.outputs.register(Line)
        await office.put("line", "ana", 1, 2)
        await office.put("line", "ben", 3)
        await office.outcomes(3)
        assert sorted(made) == ["line:ana", "line:ben"]
        (status,) = office.outputs.status()
        assert (status.name, status.stateful, status.instances) == ("line", True, 2)
        office.outputs.peer_changed("ana")
        await office.put("line", "ana", 4)
        await office.outcomes(4)
        assert made.count("line:ana") == 2
        await office.outputs.close()

    play(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_adapters_that_come_and_go_under_traffic_lose_nothing_and_keep_order(seed):
    async def scenario():
        chance = Chance(seed)
        office = Office(SystemClock(), settings={"mail": DispatchSettings(workers=4, in_flight=20)})
        adapters = [FaltersAdapter("mail", office.clock, chance)]
        await office.outputs.use(adapters[0])
        sent = 0
        for _ in range(12):
            for _ in range(chance.randint(0, 10)):
                await office.put("mail", f"p{chance.randint(0, 3)}", sent)
                sent += 1
            if chance.random() < 0.4:
                await office.outputs.remove("mail")
                adapters.append(FaltersAdapter("mail", office.clock, chance))
                await office.outputs.use(adapters[-1])
        outcomes = await office.outcomes(sent) if sent else []
        await office.outputs.close()
        assert sorted(o["message"] for o in outcomes) == sorted(f"m{n}" for n in range(sent))
        arrived = [d for one in adapters for d in one.arrived]
        absent = [o for o in outcomes if "adapter.unknown" in o.get("reason", "")]
        assert len(arrived) + len(absent) == sent, "each once"
        for peer in ("p0", "p1", "p2", "p3"):
            numbers = [int(d.message[1:]) for d in arrived if d.peer == peer]
            assert numbers == sorted(numbers)

    play(scenario)


async def _send(self, delivery):
    return Sent()


async def _without_delivery(self):
    return Sent()


async def _generator(self, delivery):
    yield Sent()


def _blocking(self, delivery):
    return Sent()


def _waits_for_another(self, delivery) -> Awaitable[Outcome]:
    return _send(self, delivery)


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize(
    ("send", "fault"),
    [
        (None, "it has no method send"),
        (_without_delivery, "send() cannot be called"),
        (_generator, "send is a generator"),
        (_blocking, "send is not async"),
        (_send, ""),
        (_waits_for_another, ""),
    ],
)
def test_an_adapter_that_cannot_be_called_is_refused_by_name(send, fault, stateful):
    async def scenario():
        members = {"send": send} if send else {}
        kind = adapter("pager", stateful=stateful)(type("Pager", (), members))
        clock = ManualClock(0)
        channels = open_memory(clock)
        outputs = Outputs(channels, channels.records, clock)
        if not fault:
            assert await outputs.register(kind) == "pager"
            await outputs.close()
            return
        with pytest.raises(InvalidInput) as raised:
            await outputs.register(kind)
        assert raised.value.code == "adapter.bad_signature"
        assert "'pager'" in raised.value.message
        assert fault in raised.value.message.replace("send(self)", "send()")

    asyncio.run(scenario())


def test_open_circuits_are_shown_by_peer_and_counted():
    async def scenario():
        office = Office()
        dispatch = office.outputs.hold(ScriptedAdapter("mail"))
        delivery = make_delivery("mail:ana@example.org", peer="ana")
        for _ in range(2):
            outcome = Failed("no answer", retry=True)
            dispatch.breakers.note(delivery, outcome, office.clock.now_ms(), timed_out=True)
        (circuit,) = office.outputs.circuits()["ana"]
        assert (circuit.address, circuit.state) == ("mail:ana@example.org", "open")
        assert circuit.reason == "no answer"
        counted = {
            (sample.labels["adapter"], sample.labels["state"]): sample.value
            for metric in adapter_metrics(office.outputs.status(), [])
            for sample in metric.samples
            if sample.name == "rapport_output_circuits"
        }
        assert counted == {("mail", "open"): 1, ("mail", "half-open"): 0}
        await office.outputs.close()

    play(scenario)
