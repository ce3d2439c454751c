//! The configuration file: YAML, its keys are the flags' names.

use serde_yaml::Value as Yaml;

use crate::error::ConfigError;
use crate::layer::Layer;
use crate::options::Spec;
use crate::source::Source;
use crate::suggest::closest;
use crate::yaml::check_yaml;

/// Reads the text of a configuration file. Keys may be written with `_` for `-`, as in vLLM's files.
///
/// # Errors
/// If it isn't YAML, isn't a mapping, or has a key that isn't among `specs` or a value that isn't a scalar or list of scalars.
pub fn file_layer(text: &str, path: &str, specs: &[Spec]) -> Result<Layer, ConfigError> {
    check_yaml(text).map_err(|refusal| ConfigError::FileSyntax {
        path: path.to_owned(),
        reason: refusal.to_string(),
    })?;
    let document: Yaml = serde_yaml::from_str(text).map_err(|error| ConfigError::FileSyntax {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let mapping = match document {
        Yaml::Mapping(mapping) => mapping,
        // A file of comments only.
        Yaml::Null => return Ok(Layer::default()),
        _ => {
            return Err(ConfigError::FileShape {
                path: path.to_owned(),
            });
        }
    };
    let mut layer = Layer::default();
    for (key, value) in mapping {
        let Yaml::String(key) = key else {
            return Err(ConfigError::FileShape {
                path: path.to_owned(),
            });
        };
        let key = known_key(&key, path, specs)?;
        layer.set(key, Source::File(path.to_owned()), texts(&value, key, path)?);
    }
    Ok(layer)
}

fn known_key(key: &str, path: &str, specs: &[Spec]) -> Result<&'static str, ConfigError> {
    let name = key.replace('_', "-");
    let found = specs
        .iter()
        .find(|spec| spec.key == name || spec.aliases.contains(&name.as_str()));
    found.map(|spec| spec.key).ok_or_else(|| ConfigError::UnknownKey {
        path: path.to_owned(),
        key: key.to_owned(),
        suggestion: closest(&name, specs.iter().map(|spec| spec.key)).map(ToOwned::to_owned),
    })
}

fn texts(value: &Yaml, key: &str, path: &str) -> Result<Vec<String>, ConfigError> {
    match value {
        Yaml::Sequence(items) => items.iter().map(|item| scalar(item, key, path)).collect(),
        other => scalar(other, key, path).map(|text| vec![text]),
    }
}

fn scalar(value: &Yaml, key: &str, path: &str) -> Result<String, ConfigError> {
    let found = match value {
        Yaml::Bool(flag) => return Ok(flag.to_string()),
        Yaml::Number(number) => return Ok(number.to_string()),
        Yaml::String(text) => return Ok(text.clone()),
        Yaml::Null => "nothing",
        Yaml::Sequence(_) => "a list in a list",
        Yaml::Mapping(_) => "a mapping",
        Yaml::Tagged(_) => "a tagged value",
    };
    Err(ConfigError::FileValue {
        path: path.to_owned(),
        key: key.to_owned(),
        found,
    })
}
