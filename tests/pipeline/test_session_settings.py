"""Settings of Spark: where they come from and what is refused."""

from __future__ import annotations

import pytest

from rapport.core.errors import InvalidInput
from rapport.pipeline.session import SparkSettings, load_spark_settings


def test_a_flag_wins_over_a_variable_over_the_site_over_the_default() -> None:
    site = {"master": "local[3]", "memory": "2g", "shuffle_partitions": 5}
    environment = {"RAPPORT_SPARK_MASTER": "local[4]", "RAPPORT_SPARK_SHUFFLE_PARTITIONS": "8"}
    flags = {"master": "spark://there:7077", "memory": None}
    settings = load_spark_settings(site, flags=flags, environment=environment)
    assert settings == SparkSettings(master="spark://there:7077", memory="2g", shuffle_partitions=8)


def test_a_variable_alone_takes_a_site_from_a_laptop_to_a_cluster() -> None:
    site = {"memory": "2g"}
    here = load_spark_settings(site, environment={})
    there = load_spark_settings(site, environment={"RAPPORT_SPARK_MASTER": "spark://there:7077"})
    assert (here.master, there.master) == ("local[*]", "spark://there:7077")
    assert (there.memory, there.is_connect) == ("2g", False)
    assert SparkSettings(master="sc://there:15002").is_connect


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "spark://a:7077", "spark://a:1,b:2", "sc://a:1"]
)
def test_addresses_of_masters_that_spark_knows_are_taken(master: str) -> None:
    assert SparkSettings(master=master).master == master


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"master": "http://host:7077"}, "spark.bad_master"),
        ({"master": "spark://host"}, "spark.bad_master"),
        ({"master": "sc://host"}, "spark.bad_master"),
        ({"master": "local[two]"}, "spark.bad_master"),
        ({"memory": "lots"}, "spark.bad_memory"),
        ({"memory": "100m"}, "spark.bad_memory"),
        ({"log_level": "LOUD"}, "spark.bad_log_level"),
        ({"options": {"driver.memory": "1g"}}, "spark.bad_option"),
        ({"shuffle_partitions": "many"}, "settings.invalid"),
        ({"cores": 2}, "settings.invalid"),
    ],
)
def test_wrong_settings_are_refused_with_their_code(values: dict[str, object], code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_spark_settings(values)
    assert caught.value.code == code
