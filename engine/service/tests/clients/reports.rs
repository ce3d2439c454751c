//! What an engine says about itself.

use kvasir_client::types::{ErrorCode, LoadReport};
use kvasir_client::{TextAssetFiles, assets};

use crate::support;
use crate::support::{Fixture, Kind, Options, collect, prompt, request};

pub(super) async fn the_load_report_counts(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    collect(fixture.start(request("a", &prompt(20, 0), 5)).await).await;
    // A step's times are counted when it is over, which is after its outputs were sent.
    let timed = |load: &LoadReport| {
        let deliver = load.step_times.as_ref().and_then(|times| times.deliver.as_ref());
        deliver.and_then(|deliver| deliver.bucket.last().copied()) == Some(5)
    };
    let load = fixture.load_until("the times of all steps", timed).await;
    assert_eq!(
        (load.num_steps, load.prompt_tokens, load.generation_tokens),
        (5, 20, 5)
    );
    // One step with 21 tokens, four with one.
    assert_eq!(
        load.iteration_tokens_bucket,
        [4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]
    );
    assert_eq!(load.iteration_tokens_sum, 25);
    assert_eq!(load.stalled_us, 0);
    assert!(!load.draining);
    let times = load
        .step_times
        .expect("an engine of this version times its steps");
    for part in [
        times.schedule,
        times.launch,
        times.execute,
        times.wait,
        times.complete,
        times.deliver,
    ] {
        let part = part.unwrap();
        assert_eq!(part.bucket.last(), Some(&load.num_steps));
        assert!(part.sum_ns > 0);
    }
    assert!(load.process_cpu_us > 0);
    assert!(load.num_cpus > 0);
    assert_eq!((load.num_finished_seqs, load.num_failed_seqs), (1, 0));
}

pub(super) async fn what_a_client_aborts_is_no_outcome(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    // So long that the news of the client's leaving comes before its end.
    let dropped = fixture.start(request("dropped", &prompt(4, 0), 90_000)).await;
    fixture.control.wait_entered(1);
    drop(dropped);
    fixture.control.open();
    fixture.assert_idle().await;
    let load = fixture.load().await;
    assert_eq!((load.num_finished_seqs, load.num_failed_seqs), (0, 0));
}

pub(super) async fn a_stuck_step_shows_in_the_load_report(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let stream = fixture.start(request("a", &prompt(4, 0), 2)).await;
    fixture.control.wait_entered(1);
    fixture.load_until("a stall", |load| load.stalled_us > 1000).await;
    assert!(fixture.load().await.stalled_us > 1000);
    fixture.control.open();
    collect(stream).await;
    fixture.assert_idle().await;
    assert_eq!(fixture.load().await.stalled_us, 0);
}

pub(super) async fn large_text_assets_arrive_whole(kind: Kind) {
    let large: Vec<u8> = (0..9_000_001_u32).map(|i| (i % 253) as u8).collect();
    let files = TextAssetFiles::from([
        ("chat_template.jinja".to_owned(), Vec::new()),
        ("tokenizer.json".to_owned(), large),
        ("tokenizer_config.json".to_owned(), b"{}".to_vec()),
    ]);
    let fixture = Fixture::with(
        kind,
        Options {
            assets: files.clone(),
            ..Options::default()
        },
    )
    .await;
    let digest = fixture.client.model_info().await.unwrap().text_assets_digest;
    assert_eq!(digest, assets::digest(&files));
    assert!(fixture.client.text_assets(&digest).await.unwrap() == files);
}

pub(super) async fn text_assets_of_another_digest_are_refused(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    for digest in ["", "0000", &"x".repeat(10_000)] {
        let error = fixture.client.text_assets(digest).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidRequest);
        assert!(
            error.message.contains("holds text assets") && error.message.len() < 500,
            "{}",
            error.message
        );
    }
}

pub(super) async fn the_model_info_has_the_limits(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let info = fixture.client.model_info().await.unwrap();
    let scheduler = &fixture.options.scheduler;
    assert_eq!(
        (info.model.as_str(), info.vocab_size),
        ("fake", support::VOCAB_SIZE)
    );
    assert_eq!(
        (info.max_model_len, info.block_size),
        (scheduler.max_model_len, scheduler.block_size)
    );
    assert_eq!(
        (info.num_blocks, info.max_num_seqs, info.max_logprobs),
        (scheduler.num_blocks - 1, scheduler.max_num_seqs, 20)
    );
    assert_eq!(&info, fixture.engine.model_info());
}
