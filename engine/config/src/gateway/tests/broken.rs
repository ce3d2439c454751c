//! One fault at a time, each reported at its field.

use super::*;

/// What is replaced in the large configuration, by what, and where that is reported.
const BROKEN: &[(&str, &str, &str)] = &[
    ("name: team-a\n", "name: Team_A\n", "tenants[0].name"),
    ("{name: ops, scopes", "{name: team-a, scopes", "tenants[1].name"),
    (
        "queueSharePercent: 25",
        "queueSharePercent: 101",
        "tenants[0].limits.queueSharePercent",
    ),
    (
        "queueSharePercent: 25",
        "queueSharePercent: 0",
        "tenants[0].limits.queueSharePercent",
    ),
    ("weight: 3", "weight: 0", "tenants[0].weight"),
    (
        "requestsPerMinute: 60",
        "requestsPerMinute: 0",
        "tenants[0].limits.requestsPerMinute",
    ),
    (
        "requestsPerMinute: 60",
        "requestPerMinute: 60",
        "tenants[0].limits.requestPerMinute",
    ),
    ("models: [small, large]", "models: all", "tenants[0].models"),
    (
        "models: [small, large]",
        "models: ['*', large]",
        "tenants[0].models",
    ),
    (
        "[inference, operations, admin]",
        "[inference, root]",
        "tenants[1].scopes[1]",
    ),
    ("id: k1", "id: K_1", "auth.apiKeys.keys[0].id"),
    ("sha256: e3b0", "sha256: x3b0", "auth.apiKeys.keys[0].sha256"),
    (
        "852b855, tenant: team-a",
        "852b855, tenant: team-b",
        "auth.apiKeys.keys[0].tenant",
    ),
    (
        "issuer: local",
        "issuer: https://issuer.example",
        "auth.jwt[1].issuer",
    ),
    ("issuer: local", "issuer: ''", "auth.jwt[1].issuer"),
    ("audiences: [kvasir]", "audiences: []", "auth.jwt[0].audiences"),
    ("audiences: [kvasir]", "audiences: ['']", "auth.jwt[0].audiences"),
    (
        "'https://issuer.example/keys'",
        "'http://issuer.example/keys'",
        "auth.jwt[0].jwks.url",
    ),
    (
        "refreshSeconds: 60",
        "refreshSeconds: 1",
        "auth.jwt[0].jwks.refreshSeconds",
    ),
    ("refreshSeconds: 60", "file: /x", "auth.jwt[0].jwks"),
    (
        "skewSeconds: 0, tenant: ops",
        "skewSeconds: 0",
        "auth.jwt[1].tenant",
    ),
    ("skewSeconds: 0", "skewSeconds: 301", "auth.jwt[1].skewSeconds"),
    (
        "{a: team-a, ops: ops}",
        "{a: nobody}",
        "auth.jwt[0].claim.tenants.a",
    ),
    (
        "audience: kvasir\n",
        "audience: ''\n",
        "auth.tokenReview.audience",
    ),
    (
        "{group: admins, tenant: ops}",
        "{group: admins, username: jo, tenant: ops}",
        "auth.tokenReview.rules[2]",
    ),
    (
        "{username: jo, tenant: ops}",
        "{serviceAccount: jo, tenant: ops}",
        "auth.tokenReview.rules[3]",
    ),
    ("'uri:spiffe://k/ops'", "spiffe", "auth.certificates[0].name"),
    (
        "'dns:Ops.example'",
        "'uri:spiffe://k/ops'",
        "auth.certificates[1].name",
    ),
    (", clientAuthorities: /tls/ca.crt", "", "tls.clientAuthorities"),
    (
        "tls: {certificate: /tls/tls.crt, key: /tls/tls.key, clientAuthorities: /tls/ca.crt}\n",
        "",
        "tls",
    ),
    (
        "operationsListen: 0.0.0.0:9090",
        "operationsListen: 0.0.0.0:8443",
        "operationsListen",
    ),
    ("replicas: 2", "replicas: 0", "limits.replicas"),
    ("prefix: 'chat:'", "prefix: '{x}'", "limits.store.prefix"),
    (
        "endpointSlices: {namespace: default",
        "dns: {name: x, port: 1}\n  endpointSlices: {namespace: default",
        "engines",
    ),
    ("port: 50051", "port: 0", "engines.endpointSlices.port"),
    ("names: ['dns:engine.chat.svc']", "names: []", "engines.tls.names"),
    (
        "names: ['dns:engine.chat.svc']",
        "names: ['engine']",
        "engines.tls.names[0]",
    ),
    (
        "name: new, weight: 10",
        "name: old, weight: 10",
        "revisions[1].name",
    ),
    ("weight: 90}, {name: new, weight: 10}", "weight: 0}", "revisions"),
    ("policy: LeastKV", "policy: Fastest", "routing.policy"),
    ("maxAttempts: 2", "maxAttempts: 11", "routing.maxAttempts"),
    (
        "maxAttempts: 2",
        "maxAttempts: 2, sessionHeader: 'a b'",
        "routing.sessionHeader",
    ),
    ("http://otel:4317", "otel:4317", "tracing.endpoint"),
    (
        "servedModelNames: [small]",
        "servedModelNames: []",
        "servedModelNames",
    ),
    (
        "servedModelNames: [small]",
        "servedModelNames: [small, '']",
        "servedModelNames[1]",
    ),
    (
        "servedModelNames: [large, huge]",
        "servedModelNames: []",
        "models[0].servedModelNames",
    ),
    (
        "servedModelNames: [large, huge]",
        "servedModelNames: [large, '']",
        "models[0].servedModelNames[1]",
    ),
    (
        "servedModelNames: [large, huge]",
        "servedModelNames: [large, small]",
        "models[0].servedModelNames[1]",
    ),
    (
        "servedModelNames: [large, huge]",
        "servedModelNames: [large, large]",
        "models[0].servedModelNames[1]",
    ),
    (
        "servedModelNames: [tiny]",
        "servedModelNames: [tiny, huge]",
        "models[1].servedModelNames[1]",
    ),
    (
        "servedModelNames: [tiny], engines",
        "servedModelNames: [tiny], name: x, engines",
        "models[1].name",
    ),
    (
        "dns: {name: large.default.svc",
        "dns: {name: ''",
        "models[0].engines.dns.name",
    ),
    (
        "names: ['dns:engine.large.svc']",
        "names: []",
        "models[0].engines.tls.names",
    ),
    (
        "address: '127.0.0.1:50053'",
        "address: '10.0.0.1:50053'",
        "models[1].engines.tls",
    ),
    (
        "{address: '127.0.0.1:50053'}",
        "{address: '127.0.0.1:50053'}, {address: '127.0.0.1:50053'}",
        "models[1].engines.static[1].address",
    ),
    (
        "{name: first, weight: 1}",
        "{name: first, weight: 0}",
        "models[0].revisions",
    ),
    (
        "{name: first, weight: 1}",
        "{name: first, weight: 1}, {name: first, weight: 1}",
        "models[0].revisions[1].name",
    ),
    (
        "prefixChars: 2000",
        "prefixChars: 0",
        "models[0].routing.prefixChars",
    ),
    (
        "prefixChars: 2000",
        "sessionHeader: 'a b'",
        "models[0].routing.sessionHeader",
    ),
    ("capacity: 7", "capacity: 0", "models[0].waiting.capacity"),
    (
        "interTokenTimeoutSeconds: 20",
        "interTokenTimeoutSeconds: 0",
        "routing.interTokenTimeoutSeconds",
    ),
    ("holdSeconds: 120", "holdSeconds: 3601", "waiting.holdSeconds"),
    ("capacity: 100", "capacity: 0", "waiting.capacity"),
];

#[test]
fn each_fault_is_reported_at_its_field() {
    for (from, to, path) in BROKEN {
        let faults = faults(LARGE, from, to);
        let is_there = faults.iter().any(|fault| fault.starts_with(&format!("{path}: ")));
        assert!(is_there, "{from} -> {to}: {faults:?}");
    }
}
