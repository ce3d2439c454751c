"""The metric names, labels and buckets that dashboards of vLLM read."""

import pathlib
import re
import urllib.request

import pytest

import gateway as before_engines
import server as kvasir

GAUGES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
COUNTERS = [
    "prompt_tokens_total", "generation_tokens_total", "request_success_total", "num_preemptions_total",
    "prefix_cache_queries_total", "prefix_cache_hits_total",
]
TTFT = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0 +Inf"
ITL = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 +Inf"
E2E = "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0 +Inf"
STEP = "1.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0 2048.0 4096.0 8192.0 16384.0 +Inf"
HISTOGRAMS = {
    "time_to_first_token_seconds": TTFT,
    "inter_token_latency_seconds": ITL,
    "request_time_per_output_token_seconds": ITL,
    "e2e_request_latency_seconds": E2E,
    "request_queue_time_seconds": E2E,
    "request_inference_time_seconds": E2E,
    "request_prefill_time_seconds": E2E,
    "request_decode_time_seconds": E2E,
    "iteration_tokens_total": STEP,
}


@pytest.fixture
def exposition(server, client):
    client.completions.create(model="smollm2", prompt="Hello there", max_tokens=4, temperature=0)
    return server.get("/metrics")


@pytest.mark.parametrize("name", GAUGES + COUNTERS)
def test_a_value_carries_the_model_and_engine_labels(exposition, name):
    line = re.search(rf"^vllm:{name}\{{(.*)\}} \S+$", exposition, re.MULTILINE)
    assert line, name
    assert 'model_name="smollm2"' in line.group(1)
    assert 'engine="0"' in line.group(1)


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_a_histogram_has_exactly_the_buckets(exposition, name):
    bounds = re.findall(rf'^vllm:{name}_bucket\{{[^}}]*le="([^"]+)"[^}}]*\}}', exposition, re.MULTILINE)
    def number(bound):
        return float("inf") if bound == "+Inf" else float(bound)
    assert [number(bound) for bound in dict.fromkeys(bounds)] == [number(bound) for bound in HISTOGRAMS[name].split()]
    assert re.search(rf"^vllm:{name}_count\{{.*\}} [1-9]", exposition, re.MULTILINE), f"{name} observed nothing"


def of_a_cluster():
    """What Prometheus reads there, of two kinds of pods: an engine's figures and its gateway's."""
    port = kvasir.free_port()
    flags = [f"--metrics-listen=127.0.0.1:{port}", "--served-model-name=smollm2"]
    with before_engines.start(*flags, servedModelNames=["smollm2"]) as gateway:
        for where in (port, gateway.operations):
            with urllib.request.urlopen(f"http://127.0.0.1:{where}/metrics", timeout=30) as response:
                yield response.read().decode()


def test_the_charts_alerts_and_dashboard_ask_for_figures_that_exist():
    files = pathlib.Path(__file__).parents[2] / "charts/kvasir/files"
    text = (files / "rules.yaml").read_text() + (files / "dashboard.json").read_text()
    figures = r"((?:vllm:|kvasir_(?!operator_))[a-z0-9_]+)"
    asked = set(re.findall(figures, text))
    exposed = {}
    for page in of_a_cluster():
        for name, labels in re.findall(r"^([a-z0-9_:]+)\{(.*)\} \S+$", page, re.MULTILINE):
            exposed.setdefault(name, []).append(labels)
        for name in re.findall(r"^([a-z0-9_:]+) \S+$", page, re.MULTILINE):
            exposed.setdefault(name, []).append("")
    assert len(asked) > 15
    assert asked <= set(exposed), asked - set(exposed)
    # What is chosen by its model is called the same by engines and gateways.
    by_model = set(re.findall(figures + r'\{[^}]*model_name=~', text.replace("\\", "")))
    assert len(by_model) > 10
    for name in by_model:
        assert all('model_name="smollm2"' in labels for labels in exposed[name]), (name, exposed[name])


def test_token_counters_follow_the_usage(server, client):
    before = {name: server.metric(f"vllm:{name}") for name in ("prompt_tokens_total", "generation_tokens_total")}
    answer = client.completions.create(model="smollm2", prompt="Counting tokens", max_tokens=7, temperature=0)
    assert server.metric("vllm:prompt_tokens_total") - before["prompt_tokens_total"] == answer.usage.prompt_tokens
    assert server.metric("vllm:generation_tokens_total") - before["generation_tokens_total"] == answer.usage.completion_tokens
