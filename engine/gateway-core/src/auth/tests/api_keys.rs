use super::*;

fn record(key: &GeneratedKey, name: &str, expires: Option<UnixSeconds>) -> KeyRecord {
    KeyRecord {
        id: key.id.clone(),
        digest: key.digest,
        tenant: tenant(name),
        expires,
    }
}

fn with_keys(records: Vec<KeyRecord>) -> Authenticator {
    Authenticator {
        keys: KeyTable::new(records).unwrap(),
        ..Authenticator::default()
    }
}

fn key(seed: u8) -> GeneratedKey {
    generate_key(&[seed; KEY_ENTROPY_BYTES])
}

#[test]
fn each_key_of_a_tenant_opens_that_tenant_only() {
    let authenticator = with_keys(vec![
        record(&key(1), "red", None),
        record(&key(2), "red", None),
        record(&key(3), "blue", None),
    ]);
    for (seed, name) in [(1, "red"), (2, "red"), (3, "blue")] {
        assert_eq!(identify(&authenticator, &key(seed).text), Ok(name.to_owned()));
    }
    assert_eq!(identify(&authenticator, &key(4).text), Err(Reason::UnknownKey));
}

#[test]
fn keys_are_compared_exactly() {
    let good = key(7);
    let authenticator = with_keys(vec![record(&good, "red", None)]);
    let (start, last) = good.text.split_at(good.text.len() - 1);
    let upper = format!(
        "kv_{}_{}",
        good.id.as_str(),
        good.text.rsplit('_').next().unwrap().to_uppercase()
    );
    for wrong in [
        upper,
        format!("{start}{}", if last == "0" { "1" } else { "0" }),
        format!("{}0", good.text),
        start.to_owned(),
    ] {
        assert_eq!(
            identify(&authenticator, &wrong),
            Err(Reason::WrongSecret),
            "{wrong}"
        );
    }
}

#[test]
fn a_key_ends_in_the_second_of_its_expiry() {
    let authenticator = |expires| with_keys(vec![record(&key(1), "red", Some(expires))]);
    assert_eq!(
        identify(&authenticator(NOW.plus(1)), &key(1).text),
        Ok("red".to_owned())
    );
    assert_eq!(identify(&authenticator(NOW), &key(1).text), Err(Reason::Expired));
}

#[test]
fn an_expired_key_with_a_wrong_secret_is_not_reported_as_expired() {
    let wrong = format!("kv_{}_{}", key(1).id.as_str(), "0".repeat(52));
    let authenticator = with_keys(vec![record(&key(1), "red", Some(NOW))]);
    assert_eq!(identify(&authenticator, &wrong), Err(Reason::WrongSecret));
}

#[test]
fn rotation_swaps_the_old_key_for_the_new_one() {
    let old = with_keys(vec![record(&key(1), "red", None)]);
    let both = with_keys(vec![record(&key(1), "red", None), record(&key(2), "red", None)]);
    let new = with_keys(vec![record(&key(2), "red", None)]);
    let accepted = |table: &Authenticator, seed| identify(table, &key(seed).text).is_ok();
    assert_eq!([accepted(&old, 1), accepted(&old, 2)], [true, false]);
    assert_eq!([accepted(&both, 1), accepted(&both, 2)], [true, true]);
    assert_eq!([accepted(&new, 1), accepted(&new, 2)], [false, true]);
}

#[test]
fn two_records_with_one_id_make_no_table() {
    let error = KeyTable::new([record(&key(1), "red", None), record(&key(1), "blue", None)]).unwrap_err();
    assert!(matches!(error, KeyTableError::DuplicateId { .. }));
}

#[test]
fn digests_are_read_as_they_are_written() {
    let digest = key(5).digest;
    assert!(KeyDigest::from_hex(&digest.to_hex()).unwrap().matches(&digest));
    assert!(
        KeyDigest::from_hex(&digest.to_hex().to_uppercase())
            .unwrap()
            .matches(&digest)
    );
    // The digest of the empty text, as published.
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(KeyDigest::of("").to_hex(), empty);
    let nonsense = "g".repeat(64);
    for wrong in ["", &empty[1..], nonsense.as_str(), "é"] {
        assert!(KeyDigest::from_hex(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn nothing_but_the_id_is_printed() {
    let key = key(9);
    let secret = key.text.rsplit('_').next().unwrap().to_owned();
    let presented = ApiKey::parse(&key.text).unwrap();
    assert!(!format!("{key:?} {presented:?}").contains(&secret));
    assert!(format!("{presented:?}").contains(key.id.as_str()));
}

proptest! {
    #[test]
    fn every_generated_key_is_read_back_with_its_id(entropy in any::<[u8; KEY_ENTROPY_BYTES]>()) {
        let key = generate_key(&entropy);
        let parsed = ApiKey::parse(&key.text).unwrap();
        prop_assert_eq!(parsed.id(), key.id.as_str());
        prop_assert_eq!(key.text.len(), 3 + 16 + 1 + 52);
    }

    #[test]
    fn reading_a_key_never_panics(text in "(kv_)?[a-z0-9_é-]{0,80}_?[a-zA-Z0-9_-]{0,80}") {
        if let Some(key) = ApiKey::parse(&text) {
            let start = format!("kv_{}_", key.id());
            prop_assert!(text.starts_with(&start));
        }
    }

    #[test]
    fn one_changed_character_is_refused(seed in any::<u8>(), at in 0_usize..72, to in "[a-zA-Z0-9_-]") {
        let good = key(seed);
        let mut text = good.text.clone();
        text.replace_range(at..=at, &to);
        prop_assume!(text != good.text);
        let authenticator = with_keys(vec![record(&good, "red", None)]);
        prop_assert!(identify(&authenticator, &text).is_err());
    }
}
