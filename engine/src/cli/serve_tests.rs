use std::collections::BTreeMap;

use clap::Parser;
use kvasir_backend::{ExecError, Executor, NewSequence, StepResult, Ticket};
use kvasir_client::types::{GenerateRequest, ModelInfo, SamplingParams, StopConditions};
use kvasir_engine_core::{Policies, SchedulerConfig, SeqId, StepPlan};
use kvasir_service::{CacheParts, Diagnostics, EngineIdentity, EngineSetup, ServiceLimits};
use serde_json::json;

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    flags: Flags<Serve>,
}

/// Takes sequences, and falls over the first step.
struct Falls;

impl Executor for Falls {
    fn admit(&mut self, _: NewSequence) {}

    fn release(&mut self, _: SeqId) {}

    fn submit(&mut self, _: &StepPlan) -> Result<Ticket, ExecError> {
        panic!("the test asked for a panic")
    }

    fn sample(&mut self, _: Ticket) -> Result<StepResult, ExecError> {
        Ok(StepResult::default())
    }

    fn warmup(&mut self, _: usize) -> Result<(), ExecError> {
        Ok(())
    }
}

/// Words of one letter.
fn assets() -> BTreeMap<String, Vec<u8>> {
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": {"a": 0, "b": 1}, "merges": []},
    });
    BTreeMap::from([
        ("tokenizer.json".to_owned(), tokenizer.to_string().into_bytes()),
        ("tokenizer_config.json".to_owned(), b"{}".to_vec()),
    ])
}

fn engine() -> Engine {
    Engine::start(EngineSetup {
        executor: Box::new(Falls),
        scheduler: SchedulerConfig {
            num_blocks: 16,
            max_model_len: 64,
            ..kvasir_sim::Engines::default().limits
        },
        policies: Policies::serve(),
        model: ModelInfo {
            model: "falls".to_owned(),
            vocab_size: 2,
            ..ModelInfo::default()
        },
        assets: assets(),
        cache: CacheParts::default(),
        identity: EngineIdentity::default(),
        kv_events: None,
        limits: ServiceLimits::default(),
        diagnostics: Diagnostics::default(),
    })
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_scheduler_ends_the_server_with_its_own_exit_code() {
    let settings = Settings::resolve(Command::parse_from(["serve"]).flags).unwrap();
    let bind = Bind::Tcp {
        host: "127.0.0.1".to_owned(),
        port: 0,
    };
    let listening = Listening::open(&bind).await.unwrap();
    let engine = engine();
    let started = Started {
        client: engine.client(),
        engine: Some(engine),
    };
    let config = EdgeConfig {
        served_model_names: vec!["falls".to_owned()],
        ..EdgeConfig::default()
    };
    let edge = Edge::new(config, Arc::clone(&started.client)).await.unwrap();
    let request = GenerateRequest {
        request_id: "r".to_owned(),
        prompt_token_ids: vec![0, 1],
        n: 1,
        sampling: Some(SamplingParams {
            top_p: 1.0,
            repetition_penalty: 1.0,
            ..SamplingParams::default()
        }),
        stop: Some(StopConditions {
            max_tokens: 4,
            ..StopConditions::default()
        }),
        ..GenerateRequest::default()
    };
    // Whether it is refused or fails doesn't matter here; its stream must live until the step.
    let asked = started.client.generate(request).await;
    let mut signals = Signals::catch().unwrap();
    let ended = run_until_stopped(edge, listening, &mut signals, &started, &settings).await;
    drop(asked);
    let failure = ended.unwrap_err();
    assert!(
        failure.to_string().contains("the test asked for a panic"),
        "{failure}"
    );
    assert_eq!(failure.exit_code(), 70);
}
