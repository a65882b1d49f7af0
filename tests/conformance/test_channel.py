"""The channel suite bound to every back end. [CH-13]"""

from __future__ import annotations

import pytest

from support.suites.channel import ChannelSuite


class TestChannel(ChannelSuite):
    @pytest.mark.lacks("memory", reason="memory is forgotten at the end of the process")
    def test_events_cursors_and_what_was_seen_outlive_a_restart(self, channel_place):
        super().test_events_cursors_and_what_was_seen_outlive_a_restart(channel_place)
