"""Measures onnxruntime-genai's own generation loop without a server: `python -m genai_server.engine.bare_loop`.

The result is the upper limit of the server's speed. `genai-server bench` starts this program as a process of its own,
so that the memory of onnxruntime-genai and its use of the GIL (Python's global lock) do not disturb the benchmark. The
program prints one line of JSON, which has the runs for each prompt length, with times in seconds.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genai_server.engine.model.files import check_model_directory
from genai_server.system.resources import usable_cores

# Lower ids are often special tokens.
_FIRST_PLAIN_TOKEN = 100
_WARM_UP_TOKENS = 8


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the generation of tokens with a model directory, and print the result as one line of JSON to standard
    output. `arguments` are those of the command line; None for the arguments of the process.

    Raises ModelDirectoryError if the directory has no usable model, and RuntimeError with onnxruntime-genai's message
    if the model cannot be loaded or run.
    """
    parser = argparse.ArgumentParser(prog="python -m genai_server.engine.bare_loop", description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--threads", type=int, default=None, help="0: the usable cores; left out: as shipped")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[64])
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args(arguments)
    loop = BareLoop(options.model_dir, options.threads)
    loop.run(_WARM_UP_TOKENS, _WARM_UP_TOKENS)
    lengths = {
        str(length): [loop.run(length, options.output_tokens) for _ in range(options.runs)]
        for length in options.prompt_tokens
    }
    sys.stdout.write(json.dumps({"threads": loop.threads, "lengths": lengths}) + "\n")


class BareLoop:
    """A model that onnxruntime-genai has loaded, to measure its generation. It runs on the execution providers that
    genai_config.json in `model_dir` names.

    `threads` is the number of threads; 0 stands for the number of usable cores, None for the default of
    onnxruntime-genai.
    """

    def __init__(self, model_dir: Path, threads: int | None) -> None:
        import onnxruntime_genai

        self._vocab_size = check_model_directory(model_dir).vocab_size
        self._library: Any = onnxruntime_genai
        self.threads = usable_cores() if threads == 0 else threads
        config = self._library.Config(str(model_dir))
        if self.threads is not None:
            options = {"intra_op_num_threads": self.threads}
            config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = self._library.Model(config)

    def run(self, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
        """Generate exactly `output_tokens` tokens after a random prompt of `prompt_tokens` tokens, and measure the
        times.

        Returns times in seconds of one clock: `sent` is the time before the prompt is read, `prefilled` the time after
        that, and the list `tokens` has the time after each generated token.
        """
        parameters = self._library.GeneratorParams(self._model)
        length = prompt_tokens + output_tokens
        # With a minimum length, the token that ends an answer is never chosen.
        parameters.set_search_options(max_length=length, min_length=length, do_sample=False, num_beams=1, batch_size=1)
        plain = range(min(_FIRST_PLAIN_TOKEN, self._vocab_size - 1), self._vocab_size)
        prompt = random.Random(prompt_tokens).choices(plain, k=prompt_tokens)
        generator = self._library.Generator(self._model, parameters)
        sent = time.perf_counter()
        generator.append_tokens(prompt)
        prefilled = time.perf_counter()
        moments = []
        for _ in range(output_tokens):
            generator.generate_next_token()
            moments.append(time.perf_counter())
        return {"sent": sent, "prefilled": prefilled, "tokens": moments}


if __name__ == "__main__":
    main()
