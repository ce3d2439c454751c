//! Command line flags, made from the options that `kvasir-config` declares.

use std::marker::PhantomData;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use kvasir_config::{
    AccessConfig, EngineConfig, GrpcConfig, HttpConfig, Kind, Layer, ModelConfig, PlaceConfig, ProcessConfig,
    Source, Spec,
};

/// Which options a command has.
pub trait Role: Send + Sync + 'static {
    /// They, in the order of its help.
    fn specs() -> Vec<Spec>;
}

/// `kvasir serve`: the HTTP server with an engine inside.
#[derive(Clone, Debug)]
pub struct Serve;

/// `kvasir engine`: the gRPC server.
#[derive(Clone, Debug)]
pub struct Engine;

/// `kvasir chat` and `kvasir generate`: an engine without a server.
#[derive(Clone, Debug)]
pub struct Offline;

impl Role for Serve {
    fn specs() -> Vec<Spec> {
        [
            HttpConfig::specs(),
            ModelConfig::specs(),
            EngineConfig::specs(),
            ProcessConfig::specs(),
        ]
        .concat()
    }
}

impl Role for Engine {
    fn specs() -> Vec<Spec> {
        kvasir_config::engine_options()
    }
}

impl Role for Offline {
    fn specs() -> Vec<Spec> {
        // Nobody but the caller waits: there is no queue to bound, nothing to drain and no client to trust.
        let server_only = [
            "served-model-name",
            "trust-request-chat-template",
            "max-num-queued-reqs",
            "max-num-queued-tokens",
            "shutdown-timeout",
            "record-inputs",
            "dump-dir",
            "kv-events-config",
            "instance-id",
        ];
        [
            ModelConfig::specs(),
            EngineConfig::specs(),
            ProcessConfig::specs(),
        ]
        .concat()
        .into_iter()
        .filter(|spec| !server_only.contains(&spec.key))
        .collect()
    }
}

/// The options of every role, for telling a variable of another command from a typo.
pub(crate) fn all_specs() -> Vec<Spec> {
    [
        HttpConfig::specs(),
        GrpcConfig::specs(),
        AccessConfig::specs(),
        PlaceConfig::specs(),
        ModelConfig::specs(),
        EngineConfig::specs(),
        ProcessConfig::specs(),
    ]
    .concat()
}

/// What the command line says about a role's options.
#[derive(Clone, Debug)]
pub struct Flags<R> {
    /// The flags that were given.
    pub layer: Layer,
    /// The configuration file.
    pub file: Option<PathBuf>,
    role: PhantomData<R>,
}

impl<R: Role> clap::Args for Flags<R> {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .env("KVASIR_CONFIG")
            .hide_env_values(true)
            .help("YAML file whose keys are the names of these options");
        R::specs()
            .iter()
            .fold(command.arg(file), |command, spec| command.args(args_of(spec)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R: Role> clap::FromArgMatches for Flags<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut layer = Layer::default();
        for spec in R::specs() {
            if let Some(texts) = given(matches, &spec) {
                layer.set(spec.key, Source::Flag, texts);
            }
        }
        Ok(Self {
            layer,
            file: matches.get_one::<PathBuf>("config").cloned(),
            role: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn given(matches: &ArgMatches, spec: &Spec) -> Option<Vec<String>> {
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    if spec.kind == Kind::Switch && is_given(&negation(spec)) {
        return Some(vec!["false".to_owned()]);
    }
    if !is_given(spec.key) {
        return None;
    }
    matches
        .get_many::<String>(spec.key)
        .map(|texts| texts.cloned().collect())
}

fn negation(spec: &Spec) -> String {
    format!("no-{}", spec.key)
}

fn args_of(spec: &Spec) -> Vec<Arg> {
    let arg = Arg::new(spec.key)
        .help(help(spec))
        .help_heading(spec.heading)
        .value_parser(parser(spec));
    match spec.kind {
        Kind::One if spec.key == "model" => vec![arg.value_name(spec.value_name).help_heading(None)],
        Kind::One => vec![valued(arg, spec).action(ArgAction::Set)],
        Kind::Many => vec![valued(arg, spec).action(ArgAction::Append)],
        Kind::Switch => {
            let negation = negation(spec);
            let on = arg
                .long(spec.key)
                .visible_aliases(spec.aliases.to_vec())
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .hide_possible_values(true)
                .value_name("BOOL")
                .overrides_with(negation.clone());
            let off = Arg::new(negation.clone())
                .long(negation)
                .action(ArgAction::SetTrue)
                .hide(true)
                .overrides_with(spec.key);
            vec![on, off]
        }
    }
}

fn valued(arg: Arg, spec: &Spec) -> Arg {
    arg.long(spec.key)
        .visible_aliases(spec.aliases.to_vec())
        .value_name(spec.value_name)
        .num_args(1)
        .allow_negative_numbers(true)
}

/// Secrets are checked later, where no message repeats them.
fn parser(spec: &Spec) -> ValueParser {
    if spec.secret {
        return ValueParser::string();
    }
    if !spec.words.is_empty() {
        return PossibleValuesParser::new(spec.words).into();
    }
    let check = spec.check;
    ValueParser::new(move |text: &str| check(&[text.to_owned()]).map(|()| text.to_owned()))
}

fn help(spec: &Spec) -> String {
    match spec.kind {
        Kind::Switch if spec.default == "true" => {
            format!("{} [default: on; --{} turns it off]", spec.help, negation(spec))
        }
        _ if spec.default.is_empty() => spec.help.to_owned(),
        _ => format!("{} [default: {}]", spec.help, spec.default),
    }
}
