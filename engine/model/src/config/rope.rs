//! Rotary settings of `config.json`: `rope_theta` and `rope_scaling` (old), or `rope_parameters` (transformers 5).

use kvasir_backend::RopeStyle;
use serde_json::Value;

use super::fields::Fields;
use super::limits;
use crate::error::ModelError;
use crate::rope::{RopeConfig, RopeScaling};

/// transformers' default base.
pub(super) const DEFAULT_THETA: f64 = 10_000.0;
const SUPPORTED_KINDS: &str = "default, linear, dynamic, llama3, yarn, longrope";

/// The position encoding and the longest sequence it is good for.
pub(super) fn read(
    fields: &mut Fields<'_>,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<(RopeConfig, usize), ModelError> {
    let outer_theta = theta(fields)?;
    let outer_partial = partial(fields)?;
    let outer_original = fields.optional_count("original_max_position_embeddings", limits::POSITIONS)?;
    fields.only("rope_interleaved", "false", |value| value == &Value::Bool(false))?;
    let new = fields.optional_object("rope_parameters")?;
    let old = fields.optional_object("rope_scaling")?;
    // `rope_scaling` wins if both are there, as in transformers.
    let Some(mut scaling) = old.or(new) else {
        let rope = RopeConfig {
            theta: outer_theta.unwrap_or(DEFAULT_THETA),
            rotary_dim: rotary_dim(head_dim, outer_partial),
            style: RopeStyle::Halves,
            scaling: RopeScaling::Default,
        };
        return Ok((rope, max_position_embeddings));
    };
    let theta = theta(&mut scaling)?.or(outer_theta).unwrap_or(DEFAULT_THETA);
    let rotary_dim = rotary_dim(head_dim, partial(&mut scaling)?.or(outer_partial));
    let inner_original = scaling.optional_count("original_max_position_embeddings", limits::POSITIONS)?;
    let original = outer_original
        .or(inner_original)
        .unwrap_or(max_position_embeddings);
    let lengths = Lengths {
        original,
        max_position_embeddings,
    };
    let (kind, max_positions) = read_kind(&mut scaling, rotary_dim, lengths)?;
    scaling.finish(&[])?;
    Ok((
        RopeConfig {
            theta,
            rotary_dim,
            style: RopeStyle::Halves,
            scaling: kind,
        },
        max_positions,
    ))
}

#[derive(Clone, Copy)]
struct Lengths {
    original: usize,
    max_position_embeddings: usize,
}

/// The kind, and the longest sequence. The latter follows vLLM: linear and YaRN reach `factor` times their original
/// length, whatever `max_position_embeddings` says; the others are made for exactly that.
fn read_kind(
    fields: &mut Fields<'_>,
    rotary_dim: usize,
    lengths: Lengths,
) -> Result<(RopeScaling, usize), ModelError> {
    let old_name = fields.optional_text("type")?;
    let kind = fields
        .optional_text("rope_type")?
        .or(old_name)
        .unwrap_or("default");
    let max_len = lengths.max_position_embeddings;
    match kind {
        // `mrope` and the like differ; only these are known.
        "default" => Ok((RopeScaling::Default, max_len)),
        "linear" => {
            let factor = factor(fields)?;
            Ok((RopeScaling::Linear { factor }, extended(max_len, factor)))
        }
        "dynamic" => factor(fields).map(|_| (RopeScaling::Dynamic, max_len)),
        "llama3" => Ok((read_llama3(fields, lengths.original)?, max_len)),
        "yarn" => {
            let (yarn, factor) = read_yarn(fields, lengths)?;
            Ok((yarn, extended(lengths.original, factor).max(max_len)))
        }
        "longrope" => Ok((read_longrope(fields, rotary_dim, lengths)?, max_len)),
        other => Err(fields.unsupported("rope_type", &Value::from(other), SUPPORTED_KINDS)),
    }
}

fn read_llama3(fields: &mut Fields<'_>, original: usize) -> Result<RopeScaling, ModelError> {
    let low_freq_factor = fields.positive("low_freq_factor")?;
    let above_low = |number: f64| number > low_freq_factor;
    Ok(RopeScaling::Llama3 {
        factor: factor(fields)?,
        low_freq_factor,
        high_freq_factor: fields.number("high_freq_factor", "greater than low_freq_factor", above_low)?,
        original_len: original as f64,
    })
}

fn read_yarn(fields: &mut Fields<'_>, lengths: Lengths) -> Result<(RopeScaling, f64), ModelError> {
    let implied = lengths.max_position_embeddings as f64 / lengths.original as f64;
    let factor = optional_factor(fields)?.unwrap_or(implied);
    let mscale = fields
        .optional_number("mscale", "at least 0", |number| number >= 0.0)?
        .filter(|m| *m > 0.0);
    let all_dim = fields
        .optional_number("mscale_all_dim", "at least 0", |number| number >= 0.0)?
        .filter(|m| *m > 0.0);
    let attention_factor =
        fields
            .optional_positive("attention_factor")?
            .unwrap_or_else(|| match (mscale, all_dim) {
                (Some(mscale), Some(all_dim)) => yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim),
                _ => yarn_mscale(factor, 1.0),
            });
    let yarn = RopeScaling::Yarn {
        factor,
        original_len: lengths.original as f64,
        attention_factor,
        beta_fast: fields.optional_positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: fields.optional_positive("beta_slow")?.unwrap_or(1.0),
        truncate: fields.flag("truncate", true)?,
    };
    Ok((yarn, factor))
}

fn read_longrope(
    fields: &mut Fields<'_>,
    rotary_dim: usize,
    lengths: Lengths,
) -> Result<RopeScaling, ModelError> {
    let implied = lengths.max_position_embeddings as f64 / lengths.original as f64;
    let factor = optional_factor(fields)?.unwrap_or(implied);
    let suggested = if factor <= 1.0 || lengths.original < 2 {
        1.0
    } else {
        (1.0 + factor.ln() / (lengths.original as f64).ln()).sqrt()
    };
    Ok(RopeScaling::LongRope {
        short_factors: fields.positive_list("short_factor", rotary_dim / 2)?,
        long_factors: fields.positive_list("long_factor", rotary_dim / 2)?,
        original_len: lengths.original,
        attention_factor: fields.optional_positive("attention_factor")?.unwrap_or(suggested),
    })
}

/// The attention factor that the YaRN paper suggests.
pub(super) fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}

/// `factor` times the length, within the limit.
pub(super) fn extended(len: usize, factor: f64) -> usize {
    ((len as f64 * factor) as usize).min(limits::POSITIONS)
}

fn theta(fields: &mut Fields<'_>) -> Result<Option<f64>, ModelError> {
    fields.optional_number("rope_theta", "greater than 1", |theta| theta > 1.0)
}

fn partial(fields: &mut Fields<'_>) -> Result<Option<f64>, ModelError> {
    let range = "greater than 0, at most 1";
    fields.optional_number("partial_rotary_factor", range, |part| part > 0.0 && part <= 1.0)
}

fn rotary_dim(head_dim: usize, partial: Option<f64>) -> usize {
    partial.map_or(head_dim, |part| (head_dim as f64 * part) as usize)
}

fn factor(fields: &mut Fields<'_>) -> Result<f64, ModelError> {
    fields.number("factor", "at least 1", |factor| factor >= 1.0)
}

fn optional_factor(fields: &mut Fields<'_>) -> Result<Option<f64>, ModelError> {
    fields.optional_number("factor", "at least 1", |factor| factor >= 1.0)
}
