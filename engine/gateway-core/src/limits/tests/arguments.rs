use super::store::Admission;
use super::*;
use crate::limits::script::*;

const LEASE: Duration = Duration::from_secs(30);

fn limits() -> Limits {
    Limits {
        output_tokens_per_minute: Some(50),
        concurrency: Some(4),
        ..per_minute(60, 1000)
    }
}

#[test]
fn arguments_are_in_the_order_of_the_scripts_heads() {
    let arguments = charge_arguments(&limits(), tokens(7, 9), "id", LEASE);
    assert_eq!(arguments.join(" "), "60 1000 -1 50 1 16 7 9 4 id 30000");
    let unlimited = charge_arguments(&Limits::default(), tokens(0, 0), "id", LEASE);
    assert_eq!(unlimited.join(" "), "-1 -1 -1 -1 1 0 0 0 -1 id 30000");
    let adjustment = StoreAdjustment {
        tenant: tenant(),
        slot: 99,
        charged: tokens(7, 9).amounts(),
        actual: tokens(7, 2).amounts(),
    };
    assert_eq!(
        settle_arguments(&adjustment, "id").join(" "),
        "99 1 16 7 9 1 9 7 2 id"
    );
    let item = |age_seconds| MergeItem {
        tenant: tenant(),
        age_seconds,
        amounts: tokens(1, 2).amounts(),
    };
    assert_eq!(
        merge_arguments(&[item(0), item(5)]).join(" "),
        "0 1 3 1 2 5 1 3 1 2"
    );
    assert_eq!(renew_arguments(LEASE, ["a", "b"]).join(" "), "30000 a b");
}

#[test]
fn an_admission_is_read_with_its_usage() {
    let answer = charge_answer(&[0, 1234, 3, 5, 100, 60, 40, 0], &limits(), tokens(7, 9));
    let admission = Admission {
        slot: 1234,
        num_running: 3,
        used: Amounts::from([5, 100, 60, 40]),
    };
    assert_eq!(answer, Some(Ok(admission)));
    let used: Vec<Option<u64>> = admission
        .usage(&limits())
        .0
        .iter()
        .map(|usage| usage.map(|usage| usage.used))
        .collect();
    assert_eq!(used, [Some(5), Some(100), None, Some(40)]);
}

#[test]
fn refusals_are_read_with_their_reasons() {
    let refusal = |answer: [i64; 8]| {
        charge_answer(&answer, &limits(), tokens(7, 9))
            .unwrap()
            .unwrap_err()
    };
    let expected = Exhausted::PerMinute {
        dimension: Dimension::OutputTokens,
        limit: 50,
        used: 45,
        wanted: 9,
        retry_after: Some(Duration::from_millis(1500)),
    };
    assert_eq!(refusal([4, 1, 3, 5, 100, 60, 45, 1500]), expected);
    assert_eq!(
        refusal([2, 1, 3, 5, 100, 60, 45, -1]).code(),
        "request_exceeds_limit"
    );
    assert_eq!(
        refusal([5, 1, 4, 5, 100, 60, 45, 0]),
        Exhausted::Concurrency { limit: 4 }
    );
}

#[test]
fn answers_of_other_forms_are_no_answers() {
    for answer in [
        &[][..],
        &[0, 1, 2, 3, 4, 5, 6],
        &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        &[6, 1, 2, 3, 4, 5, 6, 7],
        &[-1, 1, 2, 3, 4, 5, 6, 7],
        &[0, -1, 2, 3, 4, 5, 6, 7],
        // A dimension without a limit can't be in the way.
        &[3, 1, 2, 3, 4, 5, 6, 7],
    ] {
        assert_eq!(charge_answer(answer, &limits(), tokens(1, 1)), None, "{answer:?}");
    }
}

proptest! {
    #[test]
    fn reading_an_answer_never_panics(answer in prop::collection::vec(any::<i64>(), 0..10)) {
        let admitted = charge_answer(&answer, &limits(), tokens(1, 1));
        prop_assert!(admitted.is_none() || answer.len() == 8);
    }
}
