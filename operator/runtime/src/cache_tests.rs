//! What the cache takes for news, and what it forgets.

use super::*;

fn live(resource_version: &str) -> Live {
    let object = serde_json::json!({ "metadata": { "name": "chat-dns", "uid": "u", "resourceVersion": resource_version } });
    Live::new(Kind::NetworkPolicy, object).unwrap()
}

#[test]
fn an_object_that_vanished_after_our_write_stays_in_doubt_when_the_answer_arrives() {
    let key = ServiceKey {
        namespace: "team".to_owned(),
        base: "chat".to_owned(),
    };
    let cache = Cache::default();
    let reference = live("2").reference;
    cache.put(&key, live("1"), 1, false);
    cache.wrote(&key, &live("1"));
    // The write of version 2 is stored; somebody takes the label away, version 3; only then the answer about version 2 arrives.
    assert!(cache.vanish(&key, &reference, "u", 3));
    cache.put(&key, live("2"), 2, false);
    cache.wrote(&key, &live("2"));
    assert_eq!(cache.snapshot(&key).strangers, [reference]);
    // What brought the label back ends the doubt.
    cache.put(&key, live("4"), 4, false);
    cache.wrote(&key, &live("4"));
    assert!(cache.snapshot(&key).strangers.is_empty());
}

#[test]
fn an_object_with_another_services_label_is_found_where_it_was() {
    let key = |namespace: &str, base: &str| ServiceKey {
        namespace: namespace.to_owned(),
        base: base.to_owned(),
    };
    let (chat, other) = (key("team", "chat"), key("team", "other"));
    let cache = Cache::default();
    let reference = live("1").reference;
    cache.put(&chat, live("1"), 1, false);
    cache.put(&key("else", "chat"), live("1"), 1, false);
    assert!(cache.elsewhere(&chat, &reference, "u").is_empty());
    assert_eq!(cache.elsewhere(&other, &reference, "u"), [chat]);
    assert!(cache.elsewhere(&other, &reference, "another").is_empty());
}

#[test]
fn a_deleted_service_is_forgotten_with_the_last_secret_that_is_left_of_it() {
    let key = ServiceKey {
        namespace: "team".to_owned(),
        base: "chat".to_owned(),
    };
    let cache = Cache::default();
    let secret = |name: &str, labels: &serde_json::Value| {
        let object = serde_json::json!({ "metadata": { "name": name, "uid": "u", "resourceVersion": "5", "labels": labels } });
        Live::new(Kind::Secret, object).unwrap()
    };
    let read = secret("other-trust", &serde_json::json!({ labels::SERVICE: "other" }));
    let secret = secret("chat-trust", &serde_json::json!({ labels::SERVICE: "chat" }));
    cache.put(&key, live("1"), 1, false);
    cache.put(&key, secret.clone(), 5, false);
    cache.put(&key, read, 5, false);
    cache.wrote(&key, &secret);
    cache.forget(&key);
    cache.vanish(&key, &live("1").reference, "u", 2);
    assert_eq!(cache.unwatched(), [(key.clone(), secret.reference.clone())]);
    assert!(!cache.is_news(&key, &secret.reference, 5));
    assert!(cache.is_news(&key, &secret.reference, 6));
    assert!(cache.remove(&key, &secret.reference, "u"));
    assert!(cache.lock().services.is_empty());
}
