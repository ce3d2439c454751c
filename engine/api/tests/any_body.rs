//! Whatever the body is: parsing ends, without a panic, in a value within its ranges or in a bounded 400.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use kvasir_api::{
    ApiError, ChatRequest, Common, CompletionRequest, Context, DetokenizeRequest, Limits, Sampling,
    SamplingDefaults, TokenizeRequest,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const VOCAB_SIZE: u32 = 100;
const MAX_MODEL_LEN: u32 = 64;

/// Every field that some request knows, so that generated bodies get past the first check.
const FIELDS: &[&str] = &[
    "messages",
    "prompt",
    "model",
    "n",
    "best_of",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "stream",
    "stream_options",
    "echo",
    "cache_salt",
    "priority",
    "request_id",
    "truncate_prompt_tokens",
    "truncation_side",
    "response_format",
    "tools",
    "chat_template_kwargs",
    "reasoning_effort",
    "documents",
    "continue_final_message",
    "add_generation_prompt",
    "tokens",
    "return_token_strs",
    "user",
    "unknown",
];

fn context() -> Context {
    let mut limits = Limits::new(MAX_MODEL_LEN, VOCAB_SIZE, 5);
    limits.max_sequences = 8;
    Context {
        limits,
        defaults: SamplingDefaults::default(),
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..120).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-3.0f64..3.0).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop_oneof!["user", "assistant", "text", "left", "low", "5"].prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec(
                ("(role|content|type|text|name|[0-9]{1,3}|[a-z]{0,4})", inner),
                0..5
            )
            .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn any_body() -> impl Strategy<Value = Value> {
    let field = (prop::sample::select(FIELDS), any_json());
    let messages = prop_oneof![
        3 => Just(json!([{"role": "user", "content": "hi"}])),
        1 => any_json(),
    ];
    let prompt = prop_oneof![3 => Just(json!("hi")), 1 => Just(json!([[1, 2], [3]])), 1 => any_json()];
    (prop::collection::vec(field, 0..6), messages, prompt).prop_map(|(fields, messages, prompt)| {
        let mut body = json!({"messages": messages, "prompt": prompt, "tokens": [1]});
        body.as_object_mut()
            .unwrap()
            .extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
        body
    })
}

fn check_error(error: &ApiError) {
    assert_eq!(error.status(), 400, "{error}");
    let json = serde_json::to_string(&error.body()).unwrap();
    assert!(json.len() < 10_000, "an error of {} bytes", json.len());
}

fn check_sampling(sampling: &Sampling) {
    assert!((1..=8).contains(&sampling.n));
    assert!(sampling.temperature == 0.0 || (0.01..=2.0).contains(&sampling.temperature));
    assert!(sampling.top_p > 0.0 && sampling.top_p <= 1.0);
    assert!(sampling.top_k <= VOCAB_SIZE);
    assert!((0.0..=1.0).contains(&sampling.min_p));
    assert!((-2.0..=2.0).contains(&sampling.presence_penalty));
    assert!((-2.0..=2.0).contains(&sampling.frequency_penalty));
    assert!(sampling.repetition_penalty > 0.0 && sampling.repetition_penalty.is_finite());
    assert!(
        sampling
            .logit_bias
            .iter()
            .all(|&(id, bias)| id < VOCAB_SIZE && (-100.0..=100.0).contains(&bias))
    );
    assert!(sampling.logit_bias.is_sorted_by_key(|&(id, _)| id));
    assert!(
        sampling
            .allowed_token_ids
            .iter()
            .chain(&sampling.stop_token_ids)
            .all(|&id| id < VOCAB_SIZE)
    );
    assert!(sampling.max_tokens.is_none_or(|tokens| tokens <= MAX_MODEL_LEN));
    assert!(
        sampling
            .max_tokens
            .is_none_or(|tokens| sampling.min_tokens <= tokens)
    );
    assert!(sampling.stop.len() <= 4 && sampling.stop.iter().all(|stop| !stop.is_empty()));
    assert!(
        sampling
            .logprobs
            .max(sampling.prompt_logprobs)
            .is_none_or(|count| count <= 5)
    );
    assert!(sampling.n == 1 || sampling.temperature > 0.0);
}

fn check_common(common: &Common) {
    check_sampling(&common.sampling);
    assert!(common.stream.is_none() || !common.wants_prompt_logprobs);
}

fn parse_all(bytes: &[u8]) {
    let context = context();
    match ChatRequest::parse(bytes, &context) {
        Ok(parsed) => {
            check_common(&parsed.request.common);
            assert!(!parsed.request.messages.is_empty());
            assert!(parsed.request.common.sampling.max_tokens != Some(0));
        }
        Err(error) => check_error(&error),
    }
    match CompletionRequest::parse(bytes, &context) {
        Ok(parsed) => {
            let request = parsed.request;
            check_common(&request.common);
            assert!(request.prompts.len() * request.common.sampling.n as usize <= 8);
            assert!(request.echo || request.common.sampling.max_tokens >= Some(1));
        }
        Err(error) => check_error(&error),
    }
    if let Err(error) = TokenizeRequest::parse(bytes, &context) {
        check_error(&error);
    }
    match DetokenizeRequest::parse(bytes, &context) {
        Ok(parsed) => assert!(parsed.request.tokens.iter().all(|&id| id < VOCAB_SIZE)),
        Err(error) => check_error(&error),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_json_is_a_request_within_its_ranges_or_a_bounded_400(body in any_body()) {
        parse_all(body.to_string().as_bytes());
    }

    #[test]
    fn any_bytes_are_a_bounded_400(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        parse_all(&bytes);
    }

    #[test]
    fn a_cut_body_is_a_bounded_400(body in any_body(), cut in 0.0f64..1.0) {
        let text = body.to_string();
        let bytes = &text.as_bytes()[..(text.len() as f64 * cut) as usize];
        parse_all(bytes);
        prop_assert!(ChatRequest::parse(bytes, &context()).is_err());
    }

    #[test]
    fn unknown_fields_are_named_and_change_nothing(name in "[a-z]{12,20}", value in any_json()) {
        let plain = json!({"prompt": "hi", "n": 2});
        let mut more = plain.clone();
        more[&name] = value.clone();
        let parse = |body: &Value| CompletionRequest::parse(body.to_string().as_bytes(), &context()).unwrap();
        let (plain, more) = (parse(&plain), parse(&more));
        let expected: Vec<String> = if value.is_null() { more.unknown.clone() } else { vec![name] };
        prop_assert_eq!(more.unknown, expected);
        prop_assert_eq!(plain.request.common.sampling, more.request.common.sampling);
    }
}

#[test]
fn model_defaults_fill_what_a_request_leaves_out() {
    let mut context = context();
    context.defaults = SamplingDefaults {
        temperature: 0.5,
        top_p: 0.9,
        top_k: 7,
        min_p: 0.1,
        repetition_penalty: 1.1,
        max_tokens: Some(9),
    };
    let parsed = CompletionRequest::parse(br#"{"prompt": "hi", "top_k": 3}"#, &context).unwrap();
    let sampling = parsed.request.common.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.top_k),
        (0.5, 0.9, 3)
    );
    assert_eq!(
        (sampling.min_p, sampling.repetition_penalty, sampling.max_tokens),
        (0.1, 1.1, Some(9))
    );
}

#[test]
fn greedy_model_defaults_refuse_several_sequences_as_explicit_ones_do() {
    let mut context = context();
    context.defaults.temperature = 0.0;
    let error = CompletionRequest::parse(br#"{"prompt": "hi", "n": 2}"#, &context).unwrap_err();
    assert!(
        error
            .message()
            .starts_with("n must be 1 when using greedy sampling"),
        "{error}"
    );
}
