use super::*;

fn header() -> Value {
    json!({"alg": "EdDSA", "kid": "e1", "typ": "JWT"})
}

/// What becomes of claims that were changed by `change`, correctly signed.
fn with_claims(change: impl Fn(&mut Value)) -> Result<String, Reason> {
    let issuer = Issuer::new(1);
    let mut claims = claims();
    change(&mut claims);
    let token = issuer.sign_ed25519(&header(), &claims);
    identify(&authenticator(jwks(&[issuer.jwk_ed25519("e1")])), &token)
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with results")]
fn blue() -> Result<String, Reason> {
    Ok("blue".to_owned())
}

#[test]
fn a_good_token_of_each_algorithm_names_its_tenant() {
    let issuer = Issuer::new(1);
    let (rsa, rs256_token) = rs256();
    let authenticator = authenticator(jwks(&[issuer.jwk_ed25519("e1"), issuer.jwk_p256("p1"), rsa]));
    let es256 = json!({"alg": "ES256", "kid": "p1"});
    let named_ed25519 = json!({"alg": "Ed25519", "kid": "e1"});
    for token in [
        issuer.sign_ed25519(&header(), &claims()),
        issuer.sign_ed25519(&named_ed25519, &claims()),
        issuer.sign_p256(&es256, &claims()),
        rs256_token,
    ] {
        assert_eq!(identify(&authenticator, &token), blue(), "{token}");
    }
}

#[test]
fn the_subject_is_kept_for_the_audit_log() {
    let issuer = Issuer::new(1);
    let token = issuer.sign_ed25519(&header(), &claims());
    let presented = Presented {
        bearer: Some(&token),
        certificate: None,
    };
    let known = authenticator(jwks(&[issuer.jwk_ed25519("e1")]))
        .identify(presented, &Ring, NOW)
        .unwrap();
    let expected = Principal {
        tenant: tenant("blue"),
        method: Method::Jwt,
        subject: "robot".to_owned(),
    };
    assert_eq!(known, Identification::Known(expected));
}

#[test]
fn a_token_ends_at_its_expiry_plus_the_skew() {
    let at = |exp: i64| with_claims(|claims| claims["exp"] = json!(exp));
    assert_eq!(at(NOW.0 - 29), blue());
    assert_eq!(at(NOW.0 - 30), Err(Reason::Expired));
    assert_eq!(at(0), Err(Reason::Expired));
    assert_eq!(at(-1), Err(Reason::Expired));
    assert_eq!(at(i64::MAX), blue());
}

#[test]
fn a_token_without_an_end_is_refused() {
    let refused = with_claims(|claims| {
        claims.as_object_mut().unwrap().remove("exp");
    });
    assert_eq!(refused, Err(Reason::NoExpiry));
}

#[test]
fn times_may_have_fractions_and_nothing_else() {
    assert_eq!(
        with_claims(|claims| claims["exp"] = json!(NOW.0 as f64 + 0.5)),
        blue()
    );
    assert_eq!(with_claims(|claims| claims["exp"] = json!(1e300)), blue());
    for wrong in [json!("2000000000"), json!(null), json!([NOW.0 + 60]), json!(true)] {
        let refused = with_claims(|claims| claims["exp"] = wrong.clone());
        assert_eq!(refused, Err(Reason::MalformedToken), "{wrong}");
    }
}

#[test]
fn a_token_begins_at_nbf_and_iat_less_the_skew() {
    for claim in ["nbf", "iat"] {
        let at = |begin: i64| with_claims(|claims| claims[claim] = json!(begin));
        assert_eq!(at(NOW.0 + 30), blue(), "{claim}");
        assert_eq!(at(NOW.0 + 31), Err(Reason::NotYetValid), "{claim}");
        assert_eq!(at(i64::MIN), blue(), "{claim}");
    }
}

#[test]
fn one_of_a_tokens_audiences_must_be_ours() {
    let aud = |aud: Value| with_claims(|claims| claims["aud"] = aud.clone());
    assert_eq!(aud(json!(["other", "kvasir"])), blue());
    for wrong in [
        json!("other"),
        json!(["other"]),
        json!([]),
        json!(""),
        json!(null),
        json!("Kvasir"),
        json!({"kvasir": 1}),
    ] {
        assert_eq!(aud(wrong.clone()), Err(Reason::WrongAudience), "{wrong}");
    }
    let none = with_claims(|claims| {
        claims.as_object_mut().unwrap().remove("aud");
    });
    assert_eq!(none, Err(Reason::WrongAudience));
}

#[test]
fn the_issuer_must_be_ours_exactly() {
    for wrong in [
        json!("https://issuer.test/"),
        json!("HTTPS://ISSUER.TEST"),
        json!(["https://issuer.test"]),
        json!(null),
    ] {
        let refused = with_claims(|claims| claims["iss"] = wrong.clone());
        assert_eq!(refused, Err(Reason::UnknownIssuer), "{wrong}");
    }
}

#[test]
fn a_claim_maps_to_one_tenant_or_to_none() {
    let team = |team: Value| with_claims(|claims| claims["team"] = team.clone());
    assert_eq!(team(json!("red")), Ok("red".to_owned()));
    assert_eq!(team(json!(["x", "sky", 5])), blue());
    assert_eq!(team(json!(["sky", "blue"])), blue());
    assert_eq!(team(json!(["red", "blue"])), Err(Reason::AmbiguousTenant));
    for nobody in [
        json!("green"),
        json!("Blue"),
        json!([]),
        json!(null),
        json!({"blue": "blue"}),
        json!(1),
    ] {
        assert_eq!(team(nobody.clone()), Err(Reason::NoTenant), "{nobody}");
    }
}

#[test]
fn a_fixed_tenant_needs_no_claim() {
    let issuer = Issuer::new(1);
    let keys = jwks(&[issuer.jwk_ed25519("e1")]);
    let fixed = JwtIssuer::new(
        "https://issuer.test".to_owned(),
        vec!["kvasir".to_owned()],
        0,
        keys,
        TenantFromClaims::Fixed(tenant("only")),
    );
    let authenticator = Authenticator {
        issuers: vec![fixed.unwrap()],
        ..Authenticator::default()
    };
    let token = issuer.sign_ed25519(&header(), &claims());
    assert_eq!(identify(&authenticator, &token), Ok("only".to_owned()));
}

#[test]
fn issuers_with_their_own_keys_do_not_vouch_for_each_other() {
    let (first, second) = (Issuer::new(1), Issuer::new(2));
    let mut both = authenticator(jwks(&[first.jwk_ed25519("e1")]));
    let other = JwtIssuer::new(
        "https://other.test".to_owned(),
        vec!["kvasir".to_owned()],
        0,
        jwks(&[second.jwk_ed25519("e1")]),
        TenantFromClaims::Fixed(tenant("other")),
    );
    both.issuers.push(other.unwrap());
    let mut of_other = claims();
    of_other["iss"] = json!("https://other.test");
    assert_eq!(
        identify(&both, &second.sign_ed25519(&header(), &of_other)),
        Ok("other".to_owned())
    );
    assert_eq!(
        identify(&both, &first.sign_ed25519(&header(), &of_other)),
        Err(Reason::WrongSignature)
    );
}

#[test]
fn a_rotated_key_set_accepts_the_new_key_and_no_longer_the_old() {
    let (old, new) = (Issuer::new(1), Issuer::new(2));
    let before = authenticator(jwks(&[old.jwk_ed25519("e1")]));
    let after = Authenticator {
        issuers: vec![before.issuers[0].with_keys(jwks(&[new.jwk_ed25519("e2")]))],
        ..Authenticator::default()
    };
    let old_token = old.sign_ed25519(&header(), &claims());
    let new_token = new.sign_ed25519(&json!({"alg": "EdDSA", "kid": "e2"}), &claims());
    assert_eq!(identify(&before, &new_token), Err(Reason::UnknownSigningKey));
    assert_eq!(identify(&after, &new_token), blue());
    assert_eq!(identify(&after, &old_token), Err(Reason::UnknownSigningKey));
}

#[test]
fn an_issuer_is_configured_with_a_name_an_audience_and_a_small_skew() {
    let new = |name: &str, audiences: &[&str], skew| {
        let audiences = audiences.iter().map(|audience| (*audience).to_owned()).collect();
        let fixed = TenantFromClaims::Fixed(tenant("t"));
        JwtIssuer::new(name.to_owned(), audiences, skew, Jwks::default(), fixed).unwrap_err()
    };
    assert_eq!(new("", &["a"], 0), JwtIssuerError::NoIssuer);
    assert!(matches!(new("i", &[], 0), JwtIssuerError::NoAudience { .. }));
    assert!(matches!(new("i", &[""], 0), JwtIssuerError::NoAudience { .. }));
    assert_eq!(
        new("i", &["a"], 301),
        JwtIssuerError::SkewTooLarge { seconds: 301 }
    );
}
