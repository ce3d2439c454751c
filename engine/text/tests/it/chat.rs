//! What a chat request becomes before and after the template.

use kvasir_text::{ChatRequest, Text, TextError};
use serde_json::{Value, json};

use crate::common::assets_with_template;

const TEXTS: &str = "{% for message in messages %}[{{ message.role }}]{{ message['content'] + '' }}\
    {% for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %};{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% endif %}";

const PARTS: &str = "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}\
    {% for part in message.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}";

fn load(template: &str) -> Text {
    Text::load(&assets_with_template(template, &[("bos_token", "<s>")])).unwrap()
}

fn request(messages: Value) -> ChatRequest {
    ChatRequest {
        messages: serde_json::from_value(messages).unwrap(),
        ..ChatRequest::default()
    }
}

fn render(template: &str, messages: Value) -> Result<String, TextError> {
    load(template)
        .render_chat(&request(messages))
        .map(|rendered| rendered.text().to_owned())
}

fn two_parts() -> Value {
    json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
}

#[test]
fn parts_become_one_text_for_a_template_that_wants_texts() {
    assert_eq!(render(TEXTS, two_parts()).unwrap(), "[user]a\nb;");
    assert_eq!(render("{{ messages[0].content }}", two_parts()).unwrap(), "a\nb");
}

#[test]
fn parts_stay_parts_for_a_template_that_takes_them() {
    assert_eq!(render(PARTS, two_parts()).unwrap(), "<a><b>");
}

#[test]
fn part_without_text_is_refused_with_its_place() {
    let messages = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let error = render(TEXTS, messages).unwrap_err();
    assert!(
        error.to_string().starts_with("messages[0].content[0]: "),
        "{error}"
    );
}

#[test]
fn arguments_given_as_text_are_parsed() {
    let messages = |arguments: &str| json!([{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]);
    assert_eq!(
        render(TEXTS, messages("{\"city\": \"Ii\"}")).unwrap(),
        "[assistant]Ii;"
    );
    assert_eq!(render(TEXTS, messages("")).unwrap(), "[assistant];");
    let error = render(TEXTS, messages("{city}")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("messages[0].tool_calls[0].function.arguments: "),
        "{error}"
    );
}

#[test]
fn malformed_messages_are_refused_with_their_place() {
    for (messages, place) in [
        (json!([]), "messages: "),
        (json!(["hi"]), "messages[0]: "),
        (json!([{"content": "hi"}]), "messages[0].role: "),
        (json!([{"role": 7, "content": "hi"}]), "messages[0].role: "),
        (json!([{"role": "user", "content": 7}]), "messages[0].content: "),
        (
            json!([{"role": "user", "content": "", "tool_calls": {}}]),
            "messages[0].tool_calls: ",
        ),
    ] {
        let error = render(TEXTS, messages).unwrap_err();
        assert!(error.to_string().starts_with(place), "{error}");
    }
}

#[test]
fn last_message_is_continued_where_its_text_ends() {
    let continued = |template: &str, content: &str| {
        let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]);
        let request = ChatRequest {
            continue_final_message: true,
            ..request(messages)
        };
        load(template)
            .render_chat(&request)
            .map(|rendered| rendered.text().to_owned())
    };
    assert_eq!(continued(TEXTS, "It is ").unwrap(), "[user]q;[assistant]It is ");
    let trims = "{% for message in messages %}[{{ message.content | trim }}]{% endfor %}";
    assert_eq!(continued(trims, "It is ").unwrap(), "[q][It is");
    let hides = "{% for message in messages %}{{ message.role }}{% endfor %}";
    assert!(matches!(
        continued(hides, "It is "),
        Err(TextError::ContinueFinalMessage { .. })
    ));
}

#[test]
fn continuing_and_a_new_turn_exclude_each_other() {
    let messages = json!([{"role": "assistant", "content": "It"}]);
    let request = ChatRequest {
        continue_final_message: true,
        add_generation_prompt: true,
        ..request(messages)
    };
    assert!(matches!(
        load(TEXTS).render_chat(&request),
        Err(TextError::ContinueFinalMessage { .. })
    ));
}

#[test]
fn template_of_the_request_replaces_the_model_s() {
    let request = ChatRequest {
        template: Some("{{ bos_token }}{{ note }}{{ messages[0].content }}".to_owned()),
        template_kwargs: json!({"note": "n:", "messages": [{"content": "no"}]})
            .as_object()
            .unwrap()
            .clone(),
        ..request(json!([{"role": "user", "content": "x"}]))
    };
    assert_eq!(load(TEXTS).render_chat(&request).unwrap().text(), "<s>n:x");
}

#[test]
fn model_without_a_template_says_what_to_do() {
    let mut files = assets_with_template("", &[]).files().clone();
    files.remove(kvasir_text::CHAT_TEMPLATE_JINJA);
    let text = Text::load(&kvasir_text::TextAssets::from_files(files)).unwrap();
    let error = text
        .render_chat(&request(json!([{"role": "user", "content": "x"}])))
        .unwrap_err();
    assert!(error.to_string().contains("--chat-template"), "{error}");
}

#[test]
fn template_for_tools_is_used_when_there_are_tools() {
    let mut files = assets_with_template("", &[]).files().clone();
    files.remove(kvasir_text::CHAT_TEMPLATE_JINJA);
    let config = json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools: {{ tools | length }}"},
    ]});
    files.insert(
        kvasir_text::TOKENIZER_CONFIG_JSON.to_owned(),
        config.to_string().into_bytes(),
    );
    let text = Text::load(&kvasir_text::TextAssets::from_files(files.clone())).unwrap();
    let plain = request(json!([{"role": "user", "content": "x"}]));
    assert_eq!(text.render_chat(&plain).unwrap().text(), "plain");
    let with_tools = ChatRequest {
        tools: Some(vec![json!({"type": "function"})]),
        ..plain.clone()
    };
    assert_eq!(text.render_chat(&with_tools).unwrap().text(), "tools: 1");
    let no_tools = ChatRequest {
        tools: Some(Vec::new()),
        ..plain
    };
    assert_eq!(text.render_chat(&no_tools).unwrap().text(), "plain");

    files.insert(kvasir_text::CHAT_TEMPLATE_JINJA.to_owned(), b"file".to_vec());
    let replaced = Text::load(&kvasir_text::TextAssets::from_files(files)).unwrap();
    assert_eq!(replaced.render_chat(&with_tools).unwrap().text(), "file");
}
