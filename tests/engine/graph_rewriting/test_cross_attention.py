"""Scores of the attention to a sound, of the graphs of the real builder."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from genai_server.engine.graph_rewriting.cross_attention import CROSS_ATTENTION, score_heads
from genai_server.engine.model.encoders import AudioEncoder
from genai_server.engine.model.graph_reader import read_cross_decoder, read_encoder_files
from genai_server.model_files.speech_and_vision import FEATURES
from tests.running_server import ROOT

BUILT, DEMO = ROOT / "tests" / "built_models" / "whisper", ROOT / "models" / "demo-speech"


def test_scores_are_those_of_the_graphs_own_attention() -> None:
    """The values that these scores weigh are what each layer's attention gives."""
    decoder = read_cross_decoder(BUILT)
    layers = range(len(decoder.past_names) // 2)
    model = onnx.load(str(decoder.path))
    own = {node.input[1]: node.output[0] for node in model.graph.node if node.op_type == CROSS_ATTENTION}
    wanted = [own[state.past] for state in decoder.cross_states[::2]]
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    plain.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted)
    names = score_heads(model.graph, decoder, {layer: list(range(decoder.num_kv_heads)) for layer in layers})

    random = np.random.default_rng(3)
    features = 4 * random.standard_normal((1, 80, 1)) + random.standard_normal((1, 80, 3000))
    sound = AudioEncoder(read_encoder_files(BUILT), threads=1).encode({FEATURES: features.astype(np.float32)})
    inputs = {decoder.input_ids: np.array([[3, 9, 27, 81, 243]], np.int32)}
    inputs |= {
        name: np.zeros((1, decoder.num_kv_heads, 0, decoder.head_size), np.float32) for name in decoder.past_names
    }
    inputs |= {state.past: values for state, values in zip(decoder.cross_states, sound.states, strict=True)}

    def run(graph: onnx.ModelProto, outputs: list[str]) -> list[np.ndarray]:
        session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
        read = {value.name for value in session.get_inputs()}
        found: list[np.ndarray] = session.run(outputs, {k: v for k, v in inputs.items() if k in read})
        return found

    for layer, scores, expected in zip(layers, run(model, names), run(plain, wanted), strict=True):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found = (weights @ sound.states[2 * layer + 1]).transpose(0, 2, 1, 3).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_graph_ends_with_the_last_layer_that_counts() -> None:
    decoder = read_cross_decoder(DEMO)
    graph = onnx.load(str(decoder.path), load_external_data=False).graph
    assert score_heads(graph, decoder, {1: [0]}) == ["genai_server.scores.1"]
    names = {tensor.name for tensor in graph.initializer}
    assert any("layers.1.cross_attn" in name for name in names)
    assert not any("layers.2" in name or "lm_head" in name for name in names)
    assert not {"past_key_self_2", "past_key_cross_2"} & {value.name for value in graph.input}
