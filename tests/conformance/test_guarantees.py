"""The suite of guarantees bound to every back end. [CH-9, CH-13]"""

from __future__ import annotations

import pytest

from support.suites.guarantees import GuaranteeSuite

pytestmark = pytest.mark.slow


class TestGuarantees(GuaranteeSuite):
    pass
