"""`rapport demo car-sharing`: car sharing with a map page. [EN-13]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rapport.cli.arguments import JsonOption, run_until_stopped
from rapport.cli.output import print_note, visible, write_json, write_table
from rapport.kernel.clock import SystemClock
from rapport.kernel.telemetry import configure_logs
from rapport_lab.car_sharing.cast import CastSettings
from rapport_lab.car_sharing.map_page import Happening
from rapport_lab.car_sharing.play import PlayOptions, play

_PORT = 8490


def cars(
    *,
    cars: Annotated[int, Parameter(help="Cars, with two to four seats for others.")] = 8,
    buses: Annotated[int, Parameter(help="Buses, which go round their check points.")] = 1,
    people: Annotated[int, Parameter(help="People who look for a seat.")] = 12,
    minutes: Annotated[float, Parameter(help="How long, by your watch; 0: until Ctrl-C.")] = 2.0,
    speed: Annotated[float, Parameter(help="How many times as fast as in life.")] = 10.0,
    simulated: Annotated[
        bool, Parameter(negative="", help="In a simulated world, instead of on real sockets.")
    ] = False,
    ip: Annotated[
        bool, Parameter(negative="", help="Nodes know addresses, instead of a multicast group.")
    ] = False,
    processes: Annotated[int, Parameter(help="Over how many the nodes are spread.")] = 1,
    streets: Annotated[
        Path | None, Parameter(help="A map, GeoJSON or OSM XML; else a town is made up.")
    ] = None,
    port: Annotated[int, Parameter(help="Of the map page; 0 takes a free one.")] = _PORT,
    page: Annotated[bool, Parameter(help="Serve the map page.")] = True,
    seed: Annotated[int, Parameter(help="Of the town, and of who is where.")] = 1,
    json: JsonOption = False,
) -> None:
    """Play car sharing: each car, bus and person is a node; there is no server.

    rapport demo car-sharing --cars 8 --people 12 --minutes 2 --speed 10
    """
    configure_logs(level="WARNING")
    options = PlayOptions(
        cast=CastSettings(cars=cars, buses=buses, people=people, seed=seed),
        minutes=minutes,
        speed=speed,
        is_simulated=simulated,
        is_on_ip=ip,
        streets_file=str(streets) if streets is not None else "",
        port=port if page else None,
        processes=processes,
    )
    watched = run_until_stopped(
        play(options, SystemClock(), write_json if json else _tell, _announce)
    )
    if watched is None:
        return
    if json:
        write_json({"counts": watched.picture().counts})
    else:
        rows = [(name, str(count)) for name, count in watched.picture().counts.items()]
        write_table("what came of it", ("what", "times"), rows)


def _tell(happening: Happening) -> None:
    minutes, seconds = divmod(int(happening.time_ms / 1_000), 60)
    print(f"{minutes:3}:{seconds:02}  {visible(happening.text)}", flush=True)


def _announce(text: str) -> None:
    print_note(text)
