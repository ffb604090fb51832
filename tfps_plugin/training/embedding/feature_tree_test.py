"""Tests of the user's structure of features."""

from tfps_plugin.training.embedding.config import FeatureConfig
from tfps_plugin.training.embedding.config import TableConfig
from tfps_plugin.training.embedding.feature_tree import FeatureTree


def test_features_are_known_as_they_were_written() -> None:
    table = TableConfig("table", 4, 2)

    def feature(name: str) -> FeatureConfig:
        return FeatureConfig(name, table, (None,), (None, 2))

    tree = FeatureTree(
        {
            "10": feature("first"),
            "2": (feature("second"), {"b": feature("third")}),
            "1": feature("fourth"),
        }
    )
    assert [each.name for each in tree.features] != [
        tree.features[number].name for number in tree.as_written
    ]
    assert [tree.features[number].name for number in tree.as_written] == [
        "first",
        "second",
        "third",
        "fourth",
    ]
