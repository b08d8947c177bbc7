"""`genai-server bench`: measures OpenAI-style servers in turn, and the bare library for comparison.

Scenarios: `sweep` measures each prompt length with each number of concurrent streams. `prefix` compares the time to the
first token of a prompt with a cached beginning to that of a cold one. `disturbance` shows how a long prompt affects
running streams, `fairness` how long a short prompt waits behind a long one. `crowd` sends requests with a common
beginning at once, and shows how much of their prompts is read. `decisions` compares questions about a text in one
request to those in chats. Every prompt is new to the server unless stated otherwise.
"""

import argparse
import asyncio
import importlib.util
import json
import secrets
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genai_server.cli.parser import number_from, positive
from genai_server.cli.screen import measuring_bar, screen
from genai_server.errors import ConfigurationError
from genai_server.system.installation import this_installation
from genai_server.tools.bench.plan import LABELS, SCENARIOS, Plan, RequestOptions

if TYPE_CHECKING:
    from genai_server.tools.bench.bench_report import Report

_LIBRARIES = ("aiohttp", "matplotlib")
_PLOTS = (".png", ".svg")
_DEFAULT_URL = "http://127.0.0.1:8002"
_DEFAULT_BODY = '{"ignore_eos": true, "temperature": 0}'
# The streams of a disturbance are cut off at its end, so this length is only a limit.
_OUTPUT_TOKENS = {"sweep": 64, "prefix": 8, "disturbance": 1024, "fairness": 1024, "crowd": 8, "decisions": 32}
_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `genai-server bench` to `parser`, and set `run` as the function that executes the command."""
    parser.add_argument(
        "--url",
        action="append",
        help=f"a server; repeat it to compare several in turn (default: {_DEFAULT_URL})",
    )
    parser.add_argument(
        "--scenario",
        choices=SCENARIOS,
        default="sweep",
        metavar="NAME",
        help=f"one of {', '.join(SCENARIOS)} (default: sweep)",
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--requests",
        type=positive,
        metavar="N",
        help="requests of each point, target and round (default: one for each stream, at least 4); "
        "in the other scenarios, repeats (default: prefix and fairness 3, else 1)",
    )
    _add_lengths(parser)
    _add_requests(parser)
    parser.add_argument(
        "--library",
        type=Path,
        metavar="MODEL_DIR",
        help="sweep: also measure the bare og.Generator loop on this model directory",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, including those of each round")
    parser.add_argument("--plot", type=_picture, metavar="FILE", help="draw the figures, as .png or .svg")
    parser.set_defaults(run=run)


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--concurrency", type=_numbers, default=(1, 4), metavar="N,N…", help="sweep: streams at once (default: 1,4)"
    )
    parser.add_argument(
        "--prompt-tokens", type=_numbers, default=(64,), metavar="N,N…", help="sweep: prompt lengths (default: 64)"
    )
    parser.add_argument(
        "--output-tokens",
        type=positive,
        metavar="N",
        help="tokens of each answer (default: 64; disturbance and fairness: 1024 for each stream, cut off at the end; "
        "always 8 in the other scenarios)",
    )
    parser.add_argument(
        "--prefix-tokens", type=positive, default=1000, metavar="N", help="prefix, crowd, decisions: default 1000"
    )
    parser.add_argument("--new-tokens", type=positive, default=16, metavar="N", help="prefix, crowd: default 16")
    parser.add_argument(
        "--disturbing-tokens",
        type=positive,
        default=2000,
        metavar="N",
        help="disturbance, fairness: length of the long prompt",
    )
    parser.add_argument(
        "--streams",
        type=positive,
        default=4,
        metavar="N",
        help="disturbance, fairness, crowd: streams at once; decisions: chats at once (default: 4)",
    )
    parser.add_argument(
        "--questions", type=positive, default=100, metavar="N", help="decisions: questions in a request (default: 100)"
    )


def _add_requests(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="model of the requests (default: the first of /v1/models)")
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    parser.add_argument(
        "--body",
        type=_json_object,
        default=_DEFAULT_BODY,
        metavar="JSON",
        help=f"fields merged into each request (default: {_DEFAULT_BODY})",
    )
    parser.add_argument("--health-path", default="/healthz", metavar="PATH", help="default: /healthz")
    parser.add_argument(
        "--health-every",
        type=number_from(0),
        default=20.0,
        metavar="MS",
        help="pause between health probes, which use some of the server's CPU time; 0 for none (default: 20)",
    )
    parser.add_argument("--seed", metavar="TEXT", help="seed of the prompts (default: new prompts in every run)")


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server bench`: measure the servers, and print or write the report, also after Ctrl-C.

    `arguments` are the parsed command line. Returns the exit status, 1 if all requests failed. Raises
    ConfigurationError for impossible arguments, and ServerUnusable if a server cannot be measured.
    """
    _check(arguments)
    # Imported here, because their libraries come with an extra.
    from genai_server.tools.bench.bench_session import Session

    session = Session(_plan(arguments), _request_options(arguments))
    interrupted = False
    try:
        with measuring_bar("examining the servers") as show, asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(session.run(show))
    except KeyboardInterrupt:
        interrupted = True
    report = session.report(interrupted=interrupted)
    _write(report, arguments)
    if interrupted:
        return _INTERRUPTED
    return 1 if report.all_failed else 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise ConfigurationError if the parsed arguments of `genai-server bench` are impossible or contradict each other,
    or if libraries for the benchmark are missing. This is called before anything is measured.
    """
    if any(importlib.util.find_spec(library) is None for library in _LIBRARIES):
        raise ConfigurationError(
            f"bench needs {' and '.join(_LIBRARIES)}; install them: {this_installation().extra_command('bench')}"
        )
    if arguments.library is not None:
        if arguments.scenario != "sweep":
            raise ConfigurationError(f"--library: only --scenario sweep supports it, not {arguments.scenario}")
        if importlib.util.find_spec("onnxruntime_genai") is None:
            raise ConfigurationError(
                f"--library needs onnxruntime-genai; install it: {this_installation().command('cpu')}"
            )
        from genai_server.engine.model.files import check_model_directory

        check_model_directory(arguments.library)
    if len(arguments.url or ()) > len(LABELS):
        raise ConfigurationError(f"--url: {len(arguments.url)} servers are given, at most {len(LABELS)} are possible")
    for name in ("json", "plot"):
        path = getattr(arguments, name)
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigurationError(f"--{name}={path}: the folder does not exist")


def _plan(arguments: argparse.Namespace) -> Plan:
    names = {field.name for field in fields(Plan)} & vars(arguments).keys()
    values = {name: getattr(arguments, name) for name in names}
    values["output_tokens"] = arguments.output_tokens or _OUTPUT_TOKENS[arguments.scenario]
    values["seed"] = arguments.seed or secrets.token_hex(4)
    return Plan(**values)


def _request_options(arguments: argparse.Namespace) -> RequestOptions:
    return RequestOptions(
        urls=arguments.url or [_DEFAULT_URL],
        model=arguments.model,
        api_key=arguments.api_key,
        body=arguments.body,
        health_path=arguments.health_path,
        health_interval=arguments.health_every / 1000,
    )


def _loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """Return the function that creates the event loop of the benchmark's client: uvloop's if uvloop is installed,
    otherwise None, which stands for asyncio's default loop.

    The client takes CPU time from a server on the same machine, so it should be as fast as possible.
    """
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _write(report: "Report", arguments: argparse.Namespace) -> None:
    from genai_server.cli.screen import print_report
    from genai_server.tools.bench.bench_report import as_json, as_parts
    from genai_server.tools.bench.plot import save_plot

    print_report(screen(), as_parts(report))
    try:
        if arguments.json is not None:
            text = json.dumps(as_json(report), indent=2, ensure_ascii=False)
            arguments.json.write_text(text + "\n", encoding="utf-8")
        if arguments.plot is not None:
            save_plot(report, arguments.plot)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: cannot be written: {error.strerror}") from None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(part) for part in text.split(",")))


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not JSON") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def _picture(text: str) -> Path:
    if not text.endswith(_PLOTS):
        raise argparse.ArgumentTypeError(f"{text} ends in none of {', '.join(_PLOTS)}")
    return Path(text)
