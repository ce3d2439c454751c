//! Chat templates with the semantics of Hugging Face transformers.
//!
//! Templates are programs from the internet, so they run with a bounded number of steps, a bounded recursion depth and
//! a bounded output, and see nothing but the conversation. The clock is an argument.
//!
//! How it differs from minijinja's defaults, each for the sake of templates written for Jinja2 on Python: block
//! trimming, Python's methods and spelling of values, `tojson` like `json.dumps`, `raise_exception`, `strftime_now`,
//! and the `generation` tag, which only marks where the assistant's tokens are.

mod json;
mod methods;
mod python;
mod time;

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use crate::error::TextError;

/// Steps that one rendering may take. A real conversation of a hundred turns takes about ten thousand; three nested
/// loops over `range(999)` (C65) would take billions. The limit is spent in well below a second.
pub(crate) const MAX_STEPS: u64 = 4_000_000;

/// Bytes that one rendering may write; far more than the longest context holds (1M tokens of 4 bytes).
pub(crate) const MAX_OUTPUT_BYTES: usize = 32 << 20;

/// Bytes that one list or dictionary may be printed as. The largest sets of tools seen are some hundred kilobytes; a value
/// that contains another many times could be exponentially larger than the template that made it.
const MAX_PRINTED_BYTES: usize = 4 << 20;

/// Depth of macro calls; the limit keeps the native stack within the 2 MiB of a worker thread.
const MAX_RECURSION: usize = 200;

/// The context key under which `strftime_now` finds the time. Not an identifier, so no template can read or set it.
const NOW_KEY: &str = "now in seconds since 1970";

const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// If it doesn't parse.
    pub(crate) fn compile(source: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| TextError::TemplateSyntax {
            reason: describe(&error),
        })?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_unknown_method_callback(methods::call);
        environment.set_formatter(python::format);
        environment.add_filter("tojson", json::tojson);
        environment.add_filter("string", python::to_text);
        environment.add_filter("trim", methods::trim);
        environment.add_filter("indent", python::indent);
        environment.add_test("iterable", python::is_iterable);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| TextError::TemplateSyntax {
                reason: describe(&error),
            })?;
        Ok(Self {
            environment,
            source: source.to_owned(),
        })
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Renders with these variables; `now` is in seconds since 1970, UTC.
    ///
    /// # Errors
    /// If the template refuses the conversation, fails, or exceeds a limit.
    pub(crate) fn render(&self, variables: Vec<(String, Value)>, now: i64) -> Result<String, TextError> {
        let clock = std::iter::once((NOW_KEY.to_owned(), Value::from(now)));
        let context = Value::from_pairs(variables.into_iter().chain(clock));
        let mut output = BoundedOutput {
            bytes: Vec::new(),
            overflowed: false,
        };
        let result = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(context, &mut output).map(drop));
        match result {
            Ok(()) => String::from_utf8(output.bytes).map_err(|error| TextError::TemplateRender {
                reason: error.to_string(),
            }),
            Err(_) if output.overflowed => Err(TextError::TemplateOutputTooLong {
                limit: MAX_OUTPUT_BYTES,
            }),
            Err(error) => Err(render_error(&error)),
        }
    }
}

/// Collects the rendering and fails when it gets too long.
struct BoundedOutput {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT_BYTES {
            self.overflowed = true;
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The template author's refusal, carried through the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
}

fn strftime_now(state: &State, format: &str) -> String {
    let now = state
        .lookup(NOW_KEY)
        .and_then(|value| value.as_i64())
        .unwrap_or(0);
    time::strftime(now, format)
}

fn render_error(error: &Error) -> TextError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(refusal) = inner.downcast_ref::<Refusal>() {
            return TextError::TemplateRefused {
                message: refusal.0.clone(),
            };
        }
        let kind = inner.downcast_ref::<Error>().map(Error::kind);
        if kind == Some(ErrorKind::OutOfFuel) {
            return TextError::TemplateOutOfFuel { limit: MAX_STEPS };
        }
        source = inner.source();
    }
    TextError::TemplateRender {
        reason: describe(error),
    }
}

/// The error with its line, without the template's text and the values in it.
fn describe(error: &Error) -> String {
    let what = error.detail().map_or_else(
        || error.kind().to_string(),
        |detail| format!("{}: {detail}", error.kind()),
    );
    error
        .line()
        .map_or(what.clone(), |line| format!("{what} (line {line})"))
}

/// Replaces the `generation` tag by a block that is always rendered; minijinja has no custom tags, and the tag changes
/// no text.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let body = &tag[..end];
        let replacement = match body
            .trim_matches(|character: char| "+-".contains(character))
            .trim()
        {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        let sign = |found: bool, sign: &'static str| if found { sign } else { "" };
        out.push_str(sign(body.starts_with('-'), "-"));
        out.push_str(sign(body.starts_with('+'), "+"));
        out.push(' ');
        out.push_str(replacement);
        out.push(' ');
        out.push_str(sign(body.ends_with('-'), "-"));
        out.push_str(sign(body.ends_with('+'), "+"));
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

/// Keyword arguments that a function doesn't know are ignored by nobody: they are an error, as in Python.
fn no_more(kwargs: &Kwargs) -> Result<(), Error> {
    kwargs.assert_all_used()
}

#[cfg(test)]
mod tests;
