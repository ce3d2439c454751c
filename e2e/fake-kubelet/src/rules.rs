//! What tests want to go wrong.
//!
//! A ConfigMap named `fake-kubelet` holds the rules for the pods of its namespace, as a YAML list under the key `rules`. The
//! first rule whose patterns all match decides about a pod; it is read again at every change, for running pods too:
//!
//! ```yaml
//! - pods: chat-g0-*          # names, `*` stands for anything; all if absent
//!   images: "*:broken"       # the container's image
//!   container: engine        # which container it is about; the first if absent
//!   startAfterSeconds: 2     # before the containers run
//!   readyAfterSeconds: 5     # from running to ready
//!   neverReady: true
//!   pull: "unauthorized"     # the image can't be pulled, and why
//!   exit: {code: 137, reason: OOMKilled, message: "last words", afterSeconds: 1, times: 2}
//!   backoffSeconds: 0.5      # between end and restart; a kubelet's 0, 10, 20, 40... without it
//!   terminateAfterSeconds: 3 # from the deletion to the end
//!   neverEnds: true          # a deleted pod stays
//! ```

use k8s_openapi::api::core::v1::ConfigMap;
use serde::Deserialize;

/// Name of the ConfigMap with the rules of a namespace.
pub(crate) const NAME: &str = "fake-kubelet";

/// How a pod behaves.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Rule {
    /// Pattern of pod names.
    pub(crate) pods: Option<String>,
    /// Pattern of images.
    pub(crate) images: Option<String>,
    /// The container it is about.
    pub(crate) container: Option<String>,
    /// Seconds before the containers run.
    pub(crate) start_after_seconds: f64,
    /// Seconds from running to ready.
    pub(crate) ready_after_seconds: f64,
    /// It never becomes ready.
    pub(crate) never_ready: bool,
    /// Why the image can't be pulled.
    pub(crate) pull: Option<String>,
    /// How it ends.
    pub(crate) exit: Option<Exit>,
    /// Seconds between end and restart.
    pub(crate) backoff_seconds: Option<f64>,
    /// Seconds from the deletion to the end.
    pub(crate) terminate_after_seconds: f64,
    /// A deleted pod stays.
    pub(crate) never_ends: bool,
}

/// How a container ends.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Exit {
    /// Exit code.
    pub(crate) code: i32,
    /// The reason that Kubernetes shows.
    pub(crate) reason: Option<String>,
    /// Its termination message.
    pub(crate) message: Option<String>,
    /// Seconds from its start.
    #[serde(default)]
    pub(crate) after_seconds: f64,
    /// How often; always if absent. Restarts count from the pod's creation.
    pub(crate) times: Option<i32>,
}

/// Parses the rules of a namespace.
pub(crate) fn parse(map: &ConfigMap) -> Result<Vec<Rule>, serde_yaml::Error> {
    match map.data.as_ref().and_then(|data| data.get("rules")) {
        Some(text) => serde_yaml::from_str(text),
        None => Ok(Vec::new()),
    }
}

/// The first rule about the pod, or none's behaviour.
pub(crate) fn find(rules: &[Rule], name: &str, images: &[(&str, &str)]) -> Rule {
    let about = |rule: &Rule| {
        let image = match &rule.container {
            Some(container) => images.iter().find(|(name, _)| name == container),
            None => images.first(),
        };
        let matches_image =
            |(_, image): &(&str, &str)| rule.images.as_ref().is_none_or(|p| matches(p, image));
        rule.pods.as_ref().is_none_or(|pattern| matches(pattern, name)) && image.is_some_and(matches_image)
    };
    rules.iter().find(|rule| about(rule)).cloned().unwrap_or_default()
}

/// Whether the text fits the pattern, in which `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(rest) = text.strip_prefix(head) else {
        return false;
    };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.into_iter().any(|at| matches(tail, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything_even_nothing() {
        assert!(matches("chat-g0-*", "chat-g0-11"));
        assert!(matches("*:broken", "registry/x:broken"));
        assert!(matches("a*b*c", "abbc"));
        assert!(matches("*", ""));
        assert!(!matches("chat-g0-*", "chat-g1-0"));
        assert!(!matches("chat", "chat-g0-0"));
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules: Vec<Rule> = serde_yaml::from_str(
            "[{pods: 'a-*', neverReady: true}, {images: '*:bad', container: engine, pull: gone}, {readyAfterSeconds: 3}]",
        )
        .unwrap();
        assert!(find(&rules, "a-0", &[("engine", "x:bad")]).never_ready);
        let second = find(&rules, "b-0", &[("side", "y"), ("engine", "x:bad")]);
        assert_eq!(second.pull.as_deref(), Some("gone"));
        assert_eq!(
            find(&rules, "b-0", &[("engine", "x")])
                .ready_after_seconds
                .to_string(),
            "3"
        );
        assert_eq!(find(&[], "b-0", &[("engine", "x")]), Rule::default());
    }

    #[test]
    fn a_misspelt_key_is_an_error() {
        assert!(serde_yaml::from_str::<Vec<Rule>>("[{pod: x}]").is_err());
    }
}
