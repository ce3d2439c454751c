use proptest::prelude::*;

use super::*;
use crate::names::TenantName;
use crate::time::Micros;

mod arguments;
mod losses;
mod model;
mod sharing;

const SECOND: u64 = 1_000_000;

fn tenant() -> TenantName {
    TenantName::new("team").unwrap()
}

fn alone() -> Ledger {
    Ledger::new("r", 1, Mode::Alone)
}

fn tokens(input_tokens: u64, output_tokens: u64) -> Cost {
    Cost {
        input_tokens,
        output_tokens,
    }
}

fn per_minute(requests: u64, tokens: u64) -> Limits {
    Limits {
        requests_per_minute: Some(requests),
        tokens_per_minute: Some(tokens),
        ..Limits::default()
    }
}

fn at(seconds: u64) -> Micros {
    Micros(seconds * SECOND)
}

#[test]
fn a_refusal_names_the_limit_that_frees_up_last() {
    let mut ledger = alone();
    let limits = per_minute(2, 100);
    let mut charge = |cost, now| ledger.charge(&tenant(), &limits, cost, now);
    let _first = charge(tokens(1, 0), at(0)).unwrap();
    let _second = charge(tokens(60, 30), at(10)).unwrap();
    let refused = charge(tokens(50, 0), at(20)).unwrap_err();
    let expected = Exhausted::PerMinute {
        dimension: Dimension::Tokens,
        limit: 100,
        used: 91,
        wanted: 50,
        retry_after: Some(Duration::from_secs(51)),
    };
    assert_eq!(refused, expected);
}

#[test]
fn a_request_above_the_limit_is_told_not_to_wait() {
    let mut ledger = alone();
    let refused = ledger
        .charge(&tenant(), &per_minute(10, 100), tokens(100, 1), at(0))
        .unwrap_err();
    assert_eq!(refused.code(), "request_exceeds_limit");
    assert_eq!(retry_after_seconds(&refused), None);
}

#[test]
fn concurrency_is_freed_by_settling_and_by_cancelling() {
    let mut ledger = alone();
    let limits = Limits {
        concurrency: Some(2),
        ..Limits::default()
    };
    let first = ledger.charge(&tenant(), &limits, tokens(1, 1), at(0)).unwrap();
    let second = ledger.charge(&tenant(), &limits, tokens(1, 1), at(0)).unwrap();
    let refused = ledger
        .charge(&tenant(), &limits, tokens(1, 1), at(0))
        .unwrap_err();
    assert_eq!(refused, Exhausted::Concurrency { limit: 2 });
    ledger.settle(first, tokens(1, 0), at(0));
    let third = ledger.charge(&tenant(), &limits, tokens(1, 1), at(0)).unwrap();
    assert!(ledger.charge(&tenant(), &limits, tokens(1, 1), at(0)).is_err());
    ledger.cancel(second, at(0));
    assert!(ledger.charge(&tenant(), &limits, tokens(1, 1), at(0)).is_ok());
    ledger.cancel(third, at(0));
}

#[test]
fn a_settlement_frees_what_the_estimate_held_and_a_cancellation_the_request_too() {
    let mut ledger = alone();
    let limits = per_minute(2, 100);
    let charge = ledger.charge(&tenant(), &limits, tokens(40, 60), at(0)).unwrap();
    assert!(ledger.charge(&tenant(), &limits, tokens(1, 0), at(1)).is_err());
    ledger.settle(charge, tokens(40, 5), at(1));
    let second = ledger.charge(&tenant(), &limits, tokens(55, 0), at(1)).unwrap();
    assert!(ledger.charge(&tenant(), &limits, tokens(0, 0), at(1)).is_err());
    ledger.cancel(second, at(1));
    let _third = ledger.charge(&tenant(), &limits, tokens(55, 0), at(1)).unwrap();
    assert_eq!(ledger.totals(&tenant()).settled.as_array(), [1, 45, 40, 5]);
}

#[test]
fn a_settlement_above_its_estimate_is_counted() {
    let mut ledger = alone();
    let limits = per_minute(10, 100);
    let charge = ledger.charge(&tenant(), &limits, tokens(10, 10), at(0)).unwrap();
    ledger.settle(charge, tokens(10, 200), at(5));
    let usage = ledger.usage(&tenant(), &limits, at(5)).0[Dimension::Tokens as usize].unwrap();
    assert_eq!((usage.used, usage.reset), (210, Duration::from_secs(56)));
    assert!(ledger.charge(&tenant(), &limits, tokens(0, 1), at(60)).is_err());
    assert!(ledger.charge(&tenant(), &limits, tokens(0, 1), at(61)).is_ok());
}

#[test]
fn tenants_do_not_share_accounts() {
    let mut ledger = alone();
    let other = TenantName::new("other").unwrap();
    let limits = per_minute(1, 10);
    let _first = ledger.charge(&tenant(), &limits, tokens(1, 1), at(0)).unwrap();
    assert!(ledger.charge(&other, &limits, tokens(1, 1), at(0)).is_ok());
    assert!(ledger.charge(&tenant(), &limits, tokens(1, 1), at(0)).is_err());
}

#[test]
fn a_clock_that_goes_back_frees_nothing() {
    let mut ledger = alone();
    let limits = per_minute(1, 10);
    let _first = ledger.charge(&tenant(), &limits, tokens(1, 1), at(100)).unwrap();
    assert!(ledger.charge(&tenant(), &limits, tokens(1, 1), at(0)).is_err());
    assert!(ledger.charge(&tenant(), &limits, tokens(1, 1), at(160)).is_err());
}

#[test]
fn a_forgotten_tenant_is_kept_while_it_has_something_running() {
    let mut ledger = alone();
    let charge = ledger
        .charge(&tenant(), &Limits::default(), tokens(1, 1), at(0))
        .unwrap();
    ledger.retain(|_| false);
    assert_eq!(ledger.totals(&tenant()).num_running, 1);
    ledger.settle(charge, tokens(1, 1), at(1));
    ledger.retain(|_| false);
    assert_eq!(ledger.totals(&tenant()), Totals::default());
}

#[test]
fn no_amount_overflows() {
    let mut ledger = alone();
    for _ in 0..1000 {
        let charge = ledger
            .charge(&tenant(), &Limits::default(), tokens(u64::MAX, u64::MAX), at(0))
            .unwrap();
        ledger.settle(charge, tokens(u64::MAX, u64::MAX), Micros(u64::MAX));
    }
    // The first one was charged in another minute.
    let used = ledger.usage(&tenant(), &per_minute(1, 1), Micros(u64::MAX)).0;
    assert_eq!(used[Dimension::Tokens as usize].unwrap().used, 999 * MAX_AMOUNT);
}

proptest! {
    #[test]
    fn shares_together_stay_within_the_limit(limit in 0_u64..10_000, replicas in 1_u32..50) {
        let share = per_minute(limit, limit).share(replicas);
        let together = share.requests_per_minute.unwrap() * u64::from(replicas);
        prop_assert!(together <= limit.max(u64::from(replicas)));
        prop_assert_eq!(share.requests_per_minute == Some(0), limit == 0);
    }
}

#[test]
fn a_refused_call_is_told_of_what_others_use_and_all_that_it_wants() {
    let limits = per_minute(5, 100);
    let mut ledger = Ledger::new("r", 1, Mode::Alone);
    for _ in 0..2 {
        let _other = ledger.charge(&tenant(), &limits, tokens(1, 1), at(0)).unwrap();
    }
    let call = [tokens(10, 1); 4].map(Cost::amounts);
    for _ in 0..3 {
        let _own = ledger.charge(&tenant(), &limits, tokens(10, 1), at(3)).unwrap();
    }
    let refused = ledger
        .charge(&tenant(), &limits, tokens(10, 1), at(3))
        .unwrap_err();
    let told = refused.of_call(call[..3].iter().copied().sum(), call.iter().copied().sum());
    assert_eq!(
        told,
        Exhausted::PerMinute {
            dimension: Dimension::Requests,
            limit: 5,
            used: 2,
            wanted: 4,
            retry_after: Some(Duration::from_secs(58)),
        }
    );
    // More than the limit has room for at any time: no wait helps.
    let never = refused.of_call(Amounts::default(), Amounts::from([6, 0, 0, 0]));
    assert_eq!(
        (never.code(), retry_after_seconds(&never)),
        ("request_exceeds_limit", None)
    );
}
