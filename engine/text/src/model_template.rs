//! A chat template together with what [`crate::Text`] has to know about it.

use minijinja::Value as TemplateValue;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use crate::chat::{self, ChatRequest};
use crate::error::TextError;
use crate::protect::{self, ControlSet};
use crate::template::ChatTemplate;

/// A template with what was found out about it.
#[derive(Debug)]
pub(crate) struct ModelTemplate {
    pub(crate) template: ChatTemplate,
    /// Takes a message's content as a list of parts.
    pub(crate) keeps_parts: bool,
}

/// Appended to the last message to find its end in the rendering. The space at its end shows whether the template
/// trims the message. Noncharacters other than those of [`protect`].
const END_OF_FINAL_MESSAGE: &str = "\u{FDD8}\u{FDD9} ";

impl ModelTemplate {
    pub(crate) fn new(source: &str) -> Result<Self, TextError> {
        let template = ChatTemplate::compile(source)?;
        let keeps_parts = takes_parts(&template);
        Ok(Self {
            template,
            keeps_parts,
        })
    }
}

/// Whether a template iterates over content parts, found by trying: a template that doesn't fails or prints the list.
fn takes_parts(template: &ChatTemplate) -> bool {
    let render = |content: Value| {
        let messages = [json!({"role": "user", "content": content})];
        let nothing = ControlSet::new(Vec::new());
        let variables = vec![
            ("messages".to_owned(), chat::protected_list(&messages, &nothing)),
            ("add_generation_prompt".to_owned(), TemplateValue::from(true)),
            ("bos_token".to_owned(), TemplateValue::from("")),
            ("eos_token".to_owned(), TemplateValue::from("")),
        ];
        template.render(variables, 0).unwrap_or_default()
    };
    let text = render(json!([{"type": "text", "text": "kvasir-probe"}]));
    text.contains("kvasir-probe") && !text.contains("'text'") && !text.contains("\"text\"")
}

/// The tokens that user text must not become: special ones, and other added tokens that a template writes (for
/// example `<tool_call>`). White space and words are never controls, whatever a template contains.
pub(crate) fn control_set(tokenizer: &Tokenizer, templates: &[&str]) -> ControlSet {
    let is_tag = |text: &str| {
        text.chars()
            .any(|character| !character.is_alphanumeric() && !character.is_whitespace())
    };
    let mut tokens: Vec<(String, u32)> = tokenizer
        .get_added_tokens_decoder()
        .into_iter()
        .filter(|(_, token)| {
            token.special
                || (is_tag(&token.content) && templates.iter().any(|source| source.contains(&token.content)))
        })
        .map(|(id, token)| (token.content, id))
        .collect();
    tokens.sort_unstable_by_key(|(_, id)| *id);
    ControlSet::new(tokens)
}

/// Marks the end of the last message's text and returns that text.
pub(crate) fn mark_end(request: &ChatRequest, messages: &mut [Value]) -> Result<String, TextError> {
    let refuse = |reason| TextError::ContinueFinalMessage { reason };
    if request.add_generation_prompt {
        return Err(refuse("excludes add_generation_prompt; set that to false"));
    }
    let no_text = "the last message has no text to continue";
    let content = messages
        .last_mut()
        .and_then(|message| message.get_mut("content"))
        .ok_or(refuse(no_text))?;
    let text = match content {
        Value::Array(parts) => parts
            .iter_mut()
            .rev()
            .find_map(|part| part.get_mut("text"))
            .ok_or(refuse(no_text))?,
        text => text,
    };
    let Value::String(text) = text else {
        return Err(refuse(no_text));
    };
    let original = text.clone();
    text.push_str(END_OF_FINAL_MESSAGE);
    Ok(original)
}

/// Cuts the rendering where the last message's text ends.
pub(crate) fn cut_at_end(marked: &mut String, final_text: &str) -> Result<(), TextError> {
    let missing = TextError::ContinueFinalMessage {
        reason: "the chat template leaves out the end of the last message",
    };
    let Some(at) = marked.rfind(END_OF_FINAL_MESSAGE.trim_end()) else {
        return Err(missing);
    };
    if !protect::unmarked(&marked[..at]).contains(final_text.trim()) {
        return Err(missing);
    }
    let trims = !marked[at..].starts_with(END_OF_FINAL_MESSAGE);
    marked.truncate(at);
    if trims {
        marked.truncate(marked.trim_end().len());
    }
    Ok(())
}
