//! The environment: `KVASIR_` and the option's name.

use crate::layer::Layer;
use crate::options::{Kind, Spec};
use crate::source::Source;
use crate::suggest::closest;

/// Variables of ours that are no options; they are read elsewhere.
const OTHER_VARIABLES: &[&str] = &["KVASIR_CACHE", "KVASIR_CONFIG"];

/// Prefixes of variables that are nobody's mistake: tests' own, and what Kubernetes sets for a service named `kvasir`.
const OTHER_PREFIXES: &[&str] = &["KVASIR_TEST_", "KVASIR_FUZZ_", "KVASIR_SERVICE_", "KVASIR_PORT_"];

/// What the environment says, and what in it will be ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnvLayer {
    /// The values.
    pub layer: Layer,
    /// Sentences about variables that have no effect.
    pub warnings: Vec<String>,
}

/// Reads environment variables. `VLLM_API_KEY` is read as an alias of `KVASIR_API_KEY`; other `VLLM_*` variables, and
/// `KVASIR_*` variables that name no option of any command (`all`), are warned about. Variables whose option isn't
/// one of `specs` belong to another command.
pub fn env_layer(
    variables: impl IntoIterator<Item = (String, String)>,
    specs: &[Spec],
    all: &[Spec],
) -> EnvLayer {
    let mut read = EnvLayer::default();
    let mut variables: Vec<(String, String)> = variables.into_iter().collect();
    variables.sort();
    for (name, text) in variables {
        if name == "VLLM_API_KEY" {
            // `KVASIR_API_KEY` sorts first and wins.
            if let Some(spec) = specs
                .iter()
                .find(|spec| spec.key == "api-key" && read.layer.get(spec.key).is_none())
            {
                read.layer.set(spec.key, Source::Env(name), vec![text]);
            }
        } else if name.starts_with("VLLM_") {
            read.warnings
                .push(format!("{name} is set, but Kvasir doesn't read it"));
        } else if name.starts_with("KVASIR_") && !is_other(&name, &text) {
            set_option(&mut read, name, text, specs, all);
        }
    }
    read
}

fn set_option(read: &mut EnvLayer, name: String, text: String, specs: &[Spec], all: &[Spec]) {
    if let Some(spec) = specs.iter().find(|spec| spec.env_name() == name) {
        let texts = match spec.kind {
            // A key may hold a comma, a name doesn't.
            Kind::Many if !spec.secret => text.split(',').map(|part| part.trim().to_owned()).collect(),
            _ => vec![text],
        };
        read.layer.set(spec.key, Source::Env(name), texts);
    } else if !all.iter().any(|spec| spec.env_name() == name) {
        let names: Vec<String> = all.iter().map(Spec::env_name).collect();
        let hint = closest(&name, names.iter().map(String::as_str))
            .map_or_else(String::new, |near| format!("; did you mean {near}?"));
        read.warnings
            .push(format!("{name} is set, but there is no such option{hint}"));
    }
}

/// Kubernetes sets `KVASIR_PORT=tcp://10.0.0.1:8000` in the pods beside a service named `kvasir`: that isn't our port.
/// vLLM met the same with `VLLM_PORT`.
fn is_other(name: &str, text: &str) -> bool {
    OTHER_VARIABLES.contains(&name)
        || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || (name == "KVASIR_PORT" && text.contains("://"))
}
