//! Headers, certificates, reviewed tokens, and how the kinds of credentials stand to each other.

use super::*;

const REASON: Reason = Reason::MalformedHeader;

fn read<'a>(authorization: &'a [&'a [u8]], api_key: &'a [&'a [u8]]) -> Result<Option<&'a str>, Reason> {
    bearer(HeaderValues {
        authorization,
        api_key,
    })
}

#[test]
fn one_bearer_is_read_from_either_header() {
    assert_eq!(read(&[], &[]), Ok(None));
    for value in ["Bearer abc", "bearer abc", "BEARER   abc ", "BeArEr abc"] {
        assert_eq!(read(&[value.as_bytes()], &[]), Ok(Some("abc")), "{value}");
    }
    assert_eq!(read(&[], &[b"abc"]), Ok(Some("abc")));
}

#[test]
fn more_than_one_credential_is_refused_even_if_they_agree() {
    assert_eq!(read(&[b"Bearer abc", b"Bearer abc"], &[]), Err(REASON));
    assert_eq!(read(&[b"Bearer abc"], &[b"abc"]), Err(REASON));
    assert_eq!(read(&[], &[b"abc", b"abc"]), Err(REASON));
}

#[test]
fn other_schemes_and_other_bytes_are_refused() {
    let long = [b"Bearer ".as_slice(), &b"a".repeat(20_000)].concat();
    for value in [
        b"".as_slice(),
        b"Bearer",
        b"Bearer ",
        b"Bearerabc",
        b"Bearer\tabc",
        b"Basic abc",
        b"Bearer a b",
        b"Bearer a,Bearer b\x00",
        b"Bearer \xc3\xa4",
        b"Bearer \xff",
        b" Bearer abc",
        &long,
    ] {
        assert_eq!(read(&[value], &[]), Err(REASON), "{value:?}");
    }
    assert_eq!(read(&[], &[b""]), Err(REASON));
}

fn facts(names: &[San]) -> CertificateFacts {
    CertificateFacts {
        names: names.to_vec(),
        not_after: NOW.plus(10),
    }
}

fn dns(name: &str) -> San {
    San::Dns(name.to_owned())
}

fn by_certificate() -> Authenticator {
    let rules = [
        (dns("a.test"), "red"),
        (dns("b.test"), "red"),
        (San::Uri("spiffe://x/c".to_owned()), "blue"),
    ];
    Authenticator {
        certificates: CertificateRules(rules.into_iter().map(|(san, name)| (san, tenant(name))).collect()),
        ..Authenticator::default()
    }
}

fn identify_certificate(facts: &CertificateFacts, now: UnixSeconds) -> Result<String, Reason> {
    let presented = Presented {
        bearer: None,
        certificate: Some(facts),
    };
    match by_certificate().identify(presented, &Ring, now)? {
        Identification::Known(principal) => Ok(format!("{} {}", principal.tenant, principal.subject)),
        Identification::NeedsReview => panic!("a certificate needs no review"),
    }
}

#[test]
fn certificates_name_tenants_by_exact_names_of_the_same_kind() {
    let ok = |names: &[San]| identify_certificate(&facts(names), NOW);
    assert_eq!(ok(&[dns("x.test"), dns("a.test")]), Ok("red a.test".to_owned()));
    assert_eq!(ok(&[dns("a.test"), dns("b.test")]), Ok("red a.test".to_owned()));
    assert_eq!(
        ok(&[San::Uri("spiffe://x/c".to_owned())]),
        Ok("blue spiffe://x/c".to_owned())
    );
    assert_eq!(
        ok(&[dns("a.test"), San::Uri("spiffe://x/c".to_owned())]),
        Err(Reason::AmbiguousTenant)
    );
    for stranger in [
        vec![],
        vec![dns("*.test")],
        vec![dns("sub.a.test")],
        vec![San::Uri("a.test".to_owned())],
        vec![dns("spiffe://x/c")],
    ] {
        assert_eq!(ok(&stranger), Err(Reason::NoTenant), "{stranger:?}");
    }
}

#[test]
fn a_certificate_that_expires_on_an_open_connection_is_refused() {
    let certificate = facts(&[dns("a.test")]);
    assert!(identify_certificate(&certificate, NOW.plus(10)).is_ok());
    assert_eq!(
        identify_certificate(&certificate, NOW.plus(11)),
        Err(Reason::Expired)
    );
}

fn reviewing() -> Authenticator {
    let account = |namespace: &str, name: &str| ReviewRule::ServiceAccount {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    Authenticator {
        review: Some(ReviewRules {
            audience: "kvasir".to_owned(),
            rules: vec![
                (account("ns", "one"), tenant("one")),
                (ReviewRule::Namespace("ns".to_owned()), tenant("ns")),
                (ReviewRule::Group("admins".to_owned()), tenant("admins")),
                (ReviewRule::Username("jo".to_owned()), tenant("jo")),
            ],
        }),
        ..Authenticator::default()
    }
}

fn reviewed(username: &str, groups: &[&str]) -> Result<String, Reason> {
    let facts = ReviewFacts {
        is_authenticated: true,
        username: username.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        audiences: vec!["kvasir".to_owned()],
    };
    reviewing()
        .reviewed(&facts)
        .map(|principal| principal.tenant.to_string())
}

#[test]
fn the_first_rule_that_fits_a_reviewed_user_names_the_tenant() {
    assert_eq!(
        reviewed("system:serviceaccount:ns:one", &["admins"]),
        Ok("one".to_owned())
    );
    assert_eq!(
        reviewed("system:serviceaccount:ns:two", &["admins"]),
        Ok("ns".to_owned())
    );
    assert_eq!(
        reviewed("system:serviceaccount:other:one", &["admins"]),
        Ok("admins".to_owned())
    );
    assert_eq!(reviewed("jo", &[]), Ok("jo".to_owned()));
    for stranger in [
        "Jo",
        "ns:one",
        "system:serviceaccount:ns2:one",
        "system:serviceaccount:other:ns:one",
        "system:serviceaccount:",
    ] {
        assert_eq!(
            reviewed(stranger, &["Admins"]),
            Err(Reason::NoTenant),
            "{stranger}"
        );
    }
}

#[test]
fn a_review_without_our_audience_or_consent_is_refused() {
    let good = ReviewFacts {
        is_authenticated: true,
        username: "jo".to_owned(),
        groups: vec![],
        audiences: vec!["https://kubernetes.default.svc".to_owned()],
    };
    assert_eq!(reviewing().reviewed(&good), Err(Reason::WrongAudience));
    let unaware = ReviewFacts {
        audiences: vec![],
        ..good.clone()
    };
    assert_eq!(reviewing().reviewed(&unaware), Err(Reason::WrongAudience));
    let refused = ReviewFacts {
        is_authenticated: false,
        ..good.clone()
    };
    assert_eq!(reviewing().reviewed(&refused), Err(Reason::ReviewRefused));
    let nameless = ReviewFacts {
        username: String::new(),
        ..good.clone()
    };
    assert_eq!(reviewing().reviewed(&nameless), Err(Reason::ReviewRefused));
    assert_eq!(Authenticator::default().reviewed(&good), Err(Reason::UnknownKind));
}

#[test]
fn only_bearers_that_no_other_kind_claims_are_sent_to_the_api_server() {
    let issuer = Issuer::new(1);
    let mut all = authenticator(jwks(&[issuer.jwk_ed25519("e1")]));
    all.review = reviewing().review;
    let header = json!({"alg": "EdDSA", "kid": "e1"});
    let mut cluster = claims();
    cluster["iss"] = json!("https://kubernetes.default.svc");
    let mut expired = claims();
    expired["exp"] = json!(0);
    assert_eq!(identify(&all, "opaque-token"), Ok("(review)".to_owned()));
    assert_eq!(
        identify(&all, &issuer.sign_ed25519(&header, &cluster)),
        Ok("(review)".to_owned())
    );
    assert_eq!(
        identify(&all, &issuer.sign_ed25519(&header, &expired)),
        Err(Reason::Expired)
    );
    assert_eq!(
        identify(&all, &generate_key(&[1; KEY_ENTROPY_BYTES]).text),
        Err(Reason::UnknownKey)
    );
}

#[test]
fn nobody_is_let_in_by_default() {
    let nothing = Authenticator::default();
    assert_eq!(
        nothing.identify(Presented::default(), &Ring, NOW),
        Err(Reason::NoCredential)
    );
    let facts = facts(&[dns("a.test")]);
    let certificate = Presented {
        bearer: None,
        certificate: Some(&facts),
    };
    assert_eq!(nothing.identify(certificate, &Ring, NOW), Err(Reason::NoTenant));
    assert!(identify(&nothing, "anything").is_err());
}

#[test]
fn anonymous_requests_are_served_only_where_configured_and_without_a_credential_that_counts() {
    let open = Authenticator {
        anonymous: Anonymous::ServedAs(tenant("public")),
        review: Some(ReviewRules {
            audience: "kvasir".to_owned(),
            rules: Vec::new(),
        }),
        ..Authenticator::default()
    };
    let anonymous = |known| matches!(known, Ok(Identification::Known(principal)) if principal.method == Method::Anonymous);
    let asking = |who: &Authenticator, bearer| {
        let certificate = None;
        anonymous(who.identify(Presented { bearer, certificate }, &Ring, NOW))
    };
    assert!(asking(&open, None));
    assert!(!asking(&open, Some("wrong")));
    // Clients of OpenAI's can't do without a key, so they send some word.
    let without_keys = Authenticator {
        anonymous: Anonymous::ServedAs(tenant("public")),
        ..Authenticator::default()
    };
    assert!(asking(&without_keys, Some("none")));
    assert!(!asking(&Authenticator::default(), Some("none")));
}

#[test]
fn a_bad_bearer_is_refused_beside_a_good_certificate() {
    let facts = facts(&[dns("a.test")]);
    let presented = Presented {
        bearer: Some("wrong"),
        certificate: Some(&facts),
    };
    assert!(by_certificate().identify(presented, &Ring, NOW).is_err());
}

#[test]
fn refusals_look_alike_and_have_codes_of_their_own() {
    let answers: Vec<&str> = Reason::ALL.iter().map(|reason| reason.answer()).collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    let codes: std::collections::BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.code()).collect();
    assert_eq!(codes.len(), Reason::ALL.len());
}

proptest! {
    #[test]
    fn reading_headers_never_panics(authorization in prop::collection::vec(any::<Vec<u8>>(), 0..3), api_key in prop::collection::vec(any::<Vec<u8>>(), 0..3)) {
        let authorization: Vec<&[u8]> = authorization.iter().map(Vec::as_slice).collect();
        let api_key: Vec<&[u8]> = api_key.iter().map(Vec::as_slice).collect();
        if let Ok(Some(token)) = read(&authorization, &api_key) {
            prop_assert!(!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
