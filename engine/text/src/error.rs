//! What can go wrong with text, one variant per failed operation.

/// An error of this crate. Its text is fit for the author of the request or of the model folder.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file that every model needs is absent.
    #[error(
        "text asset `{name}` is missing; put it beside the model, or serve a GGUF file, which contains it"
    )]
    MissingAsset {
        /// The file's name.
        name: &'static str,
    },
    /// A text asset isn't what its name says.
    #[error("text asset `{name}` can't be read: {reason}")]
    InvalidAsset {
        /// The file's name.
        name: String,
        /// What the parser said.
        reason: String,
    },
    /// `tokenizer.json` decodes tokens in a way that can't be done incrementally here.
    #[error(
        "tokenizer decoder `{kind}` is not supported; supported are ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, WordPiece and Sequence of these"
    )]
    UnsupportedDecoder {
        /// The decoder's type name.
        kind: String,
    },
    /// The GGUF names a tokenizer model we can't build.
    #[error("GGUF tokenizer model `{model}` is not supported; supported are gpt2 and llama")]
    UnsupportedGgufModel {
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// The GGUF names a pre-tokenizer we don't know. Guessing one would silently give the model wrong tokens.
    #[error("GGUF pre-tokenizer `{pre}` is not known; known are {known}")]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        pre: String,
        /// All names we know, sorted, separated by commas.
        known: String,
    },
    /// The vocabulary in a GGUF contradicts itself.
    #[error("GGUF vocabulary is invalid: {reason}")]
    InvalidGgufVocab {
        /// What doesn't fit, with the offending value.
        reason: String,
    },
    /// The tokenizer library refused a text.
    #[error("text can't be tokenized: {reason}")]
    Encode {
        /// What the library said.
        reason: String,
    },
    /// A token id that the vocabulary doesn't have.
    #[error("token id {id} is out of range; the vocabulary has {vocab_size} ids")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// The model has no chat template, and the request brought none.
    #[error(
        "the model has no chat template; use the completions route, or give a template with --chat-template"
    )]
    NoChatTemplate,
    /// A chat template doesn't parse.
    #[error("chat template doesn't parse: {reason}")]
    TemplateSyntax {
        /// What the parser said, with the line.
        reason: String,
    },
    /// The template called `raise_exception`: it refuses this conversation.
    #[error("{message}")]
    TemplateRefused {
        /// The template author's words.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("chat template can't render this conversation: {reason}")]
    TemplateRender {
        /// What the engine said, with the line.
        reason: String,
    },
    /// The template did more work than one rendering may (C65).
    #[error(
        "chat template needs more than {limit} steps to render this conversation; simplify the template or shorten the conversation"
    )]
    TemplateOutOfFuel {
        /// The limit, in steps of the template engine.
        limit: u64,
    },
    /// The template wrote more text than one rendering may.
    #[error(
        "chat template writes more than {limit} bytes for this conversation; simplify the template or shorten the conversation"
    )]
    TemplateOutputTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// A message, tool or document is malformed.
    #[error("{location}: {reason}")]
    InvalidMessage {
        /// Where, for example `messages[2].tool_calls[0].function.arguments`.
        location: String,
        /// What is wrong.
        reason: String,
    },
    /// `continue_final_message` can't be honoured.
    #[error("continue_final_message: {reason}")]
    ContinueFinalMessage {
        /// Why not.
        reason: &'static str,
    },
}
