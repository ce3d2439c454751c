//! What a line at the prompt means. Pure.

use serde_json::{Number, Value};

/// A line, understood.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    /// Say this to the model.
    Say(String),
    /// Nothing was typed.
    Nothing,
    /// List the commands.
    Help,
    /// Forget the conversation.
    Reset,
    /// Show the system message.
    ShowSystem,
    /// Set the system message and forget the conversation; empty removes it.
    System(String),
    /// Ask the last question again.
    Retry,
    /// Set a sampling field.
    Set(String, Value),
    /// Show the sampling fields.
    ShowSettings,
    /// Toggle the line of figures after each answer.
    Stats,
    /// Leave.
    Exit,
    /// A command that isn't right, with what is.
    Wrong(String),
}

/// The commands with their help, in the order of `/help`.
pub(crate) const COMMANDS: &[(&str, &str)] = &[
    ("/help", "show this list"),
    ("/reset", "forget the conversation"),
    (
        "/system",
        "show the system message; `/system TEXT` sets it, `/system -` removes it",
    ),
    ("/retry", "answer the last message again"),
    (
        "/set",
        "show sampling fields; `/set temperature 0.7` sets one, `/set temperature -` unsets it",
    ),
    ("/stats", "show or hide figures after each answer"),
    ("/exit", "leave (also /quit, /bye and Ctrl-D)"),
];

/// Fields of a chat request that a person may set.
pub(crate) const FIELDS: &[&str] = &[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
];

/// Reads a line. Lines that begin with `/` are commands; `//` says a line that begins with `/`.
pub(crate) fn parse(line: &str) -> Command {
    let line = line.trim();
    if line.is_empty() {
        return Command::Nothing;
    }
    if let Some(escaped) = line.strip_prefix("//") {
        return Command::Say(format!("/{escaped}"));
    }
    if !line.starts_with('/') {
        return Command::Say(line.to_owned());
    }
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match (name, rest.trim()) {
        ("/help" | "/?", _) => Command::Help,
        ("/reset" | "/clear" | "/new", _) => Command::Reset,
        ("/system", "") => Command::ShowSystem,
        ("/system", "-") => Command::System(String::new()),
        ("/system", text) => Command::System(text.to_owned()),
        ("/retry" | "/regen", _) => Command::Retry,
        ("/set", "") => Command::ShowSettings,
        ("/set", setting) => parse_set(setting),
        ("/stats", _) => Command::Stats,
        ("/exit" | "/quit" | "/bye" | "/q", _) => Command::Exit,
        (unknown, _) => Command::Wrong(unknown_command(unknown)),
    }
}

fn unknown_command(name: &str) -> String {
    match kvasir_config::closest(name, COMMANDS.iter().map(|(name, _)| *name)) {
        Some(near) => format!("unknown command {name}; did you mean {near}?"),
        None => format!("unknown command {name}; /help lists them, // says a line that begins with /"),
    }
}

fn parse_set(setting: &str) -> Command {
    let (name, text) = setting
        .split_once(|c: char| c.is_whitespace() || c == '=')
        .unwrap_or((setting, ""));
    if !FIELDS.contains(&name) {
        return Command::Wrong(format!("{name} can't be set; one of {} can", FIELDS.join(", ")));
    }
    let text = text.trim_start_matches('=').trim();
    match text {
        "" => Command::Wrong(format!("/set {name} needs a value, or - to unset it")),
        "-" => Command::Set(name.to_owned(), Value::Null),
        _ if name == "stop" => Command::Set(name.to_owned(), Value::from(text)),
        _ => match text.parse::<Number>() {
            Ok(number) => Command::Set(name.to_owned(), Value::Number(number)),
            Err(_) => Command::Wrong(format!("{text:?} isn't a number")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_said_unless_they_begin_with_a_slash() {
        assert_eq!(parse("  hello "), Command::Say("hello".into()));
        assert_eq!(parse("//etc/passwd"), Command::Say("/etc/passwd".into()));
        assert_eq!(parse(" \t"), Command::Nothing);
        assert_eq!(parse("a /reset"), Command::Say("a /reset".into()));
    }

    #[test]
    fn commands_take_the_rest_of_the_line() {
        assert_eq!(parse("/system be brief "), Command::System("be brief".into()));
        assert_eq!(parse("/system -"), Command::System(String::new()));
        assert_eq!(parse("/system"), Command::ShowSystem);
        assert_eq!(parse("/quit"), Command::Exit);
        assert_eq!(
            parse("/set temperature 0.5"),
            Command::Set("temperature".into(), serde_json::json!(0.5))
        );
        assert_eq!(
            parse("/set seed=7"),
            Command::Set("seed".into(), serde_json::json!(7))
        );
        assert_eq!(
            parse("/set stop ab c"),
            Command::Set("stop".into(), serde_json::json!("ab c"))
        );
        assert_eq!(parse("/set seed -"), Command::Set("seed".into(), Value::Null));
    }

    #[test]
    fn wrong_commands_say_what_is_right() {
        let wrong = |line| match parse(line) {
            Command::Wrong(text) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(wrong("/rest"), "unknown command /rest; did you mean /reset?");
        assert!(wrong("/xyzzy").contains("/help"));
        assert!(wrong("/set tmperature 1").contains("temperature"));
        assert!(wrong("/set temperature hot").contains("isn't a number"));
        assert!(wrong("/set temperature").contains("needs a value"));
    }
}
