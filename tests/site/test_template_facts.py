from rapport.scenarios.secure_building.building_scenes import SITE
from rapport.site.actions import TemplateFacts
from rapport.site.site import load_site


def test_a_text_may_ask_for_any_column_about_an_alias() -> None:
    site = load_site(SITE)
    facts = TemplateFacts(site.tables, site.policies)
    assert {"A", "A.badge", "A.name", "R", "R.security"} <= set(facts.fields("secure-building"))
    assert facts.find("secure-building", "", "A", "p03", "badge") == "E200-03"
    assert facts.find("secure-building", "", "R", "lab", "security") == "restricted"


def test_what_nobody_knows_is_none() -> None:
    site = load_site(SITE)
    facts = TemplateFacts(site.tables, site.policies)
    assert facts.find("secure-building", "", "A", "nobody", "badge") is None
    assert facts.find("secure-building", "", "A", "p03", "shoe") is None
    assert facts.find("other", "", "A", "p03", "badge") is None
