//! The one table of routes. What isn't in it is a 404; what is in it has a scope, and only `Public` needs no key.

use http::Method;

use crate::config::EdgeConfig;

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Everybody: probes that hold no data.
    Public,
    /// Clients that use the model.
    Inference,
    /// Whoever operates the server: figures and configuration.
    Operations,
    /// Whoever may change the server.
    Admin,
}

/// A route of the table.
#[derive(Clone, Debug)]
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path, with parameters in braces.
    pub path: &'static str,
    /// Who may use it.
    pub scope: Scope,
    pub(crate) handler: Handler,
    /// Whether it was asked for.
    is_enabled: fn(&EdgeConfig) -> bool,
}

impl Route {
    /// Whether it is served at all. An admin route that nobody may use doesn't exist.
    pub(crate) fn is_served(&self, config: &EdgeConfig) -> bool {
        (self.is_enabled)(config) && (self.scope != Scope::Admin || config.keys().open_admin())
    }
}

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    ChatCompletions,
    Completions,
    Models,
    Model,
    Tokenize,
    Detokenize,
    Version,
    Health,
    Ready,
    Metrics,
    Load,
    ServerInfo,
    Dump,
}

const fn route(method: Method, path: &'static str, scope: Scope, handler: Handler) -> Route {
    Route {
        method,
        path,
        scope,
        handler,
        is_enabled: |_| true,
    }
}

/// Aliases without `/v1` carry the same scope as their twins (C73, C74).
pub(crate) static ROUTES: [Route; 17] = [
    route(
        Method::POST,
        "/v1/chat/completions",
        Scope::Inference,
        Handler::ChatCompletions,
    ),
    route(
        Method::POST,
        "/v1/completions",
        Scope::Inference,
        Handler::Completions,
    ),
    route(Method::GET, "/v1/models", Scope::Inference, Handler::Models),
    // Names of models may contain slashes.
    route(
        Method::GET,
        "/v1/models/{*model}",
        Scope::Inference,
        Handler::Model,
    ),
    route(Method::POST, "/tokenize", Scope::Inference, Handler::Tokenize),
    route(Method::POST, "/v1/tokenize", Scope::Inference, Handler::Tokenize),
    route(Method::POST, "/detokenize", Scope::Inference, Handler::Detokenize),
    route(
        Method::POST,
        "/v1/detokenize",
        Scope::Inference,
        Handler::Detokenize,
    ),
    route(Method::GET, "/version", Scope::Operations, Handler::Version),
    route(Method::GET, "/health", Scope::Public, Handler::Health),
    route(Method::GET, "/ready", Scope::Public, Handler::Ready),
    route(Method::GET, "/ping", Scope::Operations, Handler::Health),
    route(Method::POST, "/ping", Scope::Operations, Handler::Health),
    route(Method::GET, "/metrics", Scope::Operations, Handler::Metrics),
    route(Method::GET, "/load", Scope::Operations, Handler::Load),
    route(
        Method::GET,
        "/server_info",
        Scope::Operations,
        Handler::ServerInfo,
    ),
    Route {
        method: Method::GET,
        path: "/debug/dump",
        scope: Scope::Admin,
        handler: Handler::Dump,
        is_enabled: |config| config.enable_debug_dump,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_probes_are_public() {
        let public: Vec<&str> = ROUTES
            .iter()
            .filter(|route| route.scope == Scope::Public)
            .map(|route| route.path)
            .collect();
        assert_eq!(public, ["/health", "/ready"]);
    }

    #[test]
    fn what_shows_the_prompts_of_others_has_to_be_asked_for() {
        let optional: Vec<&str> = ROUTES
            .iter()
            .filter(|route| !route.is_served(&EdgeConfig::default()))
            .map(|route| route.path)
            .collect();
        assert_eq!(optional, ["/debug/dump"]);
    }

    #[test]
    fn routes_are_unique() {
        for (i, route) in ROUTES.iter().enumerate() {
            let same = |other: &&Route| other.method == route.method && other.path == route.path;
            assert!(!ROUTES[..i].iter().any(|other| same(&other)), "{route:?}");
        }
    }
}
