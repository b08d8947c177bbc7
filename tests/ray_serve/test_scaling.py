"""How many replicas an operator asks for."""

import pytest

from genai_server.errors import ConfigurationError
from genai_server.ray_serve.scaling import max_replicas, scaling


@pytest.mark.parametrize("replicas", ["0", "x", "2:1", "1:", "-1", "1:2:3", "12345"])
def test_a_wrong_number_of_replicas_is_refused(replicas: str) -> None:
    with pytest.raises(ConfigurationError, match=f"replicas={replicas}: expected a number"):
        max_replicas(replicas)
    assert (max_replicas("3"), max_replicas("1:4")) == (3, 4)


def test_two_numbers_scale_by_running_requests() -> None:
    assert scaling("2", 8) == {"num_replicas": 2}
    bounds = {"min_replicas": 1, "max_replicas": 4}
    assert scaling("1:4", 8) == {"autoscaling_config": {**bounds, "target_ongoing_requests": 8}}
