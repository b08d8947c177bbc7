"""The tokens of images within the engine: ids, features and positions."""

import numpy as np
import pytest

from genai_server.engine.encoded_inputs import EncodedImage, PromptImages
from genai_server.messages.generation_request import Image

TOKEN = 9


def encoded(serial: int, num_features: int) -> EncodedImage:
    return EncodedImage(serial, np.arange(num_features, dtype=np.float32)[:, np.newaxis] + 100 * serial)


def image(start: int, num_tokens: int, grid: tuple[int, int, int] | None = None) -> Image:
    return Image("digest", "file", start, num_tokens, grid)


def test_each_feature_has_a_negative_id_of_its_own() -> None:
    prompt = [1, TOKEN, TOKEN, 2, TOKEN, 3]
    found = PromptImages(prompt, [image(1, 2), image(4, 1)], [encoded(0, 2), encoded(1, 1)], TOKEN)
    ids = [token for token in found.prompt if token < 0]
    assert (len(set(ids)), max(ids)) == (3, -2)
    assert [token for token in found.prompt if token >= 0] == [1, 2, 3]
    assert found.model_tokens(found.prompt) == prompt


def test_the_same_image_has_the_same_ids_in_every_prompt() -> None:
    one = PromptImages([TOKEN, TOKEN, 1], [image(0, 2)], [encoded(5, 2)], TOKEN)
    other = PromptImages([7, 8, TOKEN, TOKEN], [image(2, 2)], [encoded(5, 2)], TOKEN)
    another = PromptImages([7, 8, TOKEN, TOKEN], [image(2, 2)], [encoded(6, 2)], TOKEN)
    assert one.prompt[:2] == other.prompt[2:] != another.prompt[2:]


def test_features_of_a_chunk_are_those_of_its_tokens() -> None:
    prompt = [1, TOKEN, TOKEN, TOKEN, 2, TOKEN, 3]
    found = PromptImages(prompt, [image(1, 3), image(5, 1)], [encoded(1, 3), encoded(2, 1)], TOKEN)
    some = found.features(found.prompt[2:6])
    assert some is not None
    assert some.tolist() == [[101], [102], [200]]
    assert found.features(found.prompt[:1]) is None


def test_tokens_that_structure_an_image_stay() -> None:
    prompt = [1, TOKEN, TOKEN, 4, TOKEN, TOKEN, 5, 2]  # two rows, with their ends
    found = PromptImages(prompt, [image(1, 6)], [encoded(0, 4)], TOKEN)
    assert [token for token in found.prompt if token >= 0] == [1, 4, 5, 2]
    features = found.features(found.prompt)
    assert features is not None
    assert features[:, 0].tolist() == [0, 1, 2, 3]
    assert found.positions(0, 8) is None


def test_an_image_with_other_features_than_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="3 features and 2 tokens"):
        PromptImages([TOKEN, TOKEN], [image(0, 2)], [encoded(0, 3)], TOKEN)


def test_positions_follow_the_rows_and_columns_of_images() -> None:
    # Two tokens, an image of two rows and three columns, one token; then the answer.
    prompt = [1, 2, *[TOKEN] * 6, 3]
    found = PromptImages(prompt, [image(2, 6, (1, 2, 3))], [encoded(0, 6)], TOKEN)
    positions = found.positions(0, 11)
    assert positions is not None
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7],
    ]


@pytest.mark.parametrize(("first", "num_tokens"), [(0, 5), (3, 4), (6, 6), (9, 1), (12, 3)])
def test_positions_of_a_chunk_are_a_part_of_all(first: int, num_tokens: int) -> None:
    prompt = [1, 2, *[TOKEN] * 6, 3, TOKEN]
    images = [image(2, 6, (1, 2, 3)), image(9, 1, (1, 1, 1))]
    found = PromptImages(prompt, images, [encoded(0, 6), encoded(1, 1)], TOKEN)
    complete, part = found.positions(0, 20), found.positions(first, num_tokens)
    assert complete is not None
    assert part is not None
    np.testing.assert_array_equal(part, complete[:, first : first + num_tokens])
