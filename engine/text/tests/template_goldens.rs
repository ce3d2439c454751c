//! Every published chat template renders as in transformers (C42).
//!
//! Templates come from the test assets, conversations and digests of the expected renderings from `e2e/golden`.

#[expect(dead_code, reason = "each test binary uses a part of the helpers")]
mod common;

use std::collections::BTreeMap;

use common::{assets, assets_with_template, golden, sha256};
use kvasir_text::{ChatRequest, Text, TextError};
use serde_json::{Map, Value, json};

/// Where we differ, and why. `*` stands for every case of the template.
const DIFFERENCES: &[(&str, &str, &str)] = &[];

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
    let mut matching_templates = 0;
    for (template, expected) in &goldens {
        let source = std::fs::read_to_string(assets().join("templates").join(template)).unwrap();
        let text = Text::load(&assets_with_template(&source, &special));
        let wrong_before = wrong.len();
        for (name, case) in cases["cases"].as_object().unwrap() {
            let result = match &text {
                Ok(text) => text
                    .render_chat(&request(case, cases["now"].as_i64().unwrap()))
                    .map(|rendered| rendered.text().to_owned()),
                Err(error) => Err(TextError::TemplateSyntax {
                    reason: error.to_string(),
                }),
            };
            let (actual, shown) = outcome(result);
            let excused = DIFFERENCES
                .iter()
                .any(|(file, case, _)| file == template && (*case == "*" || case == name));
            if excused {
                assert_ne!(
                    actual, expected[name],
                    "{template}: {name} doesn't differ any more; remove it from the list"
                );
            } else if actual != expected[name] {
                if let Some(folder) = std::env::var_os("KVASIR_SHOW_RENDERINGS") {
                    let folder = std::path::Path::new(&folder).join(template.trim_end_matches(".jinja"));
                    std::fs::create_dir_all(&folder).unwrap();
                    std::fs::write(folder.join(name), &shown).unwrap();
                }
                wrong.push(format!("{template}: {name}: {}", expected[name]));
            }
        }
        matching_templates += usize::from(wrong.len() == wrong_before);
    }
    assert!(
        wrong.is_empty(),
        "{} renderings differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        matching_templates >= 30,
        "only {matching_templates} templates compared"
    );
}
