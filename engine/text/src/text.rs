//! [`Text`]: everything an edge needs to turn requests into tokens and tokens into text.

use std::sync::Arc;

use minijinja::Value as TemplateValue;
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::assets::{TOKENIZER_JSON, TextAssets};
use crate::chat::{self, ChatRequest, Rendered};
use crate::config::{GenerationDefaults, TextConfig};
use crate::detokenizer::{Detokenizer, DetokenizerOptions};
use crate::encoder::Encoder;
use crate::error::TextError;
use crate::model_template::{ModelTemplate, control_set, cut_at_end, mark_end};
use crate::protect::{self, ControlSet};
use crate::table::TokenTable;

/// Tokenizer, chat template and defaults of one model. Shared in an `Arc`; every method takes `&self`.
#[derive(Debug)]
pub struct Text {
    encoder: Encoder,
    table: Arc<TokenTable>,
    config: TextConfig,
    default_template: Option<ModelTemplate>,
    tool_template: Option<ModelTemplate>,
    controls: ControlSet,
    eos_token_ids: Vec<u32>,
    bos_token_id: Option<u32>,
}

impl Text {
    /// Reads the assets. Takes some tenths of a second for a large vocabulary.
    ///
    /// # Errors
    /// If a file is missing, garbage or unsupported. A chat template that doesn't parse is an error here, so that it
    /// is seen at start and not at the first chat.
    pub fn load(assets: &TextAssets) -> Result<Self, TextError> {
        let bytes = assets
            .get(TOKENIZER_JSON)
            .ok_or(TextError::MissingAsset { name: TOKENIZER_JSON })?;
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| invalid_tokenizer(&error))?;
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| invalid_tokenizer(&error))?;
        let table = TokenTable::new(&tokenizer)?;
        let config = TextConfig::load(assets)?;
        let template = |name: &str| {
            config
                .templates
                .get(name)
                .map(|source| ModelTemplate::new(source))
                .transpose()
        };
        let (default_template, tool_template) = (template("default")?, template("tool_use")?);
        let sources: Vec<&str> = config.templates.values().map(String::as_str).collect();
        let controls = control_set(&tokenizer, &sources);
        let id_of = |name: &str| {
            config
                .special_tokens
                .get(name)
                .and_then(|token| tokenizer.token_to_id(token))
        };
        let mut eos_token_ids: Vec<u32> = id_of("eos_token").into_iter().collect();
        for id in &config.eos_token_ids {
            if !eos_token_ids.contains(id) {
                eos_token_ids.push(*id);
            }
        }
        Ok(Self {
            bos_token_id: id_of("bos_token").or(config.bos_token_id),
            encoder: Encoder::new(tokenizer)?,
            table: Arc::new(table),
            config,
            default_template,
            tool_template,
            controls,
            eos_token_ids,
        })
    }

    /// Encodes a prompt whose author is in control: control tokens written in it become control tokens.
    /// `add_special_tokens` adds what the tokenizer puts around a text, usually the beginning-of-sequence token.
    ///
    /// # Errors
    /// If the tokenizer refuses the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        self.encoder.encode(text, add_special_tokens)
    }

    /// Encodes a text in which nothing becomes a control token.
    ///
    /// # Errors
    /// If the tokenizer refuses the text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encoder
            .encode_spans(text, &[], |id| self.controls.contains(id), false)
    }

    /// Encodes a rendered chat: the template's control tokens become control tokens, the user's don't.
    ///
    /// # Errors
    /// If the tokenizer refuses the text.
    pub fn encode_chat(&self, rendered: &Rendered) -> Result<Vec<u32>, TextError> {
        match &rendered.spans {
            None => self.encoder.encode(&rendered.plain, rendered.add_special_tokens),
            Some(spans) => {
                let is_control = |id| rendered.control_ids.binary_search(&id).is_ok();
                self.encoder
                    .encode_spans(&rendered.plain, spans, is_control, rendered.add_special_tokens)
            }
        }
    }

    /// Renders a conversation with the model's chat template, or the request's own.
    ///
    /// # Errors
    /// If there is no template, the messages are malformed, or the template refuses, fails or exceeds a limit.
    pub fn render_chat(&self, request: &ChatRequest) -> Result<Rendered, TextError> {
        let own = request.template.as_deref().map(ModelTemplate::new).transpose()?;
        let has_tools = request.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let model = self
            .tool_template
            .as_ref()
            .filter(|_| has_tools)
            .or(self.default_template.as_ref());
        let template = own.as_ref().or(model).ok_or(TextError::NoChatTemplate)?;
        let own_controls = own.as_ref().map(|own| {
            let sources = self
                .config
                .templates
                .values()
                .map(String::as_str)
                .chain([own.template.source()]);
            control_set(self.encoder.tokenizer(), &sources.collect::<Vec<_>>())
        });
        let controls = own_controls.as_ref().unwrap_or(&self.controls);
        let mut messages = chat::normalize(&request.messages, template.keeps_parts)?;
        let ending = if request.continue_final_message {
            Some(mark_end(request, &mut messages)?)
        } else {
            None
        };
        let mut result = template
            .template
            .render(self.variables(request, &messages, controls), request.now);
        if matches!(result, Err(TextError::TemplateRender { .. })) && chat::fill_contents(&mut messages) {
            result = template
                .template
                .render(self.variables(request, &messages, controls), request.now);
        }
        let mut marked = result?;
        if let Some(final_text) = ending {
            cut_at_end(&mut marked, &final_text)?;
        }
        Ok(rendered(marked, controls, request.add_special_tokens))
    }

    /// The text of some tokens; U+FFFD where they aren't UTF-8.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for an id outside the vocabulary.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String, TextError> {
        let options = DetokenizerOptions {
            skip_special_tokens: skip_special,
        };
        let mut detokenizer = self.detokenizer(options, &[]);
        let mut text = String::new();
        for token in tokens {
            self.check(*token)?;
            text.push_str(detokenizer.push(*token));
        }
        text.push_str(&detokenizer.finish());
        Ok(text)
    }

    /// One token's text as it reads in the middle of a text; U+FFFD for each broken character.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for an id outside the vocabulary.
    pub fn token_str(&self, id: u32) -> Result<String, TextError> {
        self.token_bytes(id)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// One token's bytes as they are in the middle of a text; empty for an id that has no token.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TextError> {
        self.check(id)?;
        Ok(self.table.bytes(id))
    }

    /// The id of a token by its spelling in the vocabulary (not its text: a space is spelled `Ġ` or `▁`).
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.encoder.tokenizer().token_to_id(token)
    }

    /// A token's spelling in the vocabulary.
    pub fn vocabulary_entry(&self, id: u32) -> Option<String> {
        self.encoder.tokenizer().id_to_token(id)
    }

    /// Starts turning a sequence into text, behind `prompt_tail`: the prompt, or its last tokens.
    pub fn detokenizer(&self, options: DetokenizerOptions, prompt_tail: &[u32]) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.table), options, prompt_tail)
    }

    /// One more than the largest token id. A model's head may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.table.vocab_size()
    }

    /// Whether this id is a special token, which [`DetokenizerOptions::skip_special_tokens`] leaves out.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// Tokens that end an answer: the tokenizer's, then those of the generation configuration (and of the GGUF).
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos_token_ids
    }

    /// The token that begins a sequence, if the model has one.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.bos_token_id
    }

    /// Default sampling parameters of the model's author.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.config.defaults
    }

    /// Whether the model has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.default_template.is_some()
    }

    /// The source of the model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.default_template
            .as_ref()
            .map(|model| model.template.source())
    }

    fn check(&self, id: u32) -> Result<(), TextError> {
        let vocab_size = self.vocab_size();
        if (id as usize) < vocab_size {
            Ok(())
        } else {
            Err(TextError::UnknownToken { id, vocab_size })
        }
    }

    fn variables(
        &self,
        request: &ChatRequest,
        messages: &[Value],
        controls: &ControlSet,
    ) -> Vec<(String, TemplateValue)> {
        let list = |values: &Option<Vec<Value>>| {
            values.as_ref().map_or(TemplateValue::from(()), |values| {
                chat::protected_list(values, controls)
            })
        };
        let mut variables: Vec<(String, TemplateValue)> = Vec::new();
        for (name, token) in &self.config.special_tokens {
            variables.push((name.clone(), TemplateValue::from(token.as_str())));
        }
        for (name, value) in &request.template_kwargs {
            variables.push((name.clone(), chat::protected_value(value, controls)));
        }
        variables.push(("messages".to_owned(), chat::protected_list(messages, controls)));
        variables.push(("tools".to_owned(), list(&request.tools)));
        variables.push(("documents".to_owned(), list(&request.documents)));
        variables.push((
            "add_generation_prompt".to_owned(),
            TemplateValue::from(request.add_generation_prompt),
        ));
        variables
    }
}

fn rendered(marked: String, controls: &ControlSet, add_special_tokens: bool) -> Rendered {
    if !marked.contains(protect::is_mark) {
        return Rendered {
            plain: marked,
            spans: None,
            control_ids: Vec::new(),
            add_special_tokens,
        };
    }
    let (plain, spans) = controls.resolve(&marked);
    Rendered {
        plain,
        spans: Some(spans),
        control_ids: controls.ids(),
        add_special_tokens,
    }
}

fn invalid_tokenizer(error: &dyn std::fmt::Display) -> TextError {
    TextError::InvalidAsset {
        name: TOKENIZER_JSON.to_owned(),
        reason: error.to_string(),
    }
}
