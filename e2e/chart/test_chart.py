"""What the chart renders, and what it refuses."""

import json
import os
import re

import pytest
import yaml

from conftest import CHART, ROOT, find, objects, render, run

DEFINITION = ROOT / "crds/kvasir.dev_inferenceservices.yaml"
CASES = {"default": [], "everything": ["-f", CHART / "ci/everything-values.yaml"], "namespaced": ["-f", CHART / "ci/namespaced-values.yaml"]}


@pytest.mark.parametrize("case", CASES)
def test_lint_finds_nothing(case):
    done = run("helm", "lint", "--strict", CHART, *CASES[case])
    assert "0 chart(s) failed" in done.stdout


@pytest.mark.parametrize("case", CASES)
def test_rendered_objects_are_those_that_were_looked_at(case):
    """The definition is compared with its own golden; KVASIR_BLESS=1 writes the others anew."""
    text = "---\n".join(part for part in render(*CASES[case]).split("---\n") if "kind: CustomResourceDefinition" not in part)
    golden = CHART / f"ci/{case}.golden.yaml"
    if os.environ.get("KVASIR_BLESS"):
        golden.write_text(text)
    assert text == golden.read_text(), f"{golden} differs: look at the change, then KVASIR_BLESS=1"


def test_the_definition_is_the_golden_one_and_stays_after_an_uninstall():
    assert (CHART / "files/inferenceservices.yaml").read_text() == DEFINITION.read_text()
    definition = find(objects(), "CustomResourceDefinition", "inferenceservices.kvasir.dev")
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert definition == yaml.safe_load(DEFINITION.read_text())
    assert not [item for item in objects("--set", "crds.install=false") if item["kind"] == "CustomResourceDefinition"]


def rules_of(items):
    return [(item, rule) for item in items if item["kind"] in ("Role", "ClusterRole") for rule in item["rules"]]


@pytest.mark.parametrize("case", CASES)
def test_rights_have_no_stars_and_nobody_lists_secrets(case):
    for item, rule in rules_of(objects(*CASES[case])):
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"], item["metadata"]["name"]
        if "secrets" in rule["resources"]:
            assert not {"list", "watch", "deletecollection"} & set(rule["verbs"])
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_every_object_in_the_values_is_closed_or_a_map_of_known_values():
    """An unknown value is refused at every depth, and a text has a longest length or a pattern."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(path, part):
        if part.get("type") == "object" and path != ".global":
            assert "additionalProperties" in part or path.endswith("claims[]"), path
        if part.get("type") == "string":
            assert "maxLength" in part or "pattern" in part or path == ".strings{}", path
        for name, inner in {**part.get("properties", {}), **(part.get("definitions", {}) if not path else {})}.items():
            check(f"{path}.{name}", inner)
        for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
            if isinstance(part.get(key), dict):
                check(path + mark, part[key])

    check("", schema)


def test_whoever_may_read_metrics_helms_own_test_may_ask(everything):
    test = find(everything, "Pod", "kvasir-operator-test")
    peers = [peer for rule in find(everything, "NetworkPolicy", "kvasir-operator")["spec"]["ingress"] for peer in rule["from"]]
    selectors = [peer["podSelector"]["matchLabels"] for peer in peers if "namespaceSelector" not in peer]
    assert any(selector.items() <= test["metadata"]["labels"].items() for selector in selectors)


def test_an_operator_of_one_namespace_has_no_rights_elsewhere():
    items = objects(*CASES["namespaced"])
    assert not [item for item in items if item["kind"].startswith("Cluster")]
    assert {item["metadata"]["namespace"] for item in items if item["kind"] == "RoleBinding"} == {"models", "kvasir-system"}
    for item, rule in rules_of(items):
        if item["metadata"]["namespace"] == "kvasir-system":
            assert rule["resources"] == ["leases"]


def test_the_operators_pods_have_no_privileges(everything):
    pod = find(everything, "Deployment", "kvasir-operator")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = pod["containers"][0]["securityContext"]
    assert context == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def test_names_that_others_rely_on_agree(everything):
    """Policies of services admit the operator by its label and namespace; the lease has its name."""
    deployment = find(everything, "Deployment", "kvasir-operator")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--operator-name=kvasir-operator" in arguments and "--operator-namespace=kvasir-system" in arguments
    assert deployment["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "kvasir-operator"
    lease = next(rule for _, rule in rules_of(everything) if rule["resources"] == ["leases"] and "resourceNames" in rule)
    assert lease["resourceNames"] == ["kvasir-operator"]


def test_a_release_of_another_name_gets_names_of_its_own():
    text = run("helm", "template", "blue", CHART, "--namespace", "one").stdout
    names = {item["metadata"]["name"] for item in yaml.safe_load_all(text) if item and item["kind"] != "CustomResourceDefinition"}
    assert all(name.startswith("blue-kvasir") for name in names), names


@pytest.mark.parametrize("setting, named", [
    ("operator.replicas=-1", "replicas"),
    ("operator.logLevel=loud", "logLevel"),
    ("operator.watchNamespace=Not_A_Name", "watchNamespace"),
    ("operator.resource.limits=1", "resource"),
    ("image.digest=latest", "digest"),
    ("networkPolicy.apiServerPorts[0]=99999", "apiServerPorts"),
    ("monitoring.rules.kvUsage=2", "kvUsage"),
    ("misspelt=1", "misspelt"),
    ("image.tag=a b", "tag"),
    ("engineImage=a b", "engineImage"),
    ("operator.clusterDomain=Not.A.Domain", "clusterDomain"),
    ("operator.resources.limits.memory=much", "memory"),
    ("operator.tolerations[0].effects=NoExecute", "effects"),
    ("serviceAccount.name=Not_A_Name", "name"),
    ("networkPolicy.monitoring[0].namespaceSelectr.matchLabels.a=b", "namespaceSelectr"),
    # Without its selector a peer would be everybody.
    ("networkPolicy.dns.podSelector.matchLabel.k8s-app=dns", "matchLabel"),
])
def test_wrong_values_are_refused_by_name(setting, named):
    done = run("helm", "template", "kvasir", CHART, "--set", setting, check=False)
    assert done.returncode != 0
    assert named in done.stderr, done.stderr


def test_notes_say_what_is_open_when_policies_are_off():
    def notes(*settings):
        return run("helm", "install", "kvasir", CHART, "--dry-run=client", "--namespace", "x", *settings).stdout.partition("NOTES:")[2]
    assert "kubectl wait --for=condition=Ready" in notes()
    assert "WARNING" not in notes()
    assert "WARNING" in notes("--set", "networkPolicy.enabled=false")


def test_samples_are_services_of_this_version():
    files = sorted((CHART / "samples").glob("*.yaml"))
    assert [file.stem for file in files] == ["canary", "laptop-cpu", "private-model-image", "private-model-pvc", "shared-gateway", "tenants"]
    for file in files:
        kinds = [item["apiVersion"] + "/" + item["kind"] for item in yaml.safe_load_all(file.read_text())]
        assert kinds.count("kvasir.dev/v1alpha1/InferenceService") == (2 if file.stem == "shared-gateway" else 1), file


def test_the_package_holds_what_is_needed_and_nothing_of_the_tests(tmp_path):
    run("helm", "package", CHART, "--destination", tmp_path)
    package = next(tmp_path.glob("*.tgz"))
    import tarfile
    names = tarfile.open(package).getnames()
    assert "kvasir/files/inferenceservices.yaml" in names
    assert not [name for name in names if re.match(r"kvasir/ci/", name)]
