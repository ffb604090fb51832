import numpy as np

from tfps_plugin.evaluation.report import Evaluation


def test_only_numbers_are_shown() -> None:
    metrics = {"loss": 0.12345678, "count": 3, "by_class": np.ones([2])}
    evaluation = Evaluation("folder/e-1.keras", 7, metrics)
    assert str(evaluation) == "e-1.keras (step 7): loss: 0.1235, count: 3"
    assert evaluation.numbers == {"loss": 0.12345678, "count": 3}
