use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use crate::*;

fn specs() -> Vec<Spec> {
    [
        ModelConfig::specs(),
        EngineConfig::specs(),
        HttpConfig::specs(),
        GrpcConfig::specs(),
        ProcessConfig::specs(),
    ]
    .concat()
}

fn flags(values: &[(&str, &str)]) -> Layer {
    let mut layer = Layer::default();
    for (key, text) in values {
        layer.set(*key, Source::Flag, vec![(*text).to_owned()]);
    }
    layer
}

fn env(values: &[(&str, &str)]) -> EnvLayer {
    let variables = values
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    env_layer(variables, &specs(), &specs())
}

fn file(text: &str) -> Result<Layer, ConfigError> {
    file_layer(text, "kvasir.yaml", &specs())
}

fn bind_error(values: &[(&str, &str)], has_keys: bool) -> Option<String> {
    HttpConfig::resolve(&flags(values))
        .unwrap()
        .bind(has_keys)
        .err()
        .map(|error| error.to_string())
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let from_file = || file("port: 3\nhost: ::1\nmax-num-seqs: 7\nblock-size: 8").unwrap();
    let from_env = || env(&[("KVASIR_PORT", "2"), ("KVASIR_HOST", "127.0.0.2")]).layer;
    let merged = flags(&[("port", "1")]).over(from_env()).over(from_file());
    let http = HttpConfig::resolve(&merged).unwrap();
    let engine = EngineConfig::resolve(&merged).unwrap();
    assert_eq!((http.port.value, http.port.source), (1, Source::Flag));
    assert_eq!(
        (http.host.value.as_str(), http.host.source),
        ("127.0.0.2", Source::Env("KVASIR_HOST".into()))
    );
    assert_eq!(engine.max_num_seqs.source, Source::File("kvasir.yaml".into()));
    assert_eq!(engine.max_num_seqs.value.get(), 7);
    assert_eq!(
        engine.max_num_batched_tokens,
        EngineConfig::default().max_num_batched_tokens
    );
}

#[test]
fn list_of_a_stronger_layer_replaces_the_weaker_one() {
    let weaker = file("served-model-name: [a, b]").unwrap();
    let merged = flags(&[("served-model-name", "c")]).over(weaker);
    assert_eq!(
        ModelConfig::resolve(&merged).unwrap().served_model_name.value,
        ["c"]
    );
}

#[test]
fn all_layers_accept_human_sizes() {
    for layer in [
        flags(&[("kv-cache-memory-bytes", "2GiB")]),
        env(&[("KVASIR_KV_CACHE_MEMORY_BYTES", "2GiB")]).layer,
        file("kv_cache_memory_bytes: 2GiB").unwrap(),
        file("kv-cache-memory-bytes: 2147483648").unwrap(),
    ] {
        assert_eq!(
            EngineConfig::resolve(&layer).unwrap().kv_cache_memory_bytes.value,
            Some(ByteCount(2 << 30))
        );
    }
}

#[test]
fn invalid_value_names_option_source_and_what_is_allowed() {
    let cases = [
        (
            flags(&[("port", "70000")]),
            r#"invalid value "70000" for port (from flag): expected a whole number from 0 to 65535"#,
        ),
        (
            env(&[("KVASIR_PORT", "x")]).layer,
            r#"invalid value "x" for port (from env KVASIR_PORT): expected a whole number from 0 to 65535"#,
        ),
        (
            file("strict: 3").unwrap(),
            r#"invalid value "3" for strict (from file kvasir.yaml): expected true or false"#,
        ),
        (
            file("host: [a, b]").unwrap(),
            r#"invalid value "a,b" for host (from file kvasir.yaml): expected one value, found 2"#,
        ),
    ];
    for (layer, expected) in cases {
        assert_eq!(HttpConfig::resolve(&layer).unwrap_err().to_string(), expected);
    }
}

#[test]
fn unknown_file_key_is_refused_with_the_nearest_option() {
    let error = file("max_modle_len: 5").unwrap_err().to_string();
    assert_eq!(
        error,
        r#"kvasir.yaml: unknown option "max_modle_len", did you mean "max-model-len"?"#
    );
    let error = file("quux: 5").unwrap_err().to_string();
    assert_eq!(error, r#"kvasir.yaml: unknown option "quux""#);
}

#[test]
fn files_of_another_shape_are_refused() {
    for text in [
        "- a",
        "7",
        "port: {a: 1}",
        "port:",
        "host: [[a]]",
        "1: 2",
        "port: [",
        "port: 1\nport: 2",
    ] {
        assert!(file(text).is_err(), "{text}");
    }
    assert_eq!(file("# nothing\n").unwrap(), Layer::default());
}

#[test]
fn secrets_appear_in_no_output() {
    let layer = flags(&[("api-key", "hunter2")]);
    let config = HttpConfig::resolve(&layer).unwrap();
    let report = Report::new([config.entries()]);
    let bad = HttpConfig::resolve(&flags(&[("api-key", " hunter2")])).unwrap_err();
    for text in [
        format!("{config:?}"),
        report.to_json().to_string(),
        report.to_lines().join("\n"),
        bad.to_string(),
    ] {
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("<set>"), "{text}");
    }
}

#[test]
fn keys_that_could_never_match_a_header_are_refused() {
    for key in ["", " a", "a ", "a\nb"] {
        assert!(
            HttpConfig::resolve(&flags(&[("api-key", key)])).is_err(),
            "{key:?}"
        );
    }
}

#[test]
fn report_keeps_value_source_and_detail() {
    let layer = env(&[("KVASIR_PORT", "9")]).layer;
    let mut config = HttpConfig::resolve(&layer).unwrap();
    config
        .sse_keep_alive_interval
        .derive(Seconds(Duration::from_secs(5)), "a test");
    let report = Report::new([config.entries()]).to_json();
    assert_eq!(
        report["port"],
        json!({"value": 9, "source": "env", "detail": "KVASIR_PORT"})
    );
    assert_eq!(report["host"], json!({"value": "127.0.0.1", "source": "default"}));
    assert_eq!(
        report["sse-keep-alive-interval"],
        json!({"value": 5, "source": "default", "detail": "a test"})
    );
}

#[test]
fn keep_alives_that_would_outnumber_tokens_are_refused_with_the_limit() {
    for (seconds, is_taken) in [
        ("0", true),
        ("1", true),
        ("0.999", false),
        ("1e-9", false),
        ("3600", true),
    ] {
        let http = HttpConfig::resolve(&flags(&[("sse-keep-alive-interval", seconds)])).unwrap();
        let checked = http.validate();
        assert_eq!(checked.is_ok(), is_taken, "{seconds}");
        if let Err(error) = checked {
            let text = error.to_string();
            assert!(
                text.contains("sse-keep-alive-interval") && text.contains("at least 1 s"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_request_needs_some_time() {
    let timeout = |seconds| {
        let http = HttpConfig::resolve(&flags(&[("request-timeout", seconds)])).unwrap();
        http.validate().map(|()| http.request_timeout.value)
    };
    assert!(timeout("0").unwrap_err().to_string().contains("request-timeout"));
    assert_eq!(
        timeout("1.5").unwrap(),
        Some(Seconds(Duration::from_millis(1500)))
    );
}

#[test]
fn vllm_api_key_is_an_alias_that_ours_beats() {
    let both = env(&[("VLLM_API_KEY", "theirs"), ("KVASIR_API_KEY", "ours")]);
    assert_eq!(
        HttpConfig::resolve(&both.layer).unwrap().api_key.value,
        [Secret::new("ours")]
    );
    let alias = env(&[("VLLM_API_KEY", "theirs")]);
    assert_eq!(
        HttpConfig::resolve(&alias.layer).unwrap().api_key.value,
        [Secret::new("theirs")]
    );
    assert!(alias.warnings.is_empty());
}

#[test]
fn variables_without_effect_warn() {
    let read = env(&[
        ("VLLM_USE_V1", "1"),
        ("KVASIR_PROT", "1"),
        ("KVASIR_TEST_MODEL", "x"),
        ("PATH", "/"),
    ]);
    assert_eq!(
        read.warnings,
        [
            "KVASIR_PROT is set, but there is no such option; did you mean KVASIR_PORT?",
            "VLLM_USE_V1 is set, but Kvasir doesn't read it",
        ]
    );
    assert_eq!(read.layer, Layer::default());
}

#[test]
fn variables_of_a_kubernetes_service_named_kvasir_are_no_options() {
    let read = env(&[
        ("KVASIR_PORT", "tcp://10.0.0.1:8000"),
        ("KVASIR_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("KVASIR_SERVICE_HOST", "10.0.0.1"),
    ]);
    assert_eq!(read, EnvLayer::default());
}

#[test]
fn network_without_key_is_refused_with_the_way_out() {
    for host in ["0.0.0.0", "::", "10.1.2.3", "example.org", "[::]"] {
        let error = bind_error(&[("host", host)], false).unwrap();
        assert!(
            error.contains("--api-key") && error.contains("--allow-unauthenticated"),
            "{error}"
        );
        assert_eq!(bind_error(&[("host", host)], true), None);
        assert_eq!(
            bind_error(&[("host", host), ("allow-unauthenticated", "true")], false),
            None
        );
    }
    for host in ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"] {
        assert_eq!(bind_error(&[("host", host)], false), None, "{host}");
    }
    assert_eq!(bind_error(&[("host", "0.0.0.0"), ("uds", "/tmp/s")], false), None);
}

#[test]
fn a_dump_needs_an_admin_key_wherever_somebody_else_could_ask_for_it() {
    let secret = |text: &str| vec![Secret::new(text)];
    let none = Vec::new;
    let check = |bind: &[(&str, &str)], keys: Vec<Secret>, admins: Vec<Secret>| {
        let http = HttpConfig::resolve(&flags(
            &[
                bind,
                &[("enable-debug-dump", "true"), ("allow-unauthenticated", "true")],
            ]
            .concat(),
        ))
        .unwrap();
        let bind = http.bind(!keys.is_empty()).unwrap();
        let checked = http.check_admin(&bind, &keys, &admins);
        checked.map_err(|error| error.to_string())
    };
    let (network, unix) = (
        &[("host", "0.0.0.0")][..],
        &[("uds", "/s"), ("host", "0.0.0.0")][..],
    );
    assert_eq!(check(&[], none(), none()), Ok(()));
    assert_eq!(check(unix, none(), none()), Ok(()));
    for (bind, keys) in [(&[][..], secret("a")), (unix, secret("a")), (network, none())] {
        let error = check(bind, keys.clone(), none()).unwrap_err();
        assert!(
            error.contains("--admin-api-key") && error.contains("KVASIR_ADMIN_API_KEY"),
            "{error}"
        );
        assert_eq!(check(bind, keys, secret("b")), Ok(()));
    }
    let error = check(&[], secret("a"), secret("a")).unwrap_err();
    assert!(
        error.contains("also an API key") && !error.contains("\"a\""),
        "{error}"
    );
}

#[test]
fn admin_keys_come_from_a_variable_of_their_own_and_are_not_shown() {
    let read = env(&[
        ("KVASIR_ADMIN_API_KEY", "hunter2,x"),
        ("KVASIR_ADMIN_API_KEY_FILE", "/f"),
    ]);
    let http = HttpConfig::resolve(&read.layer).unwrap();
    assert_eq!(http.admin_api_key.value, [Secret::new("hunter2,x")]);
    assert_eq!(http.admin_api_key_file.value, Some(PathBuf::from("/f")));
    assert_eq!(http.api_key.value, []);
    assert!(
        !Report::new([http.entries()])
            .to_json()
            .to_string()
            .contains("hunter2")
    );
}

#[test]
fn engine_addresses_stay_on_this_machine() {
    let unix = LocalAddress::Unix(PathBuf::from("/run/k.sock"));
    for text in ["unix:/run/k.sock", "unix:///run/k.sock"] {
        assert_eq!(LocalAddress::parse(text), Ok(unix.clone()), "{text}");
    }
    for text in [
        "127.0.0.1:7",
        "http://127.0.0.1:7",
        "localhost:7",
        "[::1]:7",
        "http://[::1]:7/",
    ] {
        assert!(
            matches!(LocalAddress::parse(text), Ok(LocalAddress::Tcp(_))),
            "{text}"
        );
    }
    for text in [
        "",
        "unix:",
        "0.0.0.0:7",
        "10.0.0.1:7",
        "example.org:7",
        "127.0.0.1",
        "127.0.0.1:x",
        "https://127.0.0.1:7",
    ] {
        assert!(LocalAddress::parse(text).is_err(), "{text}");
    }
}

#[test]
fn key_files_need_at_least_one_key() {
    let keys = parse_key_file("# ours\n\n a-key \nother\r\n", "keys").unwrap();
    assert_eq!(keys, [Secret::new("a-key"), Secret::new("other")]);
    assert!(parse_key_file("# none\n", "keys").is_err());
    assert!(
        parse_key_file("a\u{7}b\n", "keys")
            .unwrap_err()
            .to_string()
            .starts_with("keys, line 1")
    );
}

#[test]
fn scheduler_limits_that_contradict_each_other_are_refused() {
    let check = |values: &[(&str, &str)]| {
        let mut engine = EngineConfig::resolve(&flags(values)).unwrap();
        engine.settle();
        engine.validate()
    };
    assert!(check(&[]).is_ok());
    assert!(check(&[("max-num-batched-tokens", "7"), ("max-num-seqs", "8")]).is_err());
    assert!(check(&[("max-num-batched-tokens", "7"), ("max-num-seqs", "7")]).is_ok());
    assert!(check(&[("max-num-active-seqs", "129")]).is_err());
    assert!(check(&[("stall-timeout", "0")]).is_err());
    for key in ["max-num-queued-reqs", "max-num-queued-tokens"] {
        assert!(check(&[(key, "0")]).unwrap_err().to_string().contains(key));
        assert!(check(&[(key, "1")]).is_ok());
    }
    assert!(check(&[("stall-timeout", "1")]).is_ok());
    assert!(
        check(&[
            ("num-gpu-blocks-override", "9"),
            ("kv-cache-memory-bytes", "1GiB")
        ])
        .is_err()
    );
}

#[test]
fn default_of_one_limit_follows_the_other_one() {
    let settled = |key, value| {
        let mut engine = EngineConfig::resolve(&flags(&[(key, value)])).unwrap();
        engine.settle();
        engine.validate().unwrap();
        (
            engine.max_num_batched_tokens.value.get(),
            engine.max_num_seqs.value.get(),
        )
    };
    assert_eq!(settled("max-num-batched-tokens", "7"), (7, 7));
    assert_eq!(settled("max-num-seqs", "4096"), (4096, 4096));
    assert_eq!(settled("max-num-seqs", "5"), (2048, 5));
}

#[test]
fn sizes_are_parsed_exactly() {
    let cases: [(&str, Option<u64>); 20] = [
        ("0", Some(0)),
        ("1_000", Some(1000)),
        ("1.5GiB", Some(3 << 29)),
        ("2 GiB", Some(2 << 30)),
        ("1.5KB", Some(1500)),
        ("4K", Some(4096)),
        ("4k", Some(4000)),
        ("16384PiB", None),
        ("16777216TiB", None),
        ("16777215TiB", Some(16_777_215 << 40)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("1.5", None),
        ("1.0", Some(1)),
        ("", None),
        ("GiB", None),
        (".5GiB", None),
        ("1.GiB", None),
        ("-1", None),
        ("1.2.3K", None),
    ];
    for (text, expected) in cases {
        assert_eq!(
            ByteCount::parse(text).ok().map(|bytes| bytes.0),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn times_have_units_and_bounds() {
    for (text, millis) in [
        ("30", 30_000),
        ("0.5", 500),
        ("500ms", 500),
        ("2m", 120_000),
        ("1s", 1000),
        ("0", 0),
    ] {
        assert_eq!(
            Seconds::parse(text),
            Ok(Seconds(Duration::from_millis(millis))),
            "{text}"
        );
    }
    for text in ["", "-1", "inf", "NaN", "1e300", "1h2", "s"] {
        assert!(Seconds::parse(text).is_err(), "{text}");
    }
}

#[test]
fn suggestions_are_near() {
    assert_eq!(
        closest("max-modle-len", ["max-model-len", "max-num-seqs"]),
        Some("max-model-len")
    );
    assert_eq!(closest("xyz", ["port", "host"]), None);
    assert_eq!(closest(&"x".repeat(100_000), ["port"]), None);
}

#[test]
fn every_key_is_declared_once_and_every_default_parses() {
    let all = specs();
    for spec in &all {
        assert_eq!(
            all.iter().filter(|other| other.key == spec.key).count(),
            1,
            "{}",
            spec.key
        );
        if spec.kind == Kind::One && !spec.default.is_empty() {
            assert_eq!(
                (spec.check)(std::slice::from_ref(&spec.default)),
                Ok(()),
                "{}",
                spec.key
            );
        }
    }
}

/// Keys and texts from small sets, so that layers often set the same key.
fn layers() -> impl Strategy<Value = [BTreeMap<&'static str, u16>; 3]> {
    let layer = || {
        proptest::collection::btree_map(
            proptest::sample::select(vec!["port", "max-logprobs", "block-size"]),
            1_u16..9,
            0..4,
        )
    };
    [layer(), layer(), layer()]
}

fn as_layer(values: &BTreeMap<&'static str, u16>, source: &Source) -> Layer {
    let mut layer = Layer::default();
    for (key, number) in values {
        layer.set(*key, source.clone(), vec![number.to_string()]);
    }
    layer
}

proptest! {
    #[test]
    fn each_key_has_the_value_and_source_of_its_strongest_layer(values in layers()) {
        let sources = [Source::Flag, Source::Env("E".into()), Source::File("f".into())];
        let [flag, env, file] = [0, 1, 2].map(|i| as_layer(&values[i], &sources[i]));
        let merged = flag.clone().over(env.clone()).over(file.clone());
        prop_assert_eq!(&merged, &flag.over(env.over(file)), "merging is associative");
        for key in ["port", "max-logprobs", "block-size"] {
            let expected = (0..3).find_map(|i| values[i].get(key).map(|number| (number.to_string(), sources[i].clone())));
            let found = merged.get(key).map(|raw| (raw.texts[0].clone(), raw.source.clone()));
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC{0,40}") {
        for spec in specs() {
            let _ignored = (spec.check)(std::slice::from_ref(&text));
        }
        let _ignored = file_layer(&text, "f", &specs());
        let _ignored = parse_key_file(&text, "f");
    }

    #[test]
    fn shown_sizes_stay_within_half_a_percent(bytes in 0_u64..(1 << 50)) {
        let shown = ByteCount(bytes).to_string();
        let digits = shown.trim_end_matches(char::is_alphabetic);
        let unit: f64 = match &shown[digits.len()..] { "B" => 1.0, "KiB" => 1024.0, "MiB" => 1_048_576.0, "GiB" => 1_073_741_824.0, _ => 1_099_511_627_776.0 };
        let read = digits.parse::<f64>().unwrap() * unit;
        prop_assert!((read - bytes as f64).abs() <= 0.005 * bytes as f64 + 0.5);
    }
}
