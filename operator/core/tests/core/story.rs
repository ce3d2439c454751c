//! What stories against the fake cluster begin with and go on until.

use serde_json::json;

use crate::fake::Fake;

pub(crate) fn ready(replicas: i32) -> Fake {
    let mut fake = Fake::new(json!({ "replicas": replicas }));
    fake.settle();
    assert_eq!(
        fake.condition("Ready"),
        ("True".to_owned(), "AllComponentsReady".to_owned()),
        "{:#?}",
        fake.status()
    );
    fake
}

/// Runs until `until` holds and checks that never fewer than `minimum` groups serve.
pub(crate) fn run(fake: &mut Fake, minimum: usize, until: impl Fn(&Fake) -> bool) {
    for _ in 0..2000 {
        fake.reconcile();
        fake.tick(5);
        assert!(
            fake.serving() >= minimum,
            "{} serve, {minimum} must: {:#?}",
            fake.serving(),
            fake.status()
        );
        if until(fake) {
            return;
        }
    }
    panic!("never happened: {:#?}", fake.status());
}

pub(crate) fn is_complete(fake: &Fake) -> bool {
    let status = fake.status();
    fake.condition("Progressing").1 == "Complete" && status.current_revision == status.update_revision
}
