"""The files in deploy/ for several servers fit the server: Helm chart, llm-d's values, compose, systemd unit.

The chart is rendered by helm, or by Helm's library for Python, and checked against Kubernetes' schemas; both come with
the extra `chart`, and without them these tests are skipped.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from genai_server.apis.metrics import EngineMetrics
from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings, unknown_variables
from genai_server.generation.catalog import Catalog
from tests.running_server import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "genai-server"
KEYS = {"keys": {"apiKeys": "router:secret"}}
OLDEST, NEWEST = "1.27.0", "1.34.0"
# Kinds of extensions, whose schemas are not part of Kubernetes.
FOREIGN = ("ServiceMonitor", "ScaledObject")

Manifest = dict[str, Any]
# Takes values of the chart; returns the manifests by kind.
Render = Callable[..., dict[str, Manifest]]


class Refused(Exception):
    """The chart refuses its values."""


def _with_library(values: Mapping[str, Any]) -> str:
    helm = pytest.importorskip("helm_python", reason="neither helm nor helm-python-sdk is installed (extra chart)")
    try:
        with helm.Chart.load(str(CHART)) as chart:
            found: Mapping[str, str] = chart.render(dict(values), name="r", namespace="prod")
    except helm.HelmError as error:
        raise Refused(str(error)) from None
    return "\n---\n".join(text for name, text in found.items() if name.endswith(".yaml"))


def _with_program(values: Mapping[str, Any], folder: Path) -> str:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    command = ["helm", "template", "r", str(CHART), "--namespace", "prod", "--values", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Render the chart with these values and an API key."""

    def rendered(**values: Any) -> dict[str, Manifest]:
        values = KEYS | values
        text = _with_program(values, tmp_path) if shutil.which("helm") else _with_library(values)
        return {found["kind"]: found for found in yaml.safe_load_all(text) if found}

    return rendered


def _server(manifests: Mapping[str, Manifest]) -> Manifest:
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    return cast(Manifest, container)


def _variables(container: Manifest) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without keys": {"keys": {"insecure": True}},
    "a secret that exists": {"keys": {"existingSecret": "mine"}},
    "gpu": yaml.safe_load((CHART / "values-gpu.yaml").read_text(encoding="utf-8")),
    "hpa": {"autoscaling": {"kind": "hpa"}},
    "keda": {"autoscaling": {"kind": "keda"}, "metrics": {"serviceMonitor": {"enabled": True, "labels": {"a": "b"}}}},
    "events and a model": {
        "kvEvents": {"enabled": True},
        "model": {"dir": "/models/phi", "volume": {"persistentVolumeClaim": {"claimName": "models"}}},
        "settings": {"GENAI_EXACT": True, "GENAI_MAX_LENGTH": 4096, "GENAI_MAX_BODY_BYTES": 2097152},
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "ssd"},
        "priorityClassName": "serving",
        "networkPolicy": {
            "enabled": True,
            "clients": [{"namespaceSelector": {}}],
            "routers": [{"podSelector": {"matchLabels": {"app": "router"}}}],
        },
        "extraEnv": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
        "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        "extraVolumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
    },
}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_rendered_chart_fits_the_kubernetes_schemas(values: dict[str, Any], version: str, render: Render) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (extra chart)")
    manifests = render(**values)
    assert {"Deployment", "Service", "PodDisruptionBudget"} <= manifests.keys()
    for kind, manifest in manifests.items():
        if kind not in FOREIGN:
            validator.validate(manifest, version, strict=True)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_chart_sets_what_the_server_knows_and_takes(values: dict[str, Any], render: Render) -> None:
    variables = _variables(_server(render(**values)))
    assert unknown_variables(variables, dotenv=None) == {}
    settings = load_settings(environ=variables, dotenv=None)
    assert settings.host == "0.0.0.0"
    assert settings.metrics_prefix == "genai:"
    if values.get("kvEvents"):
        assert settings.kv_events == "tcp://*:5557"
        assert settings.kv_events_topic == "kv@$(POD_IP):8002@{model}"
        assert settings.exact
        assert settings.max_body_bytes == 2097152


def test_the_network_policy_lets_only_routers_to_the_events(render: Render) -> None:
    variant = VARIANTS["events and a model"]
    http, events = render(**variant)["NetworkPolicy"]["spec"]["ingress"]
    assert (http["ports"], http["from"]) == ([{"port": "http"}], variant["networkPolicy"]["clients"])
    assert (events["ports"], events["from"]) == ([{"port": "kv-events"}], variant["networkPolicy"]["routers"])
    (http,) = render(kvEvents={"enabled": True}, networkPolicy={"enabled": True})["NetworkPolicy"]["spec"]["ingress"]
    assert http == {"ports": [{"port": "http"}]}


def test_the_chart_keeps_keys_in_a_secret(render: Render) -> None:
    manifests = render()
    assert manifests["Secret"]["stringData"] == {"api-keys": "router:secret"}
    assert "router:secret" not in yaml.safe_dump(manifests["Deployment"])
    existing = render(keys={"existingSecret": "mine"})
    assert "Secret" not in existing
    (key, admin) = (one["valueFrom"]["secretKeyRef"] for one in _server(existing)["env"] if "KEY" in one["name"])
    assert (key["name"], admin["name"], admin["optional"]) == ("mine", "mine", True)


def test_the_chart_scales_by_waiting_sequences(render: Render) -> None:
    keda = render(**VARIANTS["keda"])
    assert "replicas" not in keda["Deployment"]["spec"]
    (trigger,) = keda["ScaledObject"]["spec"]["triggers"]
    assert set(re.findall(r"genai:\w+", trigger["metadata"]["query"])) <= _metrics()
    (metric,) = render(**VARIANTS["hpa"])["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"].replace("_", ":", 1) in _metrics()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"keys": {}}, "keys.existingSecret or keys.apiKeys"),
        ({"autoscaling": {"kind": "vpa"}}, "'none', 'hpa', 'keda'"),
        ({"replica": 3}, "replica"),
        ({"drain": {"second": 1}}, "second"),
        ({"port": "8002"}, "got string, want integer"),
        ({"image": {"tag": 1.2}}, "got number, want string"),
        ({"settings": {"genai_exact": True}}, "genai_exact"),
        ({"settings": {"GENAI_EXACT": None, "GENAI_MODELS": ["a"]}}, "got array"),
    ],
)
def test_the_chart_refuses_what_cannot_work(values: dict[str, Any], reason: str, render: Render) -> None:
    with pytest.raises(Refused, match=reason):
        render(**values)


def test_chart_has_this_version_and_the_values_of_the_image() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert f'version = "{chart["appVersion"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    deployment = (CHART / "templates" / "deployment.yaml").read_text(encoding="utf-8")
    assert f"--uid {re.findall(r'runAsUser: (.*)', deployment)[0]} " in image
    for path in re.findall(r"mountPath: (/\S+[^}\s])", deployment)[:2]:
        assert f'"{path}"' in image


def _metrics() -> set[str]:
    """The names of all metrics of the engines."""
    models: Any = SimpleNamespace(attached_engines=list, adapter_ids=list)
    return {found.name for found in EngineMetrics(Settings.model_validate({}), cast(Catalog, models)).collect()}


def test_llm_ds_router_uses_existing_metrics() -> None:
    values = yaml.safe_load((DEPLOY / "llm-d" / "router-values.yaml").read_text(encoding="utf-8"))
    epp = values["router"]["epp"]
    config = yaml.safe_load(epp["pluginsCustomConfig"][epp["pluginsConfigFile"]])
    plugins = {plugin["type"]: plugin for plugin in config["plugins"]}
    parameters = plugins["core-metrics-extractor"]["parameters"]
    (engine,) = parameters["engineConfigs"]
    assert engine["name"] == parameters["defaultEngine"]
    assert {spec for name, spec in engine.items() if name.endswith("Spec")} <= _metrics()
    (profile,) = config["schedulingProfiles"]
    assert {one["pluginRef"] for one in profile["plugins"]} <= plugins.keys()


def test_compose_has_known_settings_and_existing_files() -> None:
    folder = DEPLOY / "compose"
    compose = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    replicas = {name: one for name, one in compose["services"].items() if name.startswith("replica-")}
    command = compose["services"]["router"]["command"]
    document = (ROOT / "docs" / "scale-out.md").read_text(encoding="utf-8")
    assert all(word.replace("=", " ") in document for word in command if "-secs" in word or "threshold" in word)
    urls = [word for word in command if word.startswith("http")]
    assert urls == [f"http://{name}:8002" for name in replicas]
    for replica in replicas.values():
        assert unknown_variables(replica["environment"], dotenv=None) == {}
        settings = load_settings(environ=replica["environment"], dotenv=None)
        assert replica["stop_grace_period"] == f"{settings.drain_timeout + 15}s"
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            assert (folder / volume.partition(":")[0]).is_file(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    prometheus = yaml.safe_load((folder / "prometheus.yaml").read_text(encoding="utf-8"))
    (ours, _) = prometheus["scrape_configs"]
    assert ours["static_configs"] == [{"targets": [f"{name}:8002" for name in replicas]}]


def test_systemd_unit_allows_the_drain_and_knows_exit_statuses(tmp_path: Path) -> None:
    source = DEPLOY / "systemd" / "genai-server.service"
    text = source.read_text(encoding="utf-8")
    variables = dict(line.split("=", 1) for line in re.findall(r"^Environment=(.*)", text, re.MULTILINE))
    assert unknown_variables(variables, dotenv=None) == {}
    settings = load_settings(environ=variables, dotenv=None)
    assert f"TimeoutStopSec={settings.drain_timeout + 15}\n" in text
    assert "SuccessExitStatus=3\n" in text
    assert "RestartPreventExitStatus=2\n" in text
    assert "KillMode=mixed\nOOMPolicy=continue\n" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / source.name
    unit.write_text(text.replace("/opt/genai-server/bin/genai-server", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if source.name in line]
    assert (done.returncode, complaints) == (0, []), done.stderr
