"""The request suite bound to every back end. [CH-13]"""

from __future__ import annotations

import pytest

from support.suites.requests import RequestSuite


class TestRequests(RequestSuite):
    @pytest.mark.lacks("memory", reason="memory is forgotten at the end of the process")
    def test_tokens_and_takes_outlive_restart_and_lease(self, channel_place):
        super().test_tokens_and_takes_outlive_restart_and_lease(channel_place)

    @pytest.mark.lacks("memory", reason="memory is forgotten at the end of the process")
    def test_leases_and_acks_outlive_restart(self, channel_place):
        super().test_leases_and_acks_outlive_restart(channel_place)
