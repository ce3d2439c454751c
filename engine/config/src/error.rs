//! What can be wrong with a configuration. All of these are the caller's to fix: exit code 64.

use crate::source::Source;

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value doesn't parse.
    #[error("invalid value {text} for {key} (from {from}): {reason}")]
    InvalidValue {
        /// The option.
        key: &'static str,
        /// The text, quoted; `<set>` for secrets.
        text: String,
        /// Where it came from.
        from: Source,
        /// What is allowed.
        reason: String,
    },
    /// The file isn't YAML.
    #[error("{path} isn't valid YAML: {reason}")]
    FileSyntax {
        /// The file.
        path: String,
        /// The parser's message, with line and column.
        reason: String,
    },
    /// The file holds something else than keys and values.
    #[error("{path} must be a list of `option: value` lines, as in `port: 8000`")]
    FileShape {
        /// The file.
        path: String,
    },
    /// The file has a key that is no option of this command.
    #[error("{path}: unknown option {key:?}{}", hint(.suggestion.as_deref()))]
    UnknownKey {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// The most similar option.
        suggestion: Option<String>,
    },
    /// There is no such option.
    #[error("there is no option {key:?}{}", hint(.suggestion.as_deref()))]
    UnknownOption {
        /// The key.
        key: String,
        /// The most similar option.
        suggestion: Option<String>,
    },
    /// The file gives a key a value of the wrong shape.
    #[error("{path}: {key} must be a text, a number, true or false, or a list of these, not {found}")]
    FileValue {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// What was found.
        found: &'static str,
    },
    /// Two options don't go together.
    #[error("{0}")]
    Conflict(String),
    /// An admin route without somebody who may use it.
    #[error(
        "enable-debug-dump needs an admin key here, because the dump holds everybody's prompts: give one with --admin-api-key, \
         --admin-api-key-file or KVASIR_ADMIN_API_KEY, or use dump-dir and SIGUSR1 instead"
    )]
    DumpWithoutAdminKey,
    /// Serving the network without a key.
    #[error(
        "refusing to listen on {host} without an API key: everyone who can reach it could use the model. \
         Give a key with --api-key, --api-key-file or KVASIR_API_KEY, or bind 127.0.0.1, or add --allow-unauthenticated"
    )]
    OpenToTheNetwork {
        /// The host that was asked for.
        host: String,
    },
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |key| format!(", did you mean {key:?}?"))
}
