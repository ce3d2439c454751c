//! What is shared between requests, and what isn't.

use kvasir_client::types::GenerateRequest;

use crate::support::{Fixture, Kind, collect, expected, finish_of, prompt, request, tokens_of};

pub(super) async fn a_repeated_prompt_is_read_from_the_cache(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let prompt = prompt(33, 0);
    let first = collect(fixture.start(request("a", &prompt, 4)).await).await;
    let written = fixture.control.kv_writes();
    let second = collect(fixture.start(request("a", &prompt, 4)).await).await;
    assert_eq!(
        (first[0].cached_tokens, second[0].cached_tokens),
        (Some(0), Some(32))
    );
    assert!(second[1..].iter().all(|output| output.cached_tokens.is_none()));
    // One prompt token, and the outputs but the last.
    assert_eq!(fixture.control.kv_writes() - written, 1 + 3);
    assert_eq!(tokens_of(&first, 0), tokens_of(&second, 0));
    let timeline = finish_of(&second, 0).timeline.unwrap();
    assert_eq!(timeline.computed_prompt_tokens, 1);
}

pub(super) async fn salts_separate_the_cache(kind: Kind) {
    let fixture = Fixture::new(kind).await;
    let prompt = prompt(33, 0);
    let salts = [
        ("", "", 0),
        ("", "a", 0),
        ("", "b", 0),
        ("", "a", 32),
        ("", "", 32),
        // A tenant named like another's salt shares nothing with it.
        ("a", "", 0),
        ("b", "a", 0),
        ("a", "b", 0),
        ("a", "", 32),
    ];
    for (tenant, salt, cached) in salts {
        let request = GenerateRequest {
            cache_salt: salt.to_owned(),
            tenant_salt: tenant.as_bytes().to_vec().into(),
            ..request("r", &prompt, 2)
        };
        let outputs = collect(fixture.start(request).await).await;
        assert_eq!(
            outputs[0].cached_tokens,
            Some(cached),
            "tenant {tenant:?}, salt {salt:?}"
        );
        assert_eq!(tokens_of(&outputs, 0), expected(&prompt, 7, 2));
    }
}
