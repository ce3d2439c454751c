//! Probes, figures and what is served.

use kvasir_client::types::{Durations, Error, ErrorCode, LoadReport, StepTimes, Watchdog};
use kvasir_edge::{Edge, EdgeConfig};
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn health_fails_only_while_steps_do_not_complete() {
    let engine = FakeEngine::new(Script::Hang);
    let router = edge(&engine).await;
    assert_eq!(get(&router, "/health").await.status, 200);
    let full = LoadReport {
        num_waiting: 100_000,
        stalled_us: 59_000_000,
        ..LoadReport::default()
    };
    *engine.load.lock().unwrap() = Ok(full);
    assert_eq!(get(&router, "/health").await.status, 200);
    *engine.load.lock().unwrap() = Ok(LoadReport {
        stalled_us: 61_000_000,
        ..LoadReport::default()
    });
    for path in ["/health", "/ping"] {
        let answer = get(&router, path).await;
        let message = answer.error(503, "ServiceUnavailableError", None);
        assert!(message.contains("61000 ms"), "{message}");
    }
    assert_eq!(post(&router, "/ping", &json!({})).await.status, 503);
}

#[tokio::test]
async fn the_engines_watchdog_decides_about_health() {
    let engine = FakeEngine::new(Script::Hang);
    let router = edge(&engine).await;
    let watched = |unhealthy: Option<&str>| LoadReport {
        stalled_us: 600_000_000,
        watchdog: Some(Watchdog {
            unhealthy: unhealthy.map(str::to_owned),
            num_stalls: 1,
            ..Watchdog::default()
        }),
        ..LoadReport::default()
    };
    *engine.load.lock().unwrap() = Ok(watched(None));
    assert_eq!(get(&router, "/health").await.status, 200);
    *engine.load.lock().unwrap() = Ok(watched(Some("no progress for 40 s")));
    let answer = get(&router, "/health").await;
    let message = answer.error(503, "ServiceUnavailableError", None);
    assert_eq!(message, "no progress for 40 s");
}

#[tokio::test]
async fn a_dump_is_served_only_where_it_was_switched_on() {
    let engine = FakeEngine::new(Script::Hang);
    assert_eq!(get(&edge(&engine).await, "/debug/dump").await.status, 404);
    let config = EdgeConfig {
        enable_debug_dump: true,
        ..EdgeConfig::default()
    };
    let router = edge_with(&engine, config).await;
    assert_eq!(get(&router, "/debug/dump").await.json(), json!({}));
    get(&router, "/debug/dump?last_stall")
        .await
        .error(404, "NotFoundError", None);
    engine.dumps.lock().unwrap()[1] = Ok("[1]".into());
    assert_eq!(
        get(&router, "/debug/dump?last_stall=true").await.json(),
        json!([1])
    );
    assert_eq!(get(&router, "/debug/dump?laststall").await.status, 400);
}

#[tokio::test]
async fn a_dump_that_the_engine_never_gives_is_not_waited_for_without_end() {
    let engine = FakeEngine::new(Script::Hang);
    engine
        .stands_still
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let config = EdgeConfig {
        enable_debug_dump: true,
        ..EdgeConfig::default()
    };
    let router = edge_with(&engine, config).await;
    tokio::time::pause();
    let answer = get(&router, "/debug/dump").await;
    let message = answer.error(503, "ServiceUnavailableError", None);
    assert!(message.contains("30s"), "{message}");
}

#[tokio::test]
async fn ready_fails_while_the_engine_drains_or_is_gone_and_not_when_it_is_full() {
    let engine = FakeEngine::new(Script::Hang);
    let router = edge(&engine).await;
    *engine.load.lock().unwrap() = Ok(LoadReport {
        num_waiting: 100_000,
        ..LoadReport::default()
    });
    assert_eq!(get(&router, "/ready").await.status, 200);
    *engine.load.lock().unwrap() = Ok(LoadReport {
        draining: true,
        ..LoadReport::default()
    });
    get(&router, "/ready")
        .await
        .error(503, "ServiceUnavailableError", None);
    let gone = Error {
        code: ErrorCode::Unavailable.into(),
        message: "no socket at /run/secret.sock".to_owned(),
        param: String::new(),
    };
    *engine.load.lock().unwrap() = Err(gone);
    for path in ["/ready", "/health"] {
        let answer = get(&router, path).await;
        // Probes are public: they don't tell where the engine is.
        assert!(!answer.text.contains("secret"), "{}", answer.text);
        answer.error(503, "ServiceUnavailableError", None);
    }
    assert_eq!(get(&router, "/metrics").await.status, 200);
}

#[tokio::test]
async fn version_load_and_server_info_answer() {
    let engine = FakeEngine::new(Script::Hang);
    let config = EdgeConfig {
        resolved_config: json!({"port": 8000}),
        ..EdgeConfig::default()
    };
    let router = edge_with(&engine, config).await;
    assert_eq!(
        get(&router, "/version").await.json(),
        json!({"version": env!("CARGO_PKG_VERSION")})
    );
    assert_eq!(get(&router, "/load").await.json(), json!({"server_load": 0}));
    let info = get(&router, "/server_info").await.json();
    assert_eq!(info["config"], json!({"port": 8000}));
    // All but the one that has to be asked for.
    assert_eq!(info["routes"].as_array().unwrap().len(), Edge::routes().len() - 1);
    assert_eq!(
        info["routes"][0],
        json!({"method": "POST", "path": "/v1/chat/completions", "scope": "inference"})
    );
    assert_eq!(info["model"]["max_model_len"], MAX_MODEL_LEN);
}

/// The value of a sample, labels in any order.
fn sample(text: &str, name: &str, labels: &[&str]) -> f64 {
    let line = text.lines().find(|line| {
        line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label))
    });
    let line = line.unwrap_or_else(|| panic!("{name} {labels:?} not in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn metrics_carry_the_names_labels_and_buckets_of_vllm() {
    let engine = FakeEngine::new(Script::Say("hello", 2));
    let router = edge(&engine).await;
    let load = LoadReport {
        num_running: 2,
        num_waiting: 3,
        kv_cache_usage: 0.25,
        prefix_cache_queries: 100,
        prefix_cache_hits: 40,
        num_preemptions: 5,
        iteration_tokens_bucket: vec![1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 4],
        iteration_tokens_sum: 30_000,
        rejected_max_num_queued_reqs: 7,
        ..LoadReport::default()
    };
    *engine.load.lock().unwrap() = Ok(load);
    post(&router, "/v1/completions", &completion(json!({"n": 2}))).await;
    post(&router, "/v1/completions", &completion(json!({"n": 0}))).await;
    let answer = get(&router, "/metrics").await;
    assert_eq!(
        answer.headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let text = &answer.text;
    let both = ["model_name=\"tiny\"", "engine=\"0\""];
    let with = |label: &'static str| [both[0], both[1], label];
    for (name, value) in [
        ("vllm:num_requests_running", 2.0),
        ("vllm:num_requests_waiting", 3.0),
        ("vllm:kv_cache_usage_perc", 0.25),
        ("vllm:prefix_cache_queries_total", 100.0),
        ("vllm:prefix_cache_hits_total", 40.0),
        ("vllm:num_preemptions_total", 5.0),
        ("vllm:prompt_tokens_total", 4.0),
        ("vllm:prompt_tokens_cached_total", 4.0),
        ("vllm:generation_tokens_total", 12.0),
        ("vllm:time_to_first_token_seconds_count", 2.0),
        ("vllm:inter_token_latency_seconds_count", 4.0),
        ("vllm:e2e_request_latency_seconds_count", 2.0),
        ("vllm:request_queue_time_seconds_sum", 0.002),
        ("vllm:request_prefill_time_seconds_sum", 0.002),
        ("vllm:request_decode_time_seconds_sum", 0.006),
        ("vllm:request_inference_time_seconds_sum", 0.008),
        ("vllm:request_time_per_output_token_seconds_count", 2.0),
        ("vllm:request_prompt_tokens_sum", 4.0),
        ("vllm:request_generation_tokens_sum", 12.0),
        ("vllm:request_max_num_generation_tokens_sum", 6.0),
        ("vllm:request_params_n_sum", 2.0),
        ("vllm:request_params_max_tokens_sum", 16.0),
        ("vllm:iteration_tokens_total_sum", 30_000.0),
        ("vllm:iteration_tokens_total_count", 4.0),
    ] {
        let found = sample(text, name, &both);
        assert!((found - value).abs() < 1e-9, "{name} is {found}");
    }
    assert_eq!(
        sample(
            text,
            "vllm:request_success_total",
            &with("finished_reason=\"stop\"")
        ),
        2.0
    );
    assert_eq!(
        sample(
            text,
            "vllm:request_success_total",
            &with("finished_reason=\"abort\"")
        ),
        0.0
    );
    assert_eq!(
        sample(
            text,
            "vllm:num_requests_waiting_by_reason",
            &with("reason=\"capacity\"")
        ),
        3.0
    );
    assert_eq!(
        sample(text, "vllm:iteration_tokens_total_bucket", &with("le=\"128\"")),
        2.0
    );
    assert_eq!(
        sample(text, "vllm:iteration_tokens_total_bucket", &with("le=\"+Inf\"")),
        4.0
    );
    assert_eq!(
        sample(text, "vllm:request_prompt_tokens_bucket", &with("le=\"500\"")),
        2.0
    );
    assert_eq!(
        sample(
            text,
            "vllm:time_to_first_token_seconds_bucket",
            &with("le=\"2560\"")
        ),
        2.0
    );
    assert_eq!(
        sample(
            text,
            "vllm:cache_config_info",
            &["num_gpu_blocks=\"64\"", "block_size=\"16\""]
        ),
        1.0
    );
    let rejected = ["model_name=\"tiny\"", "reason=\"max_num_queued_reqs\""];
    assert_eq!(sample(text, "vllm:admission_rejections_total", &rejected), 7.0);
    let ok = ["method=\"POST\"", "status=\"2xx\"", "handler=\"/v1/completions\""];
    assert_eq!(sample(text, "http_requests_total", &ok), 1.0);
    assert_eq!(sample(text, "http_requests_total", &["status=\"4xx\""]), 1.0);
}

#[tokio::test]
async fn metrics_tell_where_the_time_of_steps_goes() {
    let engine = FakeEngine::new(Script::Hang);
    let router = edge(&engine).await;
    let part = |bound: usize, sum_ns| {
        let bucket = (0..=20).map(|i| u64::from(i >= bound) * 2).collect();
        Some(Durations { bucket, sum_ns })
    };
    *engine.load.lock().unwrap() = Ok(LoadReport {
        step_times: Some(StepTimes {
            schedule: part(0, 8_000),
            launch: part(7, 16_000),
            execute: part(20, 30_000_000_000),
            wait: part(2, 1),
            complete: part(3, 2),
            deliver: part(4, 3),
        }),
        num_steps: 2,
        num_free_blocks: 17,
        num_queued_tokens: 18,
        stalled_us: 1_500_000,
        process_cpu_us: 2_500_000,
        num_cpus: 4,
        ..LoadReport::default()
    });
    let text = get(&router, "/metrics").await.text;
    let engine = &["model_name=\"tiny\"", "engine=\"0\""];
    for (name, value) in [
        ("kvasir_step_schedule_seconds_sum", 8e-6),
        ("kvasir_step_launch_seconds_sum", 16e-6),
        ("kvasir_step_execute_seconds_sum", 30.0),
        ("kvasir_step_execute_seconds_count", 2.0),
        ("kvasir_step_wait_seconds_sum", 1e-9),
        ("kvasir_step_complete_seconds_sum", 2e-9),
        ("kvasir_step_deliver_seconds_sum", 3e-9),
        ("kvasir_steps_total", 2.0),
        ("kvasir_kv_blocks_free", 17.0),
        ("kvasir_queued_tokens", 18.0),
        ("kvasir_engine_stalled_seconds", 1.5),
        ("kvasir_engine_cpu_seconds_total", 2.5),
        ("kvasir_engine_cpus", 4.0),
    ] {
        let found = sample(&text, name, engine);
        assert!((found - value).abs() < 1e-12, "{name} is {found}");
    }
    let bucket = |name, le: &'static str| sample(&text, name, &[engine[0], engine[1], le]);
    assert_eq!(bucket("kvasir_step_launch_seconds_bucket", "le=\"0.0005\""), 0.0);
    assert_eq!(bucket("kvasir_step_launch_seconds_bucket", "le=\"0.001\""), 2.0);
    assert_eq!(bucket("kvasir_step_execute_seconds_bucket", "le=\"10\""), 0.0);
    assert_eq!(bucket("kvasir_step_execute_seconds_bucket", "le=\"+Inf\""), 2.0);
    assert!(sample(&text, "process_cpu_seconds_total", &[]) > 0.0);
    assert!(text.contains("# HELP kvasir_step_schedule_seconds Time in which the scheduler planned a step"));
}

#[tokio::test]
async fn an_edge_refuses_assets_that_are_not_the_announced_ones() {
    struct Wrong(std::sync::Arc<FakeEngine>);
    #[async_trait::async_trait]
    impl kvasir_client::EngineClient for Wrong {
        async fn model_info(&self) -> Result<kvasir_client::types::ModelInfo, Error> {
            let mut info = self.0.model_info().await?;
            info.text_assets_digest = "00".repeat(32);
            Ok(info)
        }
        async fn text_assets(&self, digest: &str) -> Result<kvasir_client::TextAssetFiles, Error> {
            self.0.text_assets(digest).await
        }
        async fn generate(
            &self,
            request: kvasir_client::types::GenerateRequest,
        ) -> Result<kvasir_client::OutputStream, Error> {
            self.0.generate(request).await
        }
        fn abort(&self, request_id: &str, index: Option<u32>) {
            self.0.abort(request_id, index);
        }
        async fn load(&self) -> Result<LoadReport, Error> {
            self.0.load().await
        }
        async fn dump(&self, last_stall: bool) -> Result<bytes::Bytes, Error> {
            self.0.dump(last_stall).await
        }
        async fn drain(&self, deadline: std::time::Duration) -> Result<u32, Error> {
            self.0.drain(deadline).await
        }
    }
    let engine = std::sync::Arc::new(Wrong(FakeEngine::new(Script::Hang)));
    let error = Edge::new(EdgeConfig::default(), engine)
        .await
        .err()
        .expect("a wrong digest is refused");
    assert!(
        error.to_string().contains("but sent files with digest"),
        "{error}"
    );
}
