//! What every client of an engine can rely on: one suite, run in process, over TCP and over a Unix socket.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod caching;
mod failures;
mod leaving;
mod refusals;
mod reports;

use support::Kind;

macro_rules! suite {
    ($($part:ident { $($name:ident)* })*) => {
        suite!(@kind in_process Kind::Local, $($part { $($name)* })*);
        suite!(@kind tcp Kind::Tcp, $($part { $($name)* })*);
        suite!(@kind unix Kind::Unix, $($part { $($name)* })*);
    };
    (@kind $module:ident $kind:expr, $($part:ident { $($name:ident)* })*) => {
        mod $module {
            use super::*;

            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    $part::$name($kind).await;
                }
            )*)*
        }
    };
}

suite! {
    answers {
        a_request_gives_the_reference_tokens
        sequences_of_a_request_draw_with_seeds_that_follow
        streams_interleave
        stop_ids_end_a_sequence_and_are_reported
        preempted_sequences_give_the_same_tokens
        log_probabilities_come_with_their_tokens
        prompt_log_probabilities_come_once_for_every_position
        the_timeline_is_in_order
    }
    leaving {
        aborting_one_sequence_leaves_its_siblings
        aborting_a_request_ends_all_of_its_sequences
        aborting_unknown_things_is_harmless
        a_dropped_stream_frees_its_blocks_within_one_step
        a_dropped_call_frees_its_request
        many_streams_with_random_drops_leave_no_block_in_use
        a_slow_reader_loses_only_its_own_request
        a_request_ends_when_its_time_is_over
        the_only_request_ends_when_its_time_is_over
    }
    refusals {
        a_full_queue_refuses_and_can_be_tried_again
        a_prompt_that_never_fits_is_refused_and_others_run
        a_live_id_is_refused_and_a_finished_one_is_free
        hostile_values_are_refused_with_their_field
    }
    failures {
        a_draining_engine_finishes_what_it_has
        a_failed_step_ends_its_sequences_and_nothing_else
        a_panic_of_the_scheduler_thread_fails_its_requests
        stopping_fails_what_runs
    }
    caching {
        a_repeated_prompt_is_read_from_the_cache
        salts_separate_the_cache
    }
    reports {
        the_load_report_counts
        a_stuck_step_shows_in_the_load_report
        what_a_client_aborts_is_no_outcome
        large_text_assets_arrive_whole
        text_assets_of_another_digest_are_refused
        the_model_info_has_the_limits
    }
}
