//! What a server says when it is ready: its configuration with sources, its routes with scopes, where it listens, and how to try it.

use std::path::PathBuf;

use kvasir_edge::{Edge, Scope};

use super::say;
use super::settings::Settings;

/// Where a server can be reached.
pub(super) enum Address {
    /// Over TCP.
    Tcp {
        /// The host it listens on.
        host: String,
        /// The port.
        port: u16,
    },
    /// Over a Unix socket.
    Unix(PathBuf),
}

/// Says it, as lines for people or as one log object.
pub(super) fn show(settings: &Settings, edge: &Edge, address: &Address, has_keys: bool) {
    let names = edge.model_names();
    let name = names.first().map_or("", String::as_str);
    if settings.process.json.value {
        let routes: Vec<String> = edge
            .served_routes()
            .map(|route| format!("{} {} {}", route.method, route.path, scope(route.scope)))
            .collect();
        tracing::info!(
            model = name,
            url = address.url(),
            configuration = %settings.report().to_json(),
            routes = routes.join(", "),
            "ready"
        );
        return;
    }
    show_configuration(settings);
    say("Routes");
    for route in edge.served_routes() {
        say(&format!(
            "  {:5} {:25} {}",
            route.method.as_str(),
            route.path,
            scope(route.scope)
        ));
    }
    say(&format!(
        "\nServing {name} on {}\n\n{}\n",
        address.url(),
        curl(address, name, has_keys)
    ));
}

/// The resolved configuration, a line each.
pub(super) fn show_configuration(settings: &Settings) {
    say("Configuration");
    for line in settings.report().to_lines() {
        say(&format!("  {line}"));
    }
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Public => "public",
        Scope::Inference => "inference",
        Scope::Operations => "operations",
        Scope::Admin => "admin",
    }
}

impl Address {
    fn url(&self) -> String {
        match self {
            Self::Tcp { host, port } => {
                // An address for everybody is no address to connect to.
                let host = match host.as_str() {
                    "0.0.0.0" => "127.0.0.1",
                    "::" | "[::]" => "[::1]",
                    other => other,
                };
                let is_bare_v6 = host.contains(':') && !host.starts_with('[');
                if is_bare_v6 {
                    format!("http://[{host}]:{port}")
                } else {
                    format!("http://{host}:{port}")
                }
            }
            Self::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

/// A command to paste. The key is named, never shown.
fn curl(address: &Address, model: &str, has_keys: bool) -> String {
    let (socket, url) = match address {
        Address::Unix(path) => (
            format!("--unix-socket {} ", quoted(&path.display().to_string())),
            "http://localhost".to_owned(),
        ),
        Address::Tcp { .. } => (String::new(), address.url()),
    };
    let key = if has_keys {
        "\n  -H \"Authorization: Bearer $KVASIR_API_KEY\" \\"
    } else {
        ""
    };
    let body = serde_json::json!({
        "model": model,
        "messages": [{ "role": "user", "content": "What is the capital of France?" }],
        // A first answer should be short and to the point, also from a small model.
        "temperature": 0,
        "max_tokens": 64,
    });
    format!(
        "curl {socket}{url}/v1/chat/completions \\{key}\n  -H 'Content-Type: application/json' \\\n  -d {}",
        quoted(&body.to_string())
    )
}

/// A word for a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str) -> Address {
        Address::Tcp {
            host: host.to_owned(),
            port: 8000,
        }
    }

    #[test]
    fn url_is_one_that_a_client_can_connect_to() {
        for (host, url) in [
            ("127.0.0.1", "http://127.0.0.1:8000"),
            ("0.0.0.0", "http://127.0.0.1:8000"),
            ("::", "http://[::1]:8000"),
            ("::1", "http://[::1]:8000"),
            ("[::1]", "http://[::1]:8000"),
            ("localhost", "http://localhost:8000"),
        ] {
            assert_eq!(tcp(host).url(), url);
        }
    }

    #[test]
    fn curl_line_survives_quotes_in_names_and_names_the_key() {
        let line = curl(&tcp("localhost"), "it's", true);
        assert!(line.contains(r"it'\''s"), "{line}");
        assert!(line.contains("Bearer $KVASIR_API_KEY"), "{line}");
        assert!(!curl(&tcp("localhost"), "m", false).contains("Authorization"));
        assert!(
            curl(&Address::Unix("/a b".into()), "m", false)
                .starts_with("curl --unix-socket '/a b' http://localhost/")
        );
    }
}
