"""Alerts: valid, firing when they should, and each with a runbook. The dashboard: valid queries."""

import json
import re

import pytest
import yaml

from conftest import CHART, find, run

FILES = CHART / "files"
ALERTS = [rule for group in yaml.safe_load((FILES / "rules.yaml").read_text())["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def rules(everything, tmp_path_factory):
    """The rules as the chart renders them, as Prometheus reads them."""
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(find(everything, "PrometheusRule", "kvasir")["spec"]))
    return path


def test_promtool_accepts_the_rules(rules):
    assert f"SUCCESS: {len(ALERTS)} rules found" in run("promtool", "check", "rules", rules).stdout


def test_no_placeholder_is_left(rules):
    assert not re.search(r"RUNBOOKS|OPERATOR|TTFT_SECONDS|ITL_SECONDS|KV_USAGE", rules.read_text())


def test_every_alert_has_a_runbook_and_every_runbook_an_alert(rules):
    loaded = [rule for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    books = {path.stem for path in (CHART / "runbooks").glob("*.md")}
    assert {rule["alert"] for rule in loaded} == books
    for rule in loaded:
        assert rule["annotations"]["runbook_url"] == f"https://runbooks.example.com/kvasir/{rule['alert']}.md"
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("critical", "warning")


SERVICE = {"namespace": "team", "service": "chat"}
MODEL = {"namespace": "team", "model_name": "chat"}
# Who has which series in a cluster.
POD = {"namespace": "team", "pod": "chat-g0-0"}
ENGINE = {**POD, "model_name": "chat", "engine": "0"}
GATEWAY = {"namespace": "team", "pod": "chat-gateway-5c9-x2", "model_name": "chat"}


def series(name, labels, values):
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{inner}}}", "values": values}


def condition(kind, status, reason, values="1x60"):
    return series("kvasir_operator_service_condition", {**SERVICE, "condition": kind, "status": status, "reason": reason}, values)


def slow(name, bound):
    """A histogram all of whose observations lie between one bucket and the next."""
    buckets = [(bound / 2, "0x60"), (bound * 4, "0+60x60"), ("+Inf", "0+60x60")]
    return [series(f"vllm:{name}_bucket", {**MODEL, "le": le}, values) for le, values in buckets]


# Its queue is as long as the gateway lets it be.
FULL = [series("vllm:kv_cache_usage_perc", ENGINE, "0.97x60"), series("vllm:num_requests_waiting", ENGINE, "3x60")]
LEADER = series("kvasir_operator_leader", {"pod": "a"}, "1x60")
# What is seen, which alert fires about it, and with which labels.
FIRES = {
    "KvasirServiceNotReady": ([condition("Ready", "False", "EnginesNotReady")], {**SERVICE, "reason": "EnginesNotReady"}),
    "KvasirGroupRestartBudgetExhausted": ([condition("Degraded", "True", "GroupRestartBudgetExhausted")], SERVICE),
    "KvasirRankFlapping": ([condition("Degraded", "True", "RankFlapping")], SERVICE),
    "KvasirGatewayWithoutEngines": ([condition("GatewayReady", "False", "NoReadyGroups")], SERVICE),
    "KvasirCertificateNearEnd": ([condition("CertificatesReady", "False", "ExpiringSoon")], SERVICE),
    "KvasirPoliciesNotEnforced": ([condition("NetworkSecured", "False", "EnforcementUnverified")], {**SERVICE, "reason": "EnforcementUnverified"}),
    "KvasirKVCacheFull": ([series("vllm:kv_cache_usage_perc", ENGINE, "0.97x60"), series("vllm:num_requests_waiting", ENGINE, "0+3x60")], POD),
    "KvasirPreemptionThrash": ([series("vllm:num_preemptions_total", ENGINE, "0+30x60"), series("vllm:request_success_total", GATEWAY, "0+60x60")], MODEL),
    "KvasirTimeToFirstTokenHigh": (slow("time_to_first_token_seconds", 5), MODEL),
    "KvasirInterTokenLatencyHigh": (slow("inter_token_latency_seconds", 0.5), MODEL),
    "KvasirOperatorNotReconciling": ([series("kvasir_operator_leader", {"pod": "a"}, "0x60")], {}),
}
# What may look like trouble and isn't.
QUIET = {
    "KvasirServiceNotReady": [condition("Ready", "True", "AllComponentsReady"), condition("Ready", "False", "Suspended")],
    "KvasirKVCacheFull": FULL,
    "KvasirPreemptionThrash": [series("vllm:num_preemptions_total", ENGINE, "0+3x60"), series("vllm:request_success_total", GATEWAY, "0+60x60")],
    "KvasirTimeToFirstTokenHigh": slow("time_to_first_token_seconds", 0.1),
    "KvasirOperatorNotReconciling": [LEADER, series("kvasir_operator_leader", {"pod": "b"}, "0x60"), series("kvasir_operator_reconciles_total", {"result": "failed"}, "0+1x60"), series("kvasir_operator_reconciles_total", {"result": "done"}, "0+9x60")],
    "KvasirGatewayWithoutEngines": [condition("GatewayReady", "False", "DeploymentUnavailable")],
}


def firing(rules, tmp_path, alert, seen, wanted):
    """promtool compares the labels of what fires with what is wanted."""
    extra = {rule["alert"]: rule["labels"] for rule in ALERTS}[alert]
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": seen,
            "promql_expr_test": [{
                "expr": f'count without (alertstate, alertname, severity) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": "45m",
                "exp_samples": [{"labels": "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}", "value": 1} for labels in wanted],
            }],
        }],
    }
    assert extra["severity"]
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    run("promtool", "test", "rules", path)


@pytest.mark.parametrize("alert", [rule["alert"] for rule in ALERTS])
def test_an_alert_fires_about_what_it_is_for(rules, tmp_path, alert):
    seen, labels = FIRES[alert]
    firing(rules, tmp_path, alert, seen if alert == "KvasirOperatorNotReconciling" else [LEADER, *seen], [labels])


def test_rounds_that_all_fail_are_an_alert_too(rules, tmp_path):
    failed = series("kvasir_operator_reconciles_total", {"result": "failed"}, "0+5x60")
    firing(rules, tmp_path, "KvasirOperatorNotReconciling", [LEADER, failed], [{}])


@pytest.mark.parametrize("alert", QUIET)
def test_an_alert_is_quiet_about_what_only_looks_like_it(rules, tmp_path, alert):
    firing(rules, tmp_path, alert, QUIET[alert], [])


def test_a_queue_that_grows_in_the_gateway_is_one_too(rules, tmp_path):
    """An engine takes a bounded number, so that its own queue ends to grow at once."""
    waiting = series("kvasir_gateway_waiting_requests", {key: GATEWAY[key] for key in ("namespace", "pod")}, "40x60")
    firing(rules, tmp_path, "KvasirKVCacheFull", [LEADER, *FULL, waiting], [POD])


@pytest.mark.parametrize("alert, condition_of", [("KvasirServiceNotReady", ("Ready", "EnginesNotReady")), ("KvasirGatewayWithoutEngines", ("GatewayReady", "NoReadyGroups"))])
def test_a_service_of_which_no_group_is_wanted_is_no_alert(rules, tmp_path, alert, condition_of):
    kind, reason = condition_of
    seen = [LEADER, condition(kind, "False", reason), condition("EnginesReady", "False", "ScaledToZero")]
    firing(rules, tmp_path, alert, seen, [])


def queries():
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def test_the_dashboards_queries_are_promql(tmp_path):
    assert len(queries()) > 20
    replaced = [re.sub(r"\$__rate_interval", "5m", query) for query in queries()]
    group = {"groups": [{"name": "dashboard", "rules": [{"record": f"query:{i}", "expr": query} for i, query in enumerate(replaced)]}]}
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump(group))
    run("promtool", "check", "rules", path)


def test_the_dashboards_panels_dont_overlap():
    taken = set()
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
