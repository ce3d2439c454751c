//! What is refused, and that it harms nobody else.

use kvasir_client::types::{ErrorCode, GenerateRequest};

use crate::support;
use crate::support::{Fixture, Kind, Options, code, collect, expected, next, prompt, request, tokens_of};

pub(super) async fn a_full_queue_refuses_and_can_be_tried_again(kind: Kind) {
    let mut options = Options::default();
    options.scheduler.max_num_active_seqs = 1;
    options.scheduler.max_num_queued_reqs = 2;
    let fixture = Fixture::with(kind, options).await;
    fixture.control.hold();
    let running = fixture.start(request("running", &prompt(4, 0), 90_000)).await;
    // It leaves the queue in its first step.
    fixture.control.wait_entered(1);
    let queued = fixture
        .step_until(fixture.start(GenerateRequest {
            n: 2,
            ..request("queued", &prompt(4, 1), 3)
        }))
        .await;
    let refused = fixture
        .step_until(fixture.client.generate(request("refused", &prompt(4, 2), 3)))
        .await;
    assert_eq!(code(refused), ErrorCode::QueueFull);
    assert_eq!(fixture.load().await.rejected_max_num_queued_reqs, 1);
    drop(running);
    fixture.control.open();
    collect(queued).await;
    assert_eq!(
        collect(fixture.start(request("refused", &prompt(4, 2), 3)).await)
            .await
            .len(),
        3
    );
}

pub(super) async fn a_prompt_that_never_fits_is_refused_and_others_run(kind: Kind) {
    let mut options = Options::default();
    options.scheduler.num_blocks = 11;
    let fixture = Fixture::with(kind, options).await;
    let refused = fixture.client.generate(request("big", &prompt(200, 0), 3)).await;
    let Err(error) = refused else {
        panic!("it was admitted")
    };
    assert_eq!(
        (error.code(), error.param.as_str()),
        (ErrorCode::InvalidRequest, "prompt_token_ids")
    );
    assert_eq!(
        collect(fixture.start(request("small", &prompt(8, 0), 3)).await)
            .await
            .len(),
        3
    );
}

pub(super) async fn a_live_id_is_refused_and_a_finished_one_is_free(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    fixture.control.hold();
    let first = fixture.start(request("a", &prompt(4, 0), 5)).await;
    let refused = fixture.client.generate(request("a", &prompt(4, 1), 5)).await;
    let Err(error) = refused else {
        panic!("it was admitted")
    };
    assert_eq!(
        (error.code(), error.param.as_str()),
        (ErrorCode::InvalidRequest, "request_id")
    );
    // Another client chooses its own ids.
    let other = fixture.engine.client();
    let theirs = fixture
        .step_until(other.generate(request("a", &prompt(4, 2), 5)))
        .await
        .unwrap();
    fixture.control.open();
    assert_eq!(tokens_of(&collect(first).await, 0), expected(&prompt(4, 0), 7, 5));
    assert_eq!(
        tokens_of(&collect(theirs).await, 0),
        expected(&prompt(4, 2), 7, 5)
    );
    for _ in 0..20 {
        let mut stream = fixture.start(request("a", &prompt(4, 3), 1)).await;
        assert!(next(&mut stream).await.finish.is_some());
        // Not read to its end, and the id is free all the same.
        let again = fixture.start(request("a", &prompt(4, 3), 1)).await;
        drop(stream);
        assert_eq!(tokens_of(&collect(again).await, 0), expected(&prompt(4, 3), 7, 1));
    }
}

pub(super) async fn hostile_values_are_refused_with_their_field(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let mut refused = 0;
    for (field, request) in support::hostile::requests() {
        let Err(error) = fixture.client.generate(request.clone()).await else {
            panic!("{field} was admitted: {request:?}")
        };
        assert_eq!(
            (error.code(), error.param.as_str()),
            (ErrorCode::InvalidRequest, field),
            "{}",
            error.message
        );
        assert!(
            error.message.len() < 1000,
            "a hostile value made a message of {} bytes",
            error.message.len()
        );
        refused += 1;
    }
    assert!(refused > 50);
    assert_eq!(
        tokens_of(
            &collect(fixture.start(request("a", &prompt(4, 0), 5)).await).await,
            0
        ),
        expected(&prompt(4, 0), 7, 5)
    );
    fixture.assert_idle().await;
}
