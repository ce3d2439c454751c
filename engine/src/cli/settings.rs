//! From flags, environment and file to the resolved configuration.

use std::path::Path;

use kvasir_config::{
    AccessConfig, ConfigError, EngineConfig, EnvLayer, GrpcConfig, HttpConfig, Layer, LogLevel, ModelConfig,
    PlaceConfig, ProcessConfig, Report, Secret, Spec, env_layer, file_layer, parse_key_file,
};

use kvasir_files::Limit;

use super::flags::{Flags, Role, all_specs};
use crate::exit::Failure;
use crate::llm::LlmOptions;

/// Every section, resolved. Sections that a command has no options for hold their defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) model: ModelConfig,
    pub(crate) engine: EngineConfig,
    pub(crate) http: HttpConfig,
    pub(crate) grpc: GrpcConfig,
    pub(crate) access: AccessConfig,
    pub(crate) place: PlaceConfig,
    pub(crate) process: ProcessConfig,
    /// Sentences about what was given and has no effect.
    pub(crate) warnings: Vec<String>,
    keys: Vec<&'static str>,
    layer: Layer,
}

impl Settings {
    /// Reads the file and the environment, and merges them under the flags.
    ///
    /// # Errors
    /// If the file can't be read, or a value doesn't parse or contradicts another.
    pub(crate) fn resolve<R: Role>(flags: Flags<R>) -> Result<Self, Failure> {
        let specs = R::specs();
        let file = flags
            .file
            .as_deref()
            .map_or_else(|| Ok(Layer::default()), |path| read_file(path, &specs))?;
        // Variables that aren't UTF-8 can't be ours.
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let environment = env_layer(variables, &specs, &all_specs());
        let mut settings = Self::merge(flags.layer, environment, file)?;
        settings.keys = specs.iter().map(|spec| spec.key).collect();
        Ok(settings)
    }

    fn merge(flags: Layer, environment: EnvLayer, file: Layer) -> Result<Self, ConfigError> {
        let layer = flags.over(environment.layer).over(file);
        let mut settings = Self {
            model: ModelConfig::resolve(&layer)?,
            engine: EngineConfig::resolve(&layer)?,
            http: HttpConfig::resolve(&layer)?,
            grpc: GrpcConfig::resolve(&layer)?,
            access: AccessConfig::resolve(&layer)?,
            place: PlaceConfig::resolve(&layer)?,
            process: ProcessConfig::resolve(&layer)?,
            warnings: environment.warnings,
            keys: Vec::new(),
            layer,
        };
        settings.engine.settle();
        settings.engine.validate()?;
        settings.http.validate()?;
        settings.access.validate(&settings.grpc.listen.value)?;
        settings.place.validate()?;
        Ok(settings)
    }

    /// Logs what was given and has no effect.
    pub(crate) fn log_warnings(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
    }

    /// Logs warnings only, unless a person chose a level: for commands whose output people read.
    pub(crate) fn quiet(&mut self) {
        if !self.process.log_level.source.is_explicit() {
            self.process.log_level.derive(LogLevel::Warn, "quiet command");
        }
    }

    /// Leaves options out of the report.
    pub(crate) fn hide(&mut self, keys: impl Iterator<Item = &'static str>) {
        let hidden: Vec<&str> = keys.collect();
        self.keys.retain(|key| !hidden.contains(key));
    }

    /// The same options for the library.
    pub(crate) fn llm_options(&self) -> LlmOptions {
        LlmOptions::from_layer(self.layer.clone())
    }

    /// What was resolved for the options of the command, with sources.
    pub(crate) fn report(&self) -> Report {
        let sections = [
            self.http.entries(),
            self.grpc.entries(),
            self.access.entries(),
            self.place.entries(),
            self.model.entries(),
            self.engine.entries(),
            self.process.entries(),
        ];
        Report::new(sections.map(|entries| {
            entries
                .into_iter()
                .filter(|entry| self.keys.contains(&entry.key))
                .collect::<Vec<_>>()
        }))
    }

    /// All API keys, from options and from the key file.
    ///
    /// # Errors
    /// If the key file can't be read or holds no key.
    pub(crate) fn api_keys(&self) -> Result<Vec<Secret>, Failure> {
        keys_of(&self.http.api_key.value, self.http.api_key_file.value.as_deref())
    }

    /// All admin keys, from options and from their file.
    ///
    /// # Errors
    /// If the file can't be read or holds no key.
    pub(crate) fn admin_api_keys(&self) -> Result<Vec<Secret>, Failure> {
        keys_of(
            &self.http.admin_api_key.value,
            self.http.admin_api_key_file.value.as_deref(),
        )
    }
}

fn keys_of(given: &[Secret], file: Option<&Path>) -> Result<Vec<Secret>, Failure> {
    let mut keys = given.to_vec();
    if let Some(path) = file {
        keys.extend(parse_key_file(&read_text(path)?, &path.display().to_string())?);
    }
    Ok(keys)
}

fn read_file(path: &Path, specs: &[Spec]) -> Result<Layer, Failure> {
    Ok(file_layer(&read_text(path)?, &path.display().to_string(), specs)?)
}

/// Reads a small text file that the configuration names.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    Ok(kvasir_files::read_text(path, Limit::SMALL)?)
}
