//! Tokens that attack the verifier. Sources: RFC 8725, and the faults of other libraries that each test names.

use super::*;

fn full() -> (Issuer, Authenticator) {
    let issuer = Issuer::new(1);
    let keys = jwks(&[issuer.jwk_ed25519("e1"), issuer.jwk_p256("p1"), rs256().0]);
    (issuer, authenticator(keys))
}

#[test]
fn algorithm_none_is_refused_in_every_spelling() {
    let (_, authenticator) = full();
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        for kid in ["e1", "p1", "r1"] {
            let header = json!({"alg": alg, "kid": kid}).to_string();
            let unsigned = format!("{}.{}.", b64(header), b64(claims().to_string()));
            assert_eq!(
                identify(&authenticator, &unsigned),
                Err(Reason::ForbiddenAlgorithm),
                "{alg} {kid}"
            );
        }
    }
}

#[test]
fn a_public_key_is_no_shared_secret() {
    // CVE-2015-9235: a token signed by HMAC with the server's public RSA key as the secret.
    let (_, authenticator) = full();
    for alg in ["HS256", "HS384", "HS512"] {
        let header = json!({"alg": alg, "kid": "r1"}).to_string();
        let message = format!("{}.{}", b64(header), b64(claims().to_string()));
        let secret = ring::hmac::Key::new(
            ring::hmac::HMAC_SHA256,
            rs256().0["n"].as_str().unwrap().as_bytes(),
        );
        let token = format!("{message}.{}", b64(ring::hmac::sign(&secret, message.as_bytes())));
        assert_eq!(
            identify(&authenticator, &token),
            Err(Reason::ForbiddenAlgorithm),
            "{alg}"
        );
    }
}

#[test]
fn a_key_serves_its_own_algorithm_only() {
    let (issuer, authenticator) = full();
    for (alg, kid) in [
        ("RS256", "e1"),
        ("ES256", "e1"),
        ("EdDSA", "p1"),
        ("RS256", "p1"),
        ("ES256", "r1"),
        ("PS256", "r1"),
        ("ES384", "p1"),
    ] {
        let token = issuer.sign_ed25519(&json!({"alg": alg, "kid": kid}), &claims());
        assert_eq!(
            identify(&authenticator, &token),
            Err(Reason::ForbiddenAlgorithm),
            "{alg} {kid}"
        );
    }
}

#[test]
fn keys_inside_the_token_are_never_used() {
    let (_, authenticator) = full();
    let stranger = Issuer::new(9);
    let own = stranger.jwk_ed25519("e1");
    for header in [
        json!({"alg": "EdDSA", "kid": "e1", "jwk": own}),
        json!({"alg": "EdDSA", "kid": "e1", "jku": "https://stranger.test/keys", "x5u": "https://stranger.test"}),
    ] {
        let token = stranger.sign_ed25519(&header, &claims());
        assert_eq!(
            identify(&authenticator, &token),
            Err(Reason::WrongSignature),
            "{header}"
        );
    }
}

#[test]
fn signatures_of_zeros_and_of_other_forms_are_refused() {
    // CVE-2022-21449: r = s = 0 verified for every message.
    let (issuer, authenticator) = full();
    let header = json!({"alg": "ES256", "kid": "p1"});
    let good = issuer.sign_p256(&header, &claims());
    let (message, _) = good.rsplit_once('.').unwrap();
    let order = "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";
    let order: Vec<u8> = (0..64)
        .step_by(2)
        .map(|i| u8::from_str_radix(&order[i..i + 2], 16).unwrap())
        .collect();
    let forms: [Vec<u8>; 7] = [
        vec![0; 64],
        order.repeat(2),
        vec![],
        vec![0; 63],
        vec![0; 65],
        vec![0xff; 64],
        // DER, r = s = 1.
        vec![0x30, 6, 2, 1, 1, 2, 1, 1],
    ];
    for signature in forms {
        let token = format!("{message}.{}", b64(&signature));
        assert_eq!(
            identify(&authenticator, &token),
            Err(Reason::WrongSignature),
            "{signature:?}"
        );
    }
}

#[test]
fn critical_extensions_are_refused() {
    let (issuer, authenticator) = full();
    for crit in [json!(["b64"]), json!([]), json!("exp")] {
        let token = issuer.sign_ed25519(
            &json!({"alg": "EdDSA", "kid": "e1", "b64": false, "crit": crit}),
            &claims(),
        );
        assert_eq!(identify(&authenticator, &token), Err(Reason::CriticalExtension));
    }
}

#[test]
fn names_that_occur_twice_are_refused() {
    let (issuer, authenticator) = full();
    let good_header = r#"{"alg":"EdDSA","kid":"e1"}"#;
    let twice_alg = r#"{"alg":"none","alg":"EdDSA","kid":"e1"}"#;
    let claims = claims().to_string();
    let twice_iss = claims.replacen('{', r#"{"iss":"https://evil.test","#, 1);
    for (header, claims) in [(twice_alg, claims.as_str()), (good_header, twice_iss.as_str())] {
        let token = issuer.sign_text(header, claims);
        assert_eq!(
            identify(&authenticator, &token),
            Err(Reason::MalformedToken),
            "{header} {claims}"
        );
    }
}

#[test]
fn tokens_of_other_shapes_are_malformed() {
    let (issuer, authenticator) = full();
    let good = issuer.sign_ed25519(&json!({"alg": "EdDSA", "kid": "e1"}), &claims());
    let parts: Vec<&str> = good.split('.').collect();
    let [header, body, signature] = parts[..] else {
        panic!()
    };
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    for token in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        format!("{header}.{body}"),
        format!("{good}."),
        format!("{good}.{signature}"),
        format!("{header}.{body}.{signature}="),
        format!("{header}.{body}.{signature}\n"),
        format!("{header}..{signature}"),
        format!(".{body}.{signature}"),
        format!("{}.{body}.{signature}", b64("[]")),
        format!("{}.{body}.{signature}", b64("{}")),
        format!("{}.{body}.{signature}", b64(r#"{"alg":["EdDSA"]}"#)),
        format!("{header}.{}.{signature}", b64("null")),
        format!("{header}.{}.{signature}", b64(&deep)),
        format!("{header}.{}.{signature}", b64(format!("{}{{}}", claims()))),
        format!("{header}.{}.{signature}", b64([0xff, 0xfe])),
        format!("{header}.{}.{signature}", "A".repeat(17_000)),
    ] {
        assert_eq!(
            identify(&authenticator, &token),
            Err(Reason::MalformedToken),
            "{token:.120}"
        );
    }
}

#[test]
fn a_token_without_a_key_id_needs_a_set_with_one_key_of_its_algorithm() {
    let (first, second) = (Issuer::new(1), Issuer::new(2));
    let token = first.sign_ed25519(&json!({"alg": "EdDSA"}), &claims());
    let one = authenticator(jwks(&[first.jwk_ed25519("e1"), first.jwk_p256("p1")]));
    let two = authenticator(jwks(&[first.jwk_ed25519("e1"), second.jwk_ed25519("e2")]));
    assert_eq!(identify(&one, &token), Ok("blue".to_owned()));
    assert_eq!(identify(&two, &token), Err(Reason::UnknownSigningKey));
}

#[test]
fn an_issuer_without_keys_accepts_nothing() {
    let issuer = Issuer::new(1);
    let token = issuer.sign_ed25519(&json!({"alg": "EdDSA", "kid": "e1"}), &claims());
    assert_eq!(
        identify(&authenticator(Jwks::default()), &token),
        Err(Reason::UnknownSigningKey)
    );
}

proptest! {
    #[test]
    fn one_changed_character_is_refused(at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_.-]") {
        let (issuer, authenticator) = full();
        let good = issuer.sign_ed25519(&json!({"alg": "EdDSA", "kid": "e1"}), &claims());
        let at = at.index(good.len());
        let mut token = good.clone();
        token.replace_range(at..=at, &to);
        prop_assume!(token != good);
        prop_assert!(identify(&authenticator, &token).is_err());
    }

    #[test]
    fn any_text_is_refused_without_a_panic(token in "\\PC{0,200}") {
        let (_, authenticator) = full();
        prop_assert!(identify(&authenticator, &token).is_err());
    }

    #[test]
    fn unsigned_json_of_any_shape_is_refused(header in "\\{\"alg\":\"(EdDSA|ES256|RS256)\",\"kid\":\"(e1|p1|r1)\"\\}", claims in "\\PC{0,80}", signature in any::<Vec<u8>>()) {
        let (_, authenticator) = full();
        let token = format!("{}.{}.{}", b64(header), b64(claims), b64(signature));
        prop_assert!(identify(&authenticator, &token).is_err());
    }
}
