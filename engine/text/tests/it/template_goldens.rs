//! Every published chat template renders as in transformers (C42).
//!
//! Templates come from the test assets, conversations and digests of the expected renderings from `e2e/golden`.

use std::collections::BTreeMap;

use crate::common::{assets, assets_with_template, golden, sha256};
use kvasir_text::{ChatRequest, Text, TextError};
use serde_json::{Map, Value, json};

/// Templates with conversations on which transformers fails and we render, and why.
const LENIENT: &[(&str, &str)] = &[
    ("Cohere2MoE", ITERATES_OVER_NONE),
    ("CohereForAI-c4ai-command-r-plus-tool_use", ITERATES_OVER_NONE),
    (
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        ITERATES_OVER_NONE,
    ),
    (
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        ITERATES_OVER_NONE,
    ),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", ITERATES_OVER_NONE),
    ("LFM2-8B-A1B", WANTS_CONTENT),
    ("LFM2.5-Instruct", WANTS_CONTENT),
    ("Qwen-QwQ-32B", WANTS_CONTENT),
    ("Qwen-Qwen3-0.6B", WANTS_CONTENT),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", WANTS_CONTENT),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", WANTS_CONTENT),
    ("ibm-granite-granite-3.3-2B-Instruct", WANTS_CONTENT),
    ("microsoft-Phi-3.5-mini-instruct", WANTS_CONTENT),
    ("unsloth-mistral-Devstral-Small-2507", WANTS_CONTENT),
    (
        "llama-cpp-deepseek-r1",
        "writes a generator as JSON, which Python can't",
    ),
];
const ITERATES_OVER_NONE: &str =
    "iterates over the tools although there are none; for us that is an empty list";
const WANTS_CONTENT: &str =
    "adds to the content of a message that has none; our second try gives it an empty one";

/// Renderings that differ, and why.
const DIFFERENT: &[(&str, &[&str], &str)] = &[(
    "meetkai-functionary-medium-v3.1",
    &[
        "parallel_tools",
        "reasoning_with_tools",
        "tool_turn_generation",
        "tool_turn_null_content",
        "tools_generation",
        "tools_without_system",
    ],
    "uses the filter `safe`, whose result in Jinja2 escapes the schemas added to it for HTML (`&#34;name&#34;`), \
     surely against its author's will",
)];

fn request(case: &Value, now: i64) -> ChatRequest {
    let list = |name: &str| case.get(name).and_then(Value::as_array).cloned();
    let flag = |name: &str| case.get(name).and_then(Value::as_bool).unwrap_or(false);
    ChatRequest {
        messages: list("messages").unwrap(),
        tools: list("tools"),
        documents: list("documents"),
        add_generation_prompt: flag("add_generation_prompt"),
        continue_final_message: flag("continue_final_message"),
        template_kwargs: case
            .get("template_kwargs")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default(),
        now,
        ..ChatRequest::default()
    }
}

/// What `make_template_goldens.py` writes.
fn outcome(result: Result<String, TextError>) -> (Value, String) {
    match result {
        Ok(text) => (json!({"text": sha256(&text)}), text),
        Err(TextError::TemplateRefused { message }) => (json!({"refused": sha256(&message)}), message),
        Err(error) => (json!({"error": true}), error.to_string()),
    }
}

#[test]
fn every_published_template_renders_as_in_transformers() {
    let cases = golden("template_cases.json");
    let goldens: BTreeMap<String, Map<String, Value>> =
        serde_json::from_value(golden("template_goldens.json")).unwrap();
    let special: Vec<(&str, &str)> = cases["special_tokens"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, token)| (name.as_str(), token.as_str().unwrap()))
        .collect();
    let mut wrong = Vec::new();
    let mut equal_templates = 0;
    for (template, expected) in &goldens {
        let source = std::fs::read_to_string(assets().join("templates").join(template)).unwrap();
        let text = Text::load(&assets_with_template(&source, &special)).unwrap();
        let template = template.trim_end_matches(".jinja");
        let mut equal = 0;
        for (name, case) in cases["cases"].as_object().unwrap() {
            let result = text.render_chat(&request(case, cases["now"].as_i64().unwrap()));
            let (actual, shown) = outcome(result.map(|rendered| rendered.text().to_owned()));
            if actual == expected[name] {
                equal += 1;
                continue;
            }
            let lenient = expected[name].get("error").is_some()
                && actual.get("text").is_some()
                && LENIENT.iter().any(|(file, _)| *file == template);
            let different = DIFFERENT
                .iter()
                .any(|(file, cases, _)| *file == template && cases.contains(&name.as_str()));
            if !lenient && !different {
                show(template, name, &shown);
                wrong.push(format!("{template}: {name}: {}", expected[name]));
            }
        }
        equal_templates += usize::from(equal == cases["cases"].as_object().unwrap().len());
    }
    assert!(
        wrong.is_empty(),
        "{} renderings differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    let excused = LENIENT.len() + DIFFERENT.len();
    assert_eq!(
        equal_templates,
        goldens.len() - excused,
        "a template in the lists of exceptions needs none any more"
    );
    assert!(
        equal_templates >= 50,
        "only {equal_templates} templates are equal in every case"
    );
}

/// Writes a rendering that differs where the developer wants to see it.
fn show(template: &str, case: &str, rendering: &str) {
    if let Some(folder) = std::env::var_os("KVASIR_SHOW_RENDERINGS") {
        let folder = std::path::Path::new(&folder).join(template);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(case), rendering).unwrap();
    }
}
