"""docs/tutorial/alarms.md can be followed by a stranger, and prints what it says. [SI-1, SI-12,
SI-14]
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.pages import follow_page
from support.servers.mqtt import mqtt_broker  # noqa: F401
from support.servers.nats import NatsServer

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "alarms.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
@pytest.mark.skipif(shutil.which("awk") is None, reason="the page uses awk")
def test_five_alarms_are_written_tried_and_one_begins_is_acknowledged_and_ends_over_mqtt(
    tmp_path: Path,
    mqtt_broker: NatsServer,  # noqa: F811
) -> None:
    follow_page(PAGE, tmp_path, servers={"1883": mqtt_broker.mqtt_port})
