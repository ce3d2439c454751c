use super::*;

fn parse(text: &str) -> Result<Jwks, JwksError> {
    Jwks::parse(text.as_bytes())
}

#[test]
fn keys_that_cannot_be_used_are_skipped_and_counted() {
    let issuer = Issuer::new(1);
    let mut for_encryption = issuer.jwk_ed25519("enc");
    for_encryption["use"] = json!("enc");
    let mut for_signing = issuer.jwk_ed25519("ops");
    for_signing["key_ops"] = json!(["sign"]);
    let mut other_algorithm = issuer.jwk_p256("alg");
    other_algorithm["alg"] = json!("RS256");
    let mut pss = rs256().0;
    pss["alg"] = json!("PS256");
    let mut short = rs256().0;
    short["n"] = json!(b64([0xff; 128]));
    let mut long = rs256().0;
    long["n"] = json!(b64([0xff; 1025]));
    let mut exponent_one = rs256().0;
    exponent_one["e"] = json!(b64([1]));
    let mut even_exponent = rs256().0;
    even_exponent["e"] = json!(b64([1, 0, 0]));
    let mut short_point = issuer.jwk_p256("short");
    short_point["x"] = json!(b64([1; 31]));
    let unusable = [
        for_encryption,
        for_signing,
        other_algorithm,
        pss,
        short,
        long,
        exponent_one,
        even_exponent,
        short_point,
        json!({"kty": "oct", "kid": "secret", "k": b64([7; 32])}),
        json!({"kty": "EC", "crv": "P-384", "x": "", "y": ""}),
        json!({"kty": "OKP", "crv": "X25519", "x": b64([1; 32])}),
        json!({"kty": "RSA", "n": b64([0; 256]), "e": "AQAB"}),
        json!({"kty": "RSA", "n": "", "e": ""}),
        json!({}),
        json!(5),
        json!(null),
    ];
    for key in &unusable {
        let error = parse(&json!({ "keys": [key] }).to_string()).unwrap_err();
        assert!(matches!(error, JwksError::NoUsableKey { num_keys: 1 }), "{key}");
    }
    let mut keys = unusable.to_vec();
    keys.push(issuer.jwk_ed25519("good"));
    let set = jwks(&keys);
    assert_eq!((set.len(), set.num_skipped()), (1, unusable.len()));
}

#[test]
fn leading_zeros_of_an_rsa_modulus_do_not_matter() {
    let (mut jwk, token) = rs256();
    let modulus = URL_SAFE_NO_PAD.decode(jwk["n"].as_str().unwrap()).unwrap();
    jwk["n"] = json!(b64([&[0, 0], modulus.as_slice()].concat()));
    assert_eq!(
        identify(&authenticator(jwks(&[jwk])), &token),
        Ok("blue".to_owned())
    );
}

#[test]
fn key_sets_are_bounded() {
    let issuer = Issuer::new(1);
    let many: Vec<Value> = (0..65).map(|i| issuer.jwk_ed25519(&format!("e{i}"))).collect();
    let error = parse(&json!({ "keys": many }).to_string()).unwrap_err();
    assert!(matches!(error, JwksError::TooMany { num_keys: 65 }));
    let long = format!("{{\"keys\":[]}}{}", " ".repeat(256 * 1024));
    assert!(matches!(parse(&long).unwrap_err(), JwksError::TooLong { .. }));
}

#[test]
fn a_key_id_names_one_key_of_an_algorithm() {
    let (first, second) = (Issuer::new(1), Issuer::new(2));
    let twice = json!({"keys": [first.jwk_ed25519("same"), second.jwk_ed25519("same")]});
    assert!(matches!(
        parse(&twice.to_string()).unwrap_err(),
        JwksError::DuplicateId { .. }
    ));
    assert_eq!(
        jwks(&[first.jwk_ed25519("same"), first.jwk_p256("same")]).len(),
        2
    );
}

#[test]
fn what_is_no_key_set_is_an_error() {
    for text in [
        "",
        "{}",
        "[]",
        "null",
        r#"{"keys":{}}"#,
        r#"{"keys":[]"#,
        r#"{"keys":[],"keys":[]}"#,
    ] {
        assert!(matches!(parse(text), Err(JwksError::Json(_))), "{text}");
    }
    assert!(matches!(
        parse(r#"{"keys":[]}"#),
        Err(JwksError::NoUsableKey { num_keys: 0 })
    ));
}

proptest! {
    #[test]
    fn reading_a_key_set_never_panics(kty in "RSA|EC|OKP", crv in "P-256|Ed25519|", n in "[A-Za-z0-9_=-]{0,400}", e in "[A-Za-z0-9]{0,8}") {
        let mut key = json!({"kty": kty, "n": n, "e": e, "x": n, "y": e});
        if !crv.is_empty() {
            key["crv"] = json!(crv);
        }
        let set = parse(&json!({"keys": [key]}).to_string());
        prop_assert!(set.is_err() || set.unwrap().len() == 1);
    }
}
