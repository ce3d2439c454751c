"""What a person does: install, apply, chat, scale, roll, look, remove."""

import json
import time

from cluster import Cluster, Service, wait_until


def test_the_sample_for_a_laptop_answers_the_openai_client_through_its_gateway(laptop, client):
    answer = json.loads(laptop.ask(client).stdout)
    Cluster.measured.append(f"first answer: {time.monotonic() - laptop.applied_at:.1f} s after kubectl apply, of which the request took {answer['seconds']:.1f} s")
    assert answer["model"] == "laptop"
    assert "Paris" in answer["answer"]
    assert answer["streamed"] == answer["answer"]


def test_every_pod_runs_under_the_restricted_standard(laptop):
    pods = laptop.engines() + laptop.gateways()
    assert len(pods) == 2
    for pod in pods:
        spec, container = pod["spec"], pod["spec"]["containers"][0]
        assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_the_columns_of_kis_say_how_it_stands(laptop, cluster):
    lines = cluster.kubectl("-n", laptop.namespace, "get", "kis").stdout.splitlines()
    assert lines[0].split()[:5] == ["NAME", "READY", "MODEL", "GROUPS", "READY-GROUPS"]
    assert lines[1].split()[:5] == ["laptop", "True", "laptop", "1", "1"]


def test_a_service_scales_to_two_groups_and_back(laptop, cluster):
    cluster.kubectl("-n", laptop.namespace, "scale", "kis/laptop", "--replicas=2")
    wait_until(lambda: len(laptop.engines()) == 2, seconds=90)
    laptop.wait_until_ready()
    cluster.kubectl("-n", laptop.namespace, "scale", "kis/laptop", "--replicas=1")
    wait_until(lambda: len(laptop.engines()) == 1, seconds=90)
    laptop.wait_until_ready()


def test_a_deleted_service_leaves_nothing_but_the_claim(operator):
    with Service.applied(operator, "gone") as service:
        operator.kubectl("-n", service.namespace, "delete", "kis", "gone", "--timeout=90s")
        kinds = "pods,statefulsets,deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets"
        own = ("kvasir.dev/service=gone",)
        wait_until(lambda: not operator.get("-n", service.namespace, kinds, "-l", *own)["items"], seconds=90)
        assert operator.get("-n", service.namespace, "pvc", "models")


def test_the_restricted_standard_is_enforced_where_services_are(laptop, cluster):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "privileged", "namespace": laptop.namespace},
           "spec": {"containers": [{"name": "c", "image": "kvasir.test/tools:1", "securityContext": {"privileged": True}}]}}
    done = cluster.kubectl("create", "-f", "-", stdin=json.dumps(pod), check=False)
    assert done.returncode != 0 and 'violates PodSecurity "restricted' in done.stderr, done.stderr
