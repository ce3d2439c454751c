use super::*;
use crate::limits::script::*;
use crate::limits::store::{Admission, Verdict};

fn limits() -> Limits {
    Limits {
        output_tokens_per_minute: Some(50),
        concurrency: Some(4),
        ..per_minute(60, 1000)
    }
}

fn instance() -> Instance {
    Instance("i".into())
}

#[test]
fn arguments_are_in_the_order_of_the_scripts_heads() {
    let mut ledger = alone();
    let (first, second) = (ledger.new_id(), ledger.new_id());
    let arguments = charge_arguments(&limits(), tokens(7, 9), &first, Some(&instance()));
    assert_eq!(arguments.join(" "), "60 1000 -1 50 1 16 7 9 4 r-1 30000 i");
    let unlimited = charge_arguments(&Limits::default(), tokens(0, 0), &first, None);
    assert_eq!(unlimited.join(" "), "-1 -1 -1 -1 1 0 0 0 -1 r-1 30000 ");
    let ended = [(&first, 2), (&second, 3)].map(|(id, output)| Ended {
        id: id.clone(),
        actual: tokens(7, output).amounts(),
    });
    assert_eq!(
        settle_arguments(&instance(), &ended).join(" "),
        "i r-1 1 9 7 2 r-2 1 10 7 3"
    );
    let amounts = tokens(1, 2).amounts();
    let handover = Handover {
        id: first.clone(),
        expected: None,
        settled: vec![(0, amounts), (5, amounts)],
        open: vec![(second.clone(), 7, amounts)],
    };
    assert_eq!(
        merge_arguments(&handover).join(" "),
        "r-1  30000 2 0 1 3 1 2 5 1 3 1 2 r-2 7 1 3 1 2"
    );
    assert_eq!(
        renew_arguments(&instance(), &[first, second]).join(" "),
        "i 30000 r-1 r-2"
    );
}

#[test]
fn an_admission_is_read_with_its_usage() {
    let answer = charge_answer(&[0, 3, 5, 100, 60, 40, 0], "i", &limits(), tokens(7, 9));
    let admission = Admission {
        instance: instance(),
        num_running: 3,
        used: Amounts::from([5, 100, 60, 40]),
    };
    assert_eq!(answer, Some(Verdict::Admitted(admission.clone())));
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
    let refusal = |answer: [i64; 7]| match charge_answer(&answer, "i", &limits(), tokens(7, 9)) {
        Some(Verdict::Refused(exhausted)) => exhausted,
        other => panic!("{other:?}"),
    };
    let expected = Exhausted::PerMinute {
        dimension: Dimension::OutputTokens,
        limit: 50,
        used: 45,
        wanted: 9,
        retry_after: Some(Duration::from_millis(1500)),
    };
    assert_eq!(refusal([4, 3, 5, 100, 60, 45, 1500]), expected);
    assert_eq!(
        refusal([2, 3, 5, 100, 60, 45, -1]).code(),
        "request_exceeds_limit"
    );
    assert_eq!(
        refusal([5, 4, 5, 100, 60, 45, 0]),
        Exhausted::Concurrency { limit: 4 }
    );
    let elsewhere = charge_answer(&[6, 0, 0, 0, 0, 0, 0], "", &limits(), tokens(7, 9));
    assert_eq!(elsewhere, Some(Verdict::Elsewhere));
}

#[test]
fn answers_of_other_forms_are_no_answers() {
    for answer in [
        &[][..],
        &[0, 1, 2, 3, 4, 5],
        &[0, 1, 2, 3, 4, 5, 6, 7],
        &[7, 1, 2, 3, 4, 5, 6],
        &[-1, 1, 2, 3, 4, 5, 6],
        &[0, -1, 2, 3, 4, 5, 6],
        // A dimension without a limit can't be in the way.
        &[3, 1, 2, 3, 4, 5, 6],
    ] {
        let read = charge_answer(answer, "i", &limits(), tokens(1, 1));
        assert_eq!(read, None, "{answer:?}");
    }
    let nameless = charge_answer(&[0, 1, 2, 3, 4, 5, 6], "", &limits(), tokens(1, 1));
    assert_eq!(nameless, None);
}

proptest! {
    #[test]
    fn reading_an_answer_never_panics(answer in prop::collection::vec(any::<i64>(), 0..10)) {
        let admitted = charge_answer(&answer, "i", &limits(), tokens(1, 1));
        prop_assert!(admitted.is_none() || answer.len() == 7);
    }
}
