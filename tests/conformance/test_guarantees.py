"""The suite of guarantees bound to every back end. [CH-9, CH-13]"""

from __future__ import annotations

from rapport.testing.suites.guarantees import GuaranteeSuite


class TestGuarantees(GuaranteeSuite):
    pass
