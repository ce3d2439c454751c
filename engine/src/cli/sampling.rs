//! Sampling flags, which become fields of the requests.

use clap::Args;
use serde_json::{Map, Value};

use kvasir_config::ModelConfig;

/// How tokens are chosen; what isn't given is the model's default.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Most tokens of an answer
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<u32>,
    /// 0 is greedy, 1 is the model's own distribution
    #[arg(long, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep the most likely tokens that make up this share
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep this many of the most likely tokens
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    top_k: Option<i32>,
    /// Drop tokens less likely than this share of the most likely one
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divide the logits of tokens that were there before
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// End at this text; repeatable
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

impl SamplingArgs {
    /// The fields that were given, with the seed if a person chose one.
    pub(crate) fn fields(&self, model: &ModelConfig) -> Map<String, Value> {
        let stop = (!self.stop.is_empty()).then(|| Value::from(self.stop.clone()));
        let fields = [
            ("max_tokens", self.max_tokens.map(Value::from)),
            ("temperature", self.temperature.map(decimal)),
            ("top_p", self.top_p.map(decimal)),
            ("top_k", self.top_k.map(Value::from)),
            ("min_p", self.min_p.map(decimal)),
            ("repetition_penalty", self.repetition_penalty.map(decimal)),
            ("stop", stop),
            ("seed", model.seed.value.map(Value::from)),
        ];
        fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }
}

/// The number as it was typed: 0.7, not 0.699999988. Infinities become null, which every field refuses or ignores.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
