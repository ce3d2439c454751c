mod broken;
mod numbers;

use std::fmt::Write as _;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;

/// As small as a configuration gets.
const SMALL: &str = "
auth: {anonymous: {serveEverybodyAs: public}}
tenants: [{name: public}]
cacheSalt: {secretFile: /run/salt}
engines: {static: [{address: '127.0.0.1:50051'}]}
";

/// Everything that can be written.
const LARGE: &str = "
listen: 0.0.0.0:8443
operationsListen: 0.0.0.0:9090
tls: {certificate: /tls/tls.crt, key: /tls/tls.key, clientAuthorities: /tls/ca.crt}
auth:
  apiKeys:
    files: [/keys/a.yaml]
    keys:
      - {id: k1, sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855, tenant: team-a, expiresUnixSeconds: 2000000000}
  jwt:
    - issuer: https://issuer.example
      audiences: [kvasir]
      jwks: {url: 'https://issuer.example/keys', refreshSeconds: 60}
      claim: {name: team, tenants: {a: team-a, ops: ops}}
    - {issuer: local, audiences: [kvasir], jwks: {file: /jwks.json}, skewSeconds: 0, tenant: ops}
  tokenReview:
    audience: kvasir
    rules:
      - {namespace: default, serviceAccount: reader, tenant: team-a}
      - {namespace: default, tenant: ops}
      - {group: admins, tenant: ops}
      - {username: jo, tenant: ops}
  certificates: [{name: 'uri:spiffe://k/ops', tenant: ops}, {name: 'dns:Ops.example', tenant: ops}]
tenants:
  - name: team-a
    models: [small, large]
    adapters: [legal]
    priority: 5
    weight: 3
    maxTokens: 1000
    limits: {requestsPerMinute: 60, tokensPerMinute: 100000, inputTokensPerMinute: 90000, outputTokensPerMinute: 20000, concurrency: 8, queueSharePercent: 25}
  - {name: ops, scopes: [inference, operations, admin], models: '*', adapters: '*', priority: -1}
limits: {replicas: 2, store: {redisUrlFile: /redis/url, prefix: 'chat:'}}
cacheSalt: {secretFile: /salt/secret}
engines:
  endpointSlices: {namespace: default, service: chat, port: 50051}
  tls: {authorities: /etls/ca.crt, certificate: /etls/tls.crt, key: /etls/tls.key, names: ['dns:engine.chat.svc']}
revisions: [{name: old, weight: 90}, {name: new, weight: 10}]
routing: {policy: LeastKV, maxIndexBlocks: 1000000, connectTimeoutMillis: 500, firstTokenTimeoutSeconds: 30, interTokenTimeoutSeconds: 20, maxAttempts: 2}
waiting: {capacity: 100, maxWaitSeconds: 30, holdSeconds: 120}
servedModelNames: [small]
models:
  - servedModelNames: [large, huge]
    engines: {dns: {name: large.default.svc, port: 50052}, tls: {authorities: /m/ca.crt, certificate: /m/tls.crt, key: /m/tls.key, names: ['dns:engine.large.svc']}}
    revisions: [{name: first, weight: 1}]
    routing: {policy: PrefixAware, prefixChars: 2000}
    waiting: {capacity: 7}
  - {servedModelNames: [tiny], engines: {static: [{address: '127.0.0.1:50053'}]}}
tracing: {endpoint: 'http://otel:4317', samplePercent: 10}
";

/// The faults as lines, after `from` was replaced by `to` in `yaml`.
fn faults(yaml: &str, from: &str, to: &str) -> Vec<String> {
    assert!(yaml.contains(from), "{from} isn't there");
    match parse_gateway(&yaml.replacen(from, to, 1)) {
        Ok(_) => Vec::new(),
        Err(GatewayFaults(faults)) => faults.iter().map(Fault::to_string).collect(),
    }
}

#[test]
fn the_smallest_configuration_has_safe_defaults() {
    let config = parse_gateway(SMALL).unwrap();
    assert!(config.listen.ip().is_loopback() && config.operations_listen.ip().is_loopback());
    let tenant = &config.tenants[0];
    assert_eq!(tenant.scopes, [ScopeConfig::Inference]);
    assert_eq!(tenant.models, Names::default(), "no model unless one is named");
    assert!(tenant.limits.is_unlimited());
    assert_eq!(config.waiting.hold_seconds, 0);
    assert_eq!(config.limits.replicas.get(), 1);
}

#[test]
fn every_field_is_read() {
    let config = parse_gateway(LARGE).unwrap();
    assert_eq!(
        config.auth.certificates[1].name,
        CertificateName::Dns("ops.example".to_owned())
    );
    assert_eq!(config.tenants[1].models, Names::All);
    assert_eq!(config.tenants[0].limits.concurrency.map(NonZeroU32::get), Some(8));
    assert_eq!(config.routing.policy, RoutingPolicyConfig::LeastKV);
    assert_eq!(config.revisions[1].weight, 10);
    let large = &config.models[0];
    assert_eq!(large.served_model_names, ["large", "huge"]);
    assert_eq!(large.routing.prefix_chars.map(NonZeroU32::get), Some(2000));
    assert_eq!(large.waiting.capacity.get(), 7);
    assert_eq!(config.models[1].waiting.max_wait_seconds, 60);
}

#[test]
fn the_file_of_one_model_has_no_field_that_the_version_before_does_not_know() {
    let written = write_gateway(&parse_gateway(SMALL).unwrap());
    let value: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert!(value.get("models").is_none(), "{written}");
    assert!(value["routing"].get("prefixChars").is_none(), "{written}");
}

#[test]
fn one_model_may_have_no_name_of_its_own_and_one_twice() {
    for names in ["[]", "[a, a]"] {
        parse_gateway(&format!("{SMALL}servedModelNames: {names}\n")).unwrap();
    }
}

#[test]
fn more_models_than_can_be_served_are_refused() {
    let models = |number: usize| {
        let mut yaml = format!("{SMALL}servedModelNames: [first]\nmodels:\n");
        for place in 0..number {
            writeln!(
                yaml,
                "  - {{servedModelNames: [m{place}], engines: {{static: [{{address: '127.0.0.1:{}'}}]}}}}",
                50_000 + place
            )
            .unwrap();
        }
        yaml
    };
    assert_eq!(parse_gateway(&models(64)).unwrap().models.len(), 64);
    let GatewayFaults(faults) = parse_gateway(&models(65)).unwrap_err();
    assert_eq!(faults.len(), 1);
    let fault = faults[0].to_string();
    assert!(
        fault.starts_with("models: 65 are more than 64 beside the first one"),
        "{fault}"
    );
}

#[test]
fn a_name_that_two_models_have_is_reported_with_both_places() {
    let found = faults(LARGE, "servedModelNames: [tiny]", "servedModelNames: [small]");
    assert_eq!(
        found,
        ["models[1].servedModelNames[0]: \"small\" is taken by servedModelNames[0]"]
    );
}

#[test]
fn a_gateway_without_any_credential_or_tls_is_refused_unless_it_says_so() {
    let nobody = faults(SMALL, "{anonymous: {serveEverybodyAs: public}}", "{}");
    assert_eq!(nobody.len(), 1, "{nobody:?}");
    assert!(nobody[0].starts_with("auth: "), "{nobody:?}");
    let open = faults(SMALL, "\nauth", "\nlisten: 0.0.0.0:80\nauth");
    assert!(open[0].starts_with("tls: "), "{open:?}");
    let far = faults(SMALL, "127.0.0.1:50051", "10.0.0.1:50051");
    assert!(far[0].starts_with("engines.tls: "), "{far:?}");
}

#[test]
fn all_faults_are_reported_at_once() {
    let broken = SMALL
        .replace("serveEverybodyAs: public", "serveEverybodyAs: other")
        .replace("name: public", "name: '-'");
    let faults = parse_gateway(&broken).unwrap_err();
    assert_eq!(faults.0.len(), 2, "{faults}");
    assert_eq!(faults.to_string().lines().count(), 2);
}

#[test]
fn a_key_in_place_of_its_digest_is_not_repeated() {
    let key = "kv_k1_c0ffee00c0ffee00c0ffee00c0ffee00";
    let faults = faults(
        LARGE,
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        key,
    );
    assert!(!faults.is_empty());
    assert!(faults.iter().all(|fault| !fault.contains("c0ffee")), "{faults:?}");
}

#[test]
fn what_is_no_configuration_is_refused_without_a_panic() {
    for text in [
        "",
        "null",
        "[]",
        "a",
        "{",
        "tenants: [",
        "---\n---\n",
        "listen: &a [*a]",
        "x: 1",
    ] {
        assert!(parse_gateway(text).is_err(), "{text:?}");
    }
    let long = format!("{SMALL}{}", " ".repeat(MAX_GATEWAY_FILE_BYTES));
    assert!(
        parse_gateway(&long)
            .unwrap_err()
            .to_string()
            .contains("more than")
    );
    let deep = format!("tenants: {}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert!(parse_gateway(&deep).is_err());
}

#[test]
fn aliases_that_multiply_are_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let last = level - 1;
        let references = vec![format!("*a{last}"); 10].join(", ");
        writeln!(bomb, "a{level}: &a{level} [{references}]").unwrap();
    }
    assert!(parse_gateway(&bomb).is_err());
}

#[test]
fn the_schema_names_every_field_of_the_file() {
    let schema = gateway_schema();
    let properties = schema["properties"].as_object().unwrap();
    let fields = [
        "listen",
        "operationsListen",
        "servedModelNames",
        "auditFile",
        "maxBodyBytes",
        "requestTimeoutSeconds",
        "shutdownTimeoutSeconds",
        "leaveSeconds",
        "models",
        "tls",
        "auth",
        "tenants",
        "limits",
        "cacheSalt",
        "engines",
        "revisions",
        "routing",
        "waiting",
        "tracing",
    ];
    assert_eq!(properties.len(), fields.len());
    assert!(fields.iter().all(|field| properties.contains_key(*field)));
    assert_eq!(schema["additionalProperties"], serde_json::json!(false));
    let required: Vec<&str> = schema["required"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|field| field.as_str())
        .collect();
    assert_eq!(required, ["auth", "tenants", "cacheSalt", "engines"]);
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(text in "\\PC{0,200}") {
        prop_assert!(parse_gateway(&text).is_err());
    }

    #[test]
    fn a_changed_file_is_read_without_a_panic(at in any::<prop::sample::Index>(), to in "[\\[\\]{}:,&*! a0\n-]{0,3}") {
        let mut text = LARGE.to_owned();
        let at = at.index(text.len());
        text.replace_range(at..=at, &to);
        if let Err(faults) = parse_gateway(&text) {
            prop_assert!(!faults.0.is_empty());
        }
    }
}

#[test]
fn a_file_that_multiplies_or_nests_is_refused_before_it_is_built() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        writeln!(laughs, "a{level}: &a{level} [{before}]").unwrap();
    }
    for (yaml, named) in [
        (laughs, "aliases"),
        ("[".repeat(900_000), "nested more than 32 deep"),
        (
            " ".repeat(MAX_GATEWAY_FILE_BYTES + 1),
            "1048577 bytes are more than 1048576",
        ),
    ] {
        let text = parse_gateway(&yaml).unwrap_err().to_string();
        assert!(text.contains(named), "{text}");
    }
}

#[test]
fn more_tenants_or_names_than_can_be_served_are_refused() {
    let mut tenants = "[".to_owned();
    for number in 0..10_001 {
        write!(tenants, "{{name: t{number}}}, ").unwrap();
    }
    let found = faults(SMALL, "[{name: public}]", &format!("{tenants}{{name: public}}]"));
    assert_eq!(found.len(), 1, "{}", found[0]);
    assert!(
        found[0].starts_with("tenants: 10002 are more than 10000"),
        "{}",
        found[0]
    );
    let names: Vec<String> = (0..1001).map(|number| format!("m{number}")).collect();
    let found = faults(
        SMALL,
        "{name: public}",
        &format!("{{name: public, models: [{}]}}", names.join(", ")),
    );
    assert_eq!(
        found,
        ["tenants[0].models: 1001 names are more than 1000; write '*' for all"]
    );
}

#[test]
fn a_long_list_of_faults_is_cut() {
    let tenants = "{name: A}, ".repeat(30);
    let yaml = SMALL.replace("{name: public}", &format!("{tenants}{{name: public}}"));
    let text = parse_gateway(&yaml).unwrap_err().to_string();
    assert_eq!(text.lines().count(), 21, "{text}");
    assert!(text.ends_with("\nand 39 more"), "{text}");
}

#[test]
fn what_a_file_says_is_quoted_without_its_control_characters_and_not_at_length() {
    let long = "x".repeat(5000);
    for (from, to) in [
        ("name: public", "name: \"a\\e[31mb\\nc\\u202e\""),
        ("name: public", "\"na\\e[31mme\": public"),
        ("name: public", "name: public, weight: \"\\e[2J\""),
        ("name: public", "name: public, models: \"\\e[2J\""),
        ("name: public", format!("name: {long}").as_str()),
        ("name: public", format!("{long}: public").as_str()),
        ("name: public", format!("name: public, weight: {long}").as_str()),
    ] {
        let found = faults(SMALL, from, to);
        for fault in &found {
            assert!(
                fault.chars().all(|c| !c.is_control() && c != '\u{202e}'),
                "{fault:?}"
            );
            assert!(fault.len() < 1000, "{fault}");
        }
        assert!(!found.is_empty(), "{to}");
    }
}

#[test]
fn types_have_the_names_that_people_use() {
    for (to, expected) in [
        (
            "name: public, weight: x",
            "tenants[0].weight: found string \"x\", expected a whole number from 1 to 4294967295 at line 3 column",
        ),
        (
            "name: public, priority: 1.5",
            "tenants[0].priority: found floating point `1.5`, expected a whole number from -2147483648 to 2147483647 at line",
        ),
        (
            "name: public, limits: 5",
            "tenants[0].limits: found integer `5`, expected a mapping at line",
        ),
        (
            "name: public, scopes: 5",
            "tenants[0].scopes: found integer `5`, expected a list at line",
        ),
        (
            "name: [public]",
            "tenants[0].name: found sequence, expected a text at line",
        ),
    ] {
        let found = faults(SMALL, "name: public", to);
        assert!(found[0].starts_with(expected), "{found:?}");
    }
}

#[test]
fn a_name_in_a_certificate_that_is_no_text_is_told_its_form() {
    for (to, found) in [
        ("{dns: ops.example}", "found map"),
        ("[dns, ops.example]", "found sequence"),
    ] {
        let faults = faults(LARGE, "'uri:spiffe://k/ops'", to);
        let expected = format!(
            "auth.certificates[0].name: {found}, expected a name in a certificate as one text, dns:NAME or uri:URI"
        );
        assert!(faults[0].starts_with(&expected), "{faults:?}");
    }
}

#[test]
fn an_address_is_told_its_form() {
    let faults = faults(SMALL, "127.0.0.1:50051", "localhost");
    assert!(
        faults[0].contains("expected an address with a port, such as 127.0.0.1:8443"),
        "{faults:?}"
    );
}
