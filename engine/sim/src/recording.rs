//! Requests that somebody recorded: JSON lines, or the inputs of a scheduler.
//!
//! The lines are those of the Mooncake traces, which `vllm bench serve` and others replay too: `timestamp` in milliseconds, `input_length`
//! and `output_length` in tokens, and `hash_ids`, numbers that stand for blocks of the prompt (of 512 tokens there) together with all that
//! precedes them: requests whose ids begin alike share as many blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use kvasir_cache_key::CacheRoot;
use kvasir_engine_core::{RecordedRequest, ReplayError, TenantId, TokenId, Trace};
use serde::Deserialize;

use crate::time::{MAX_SECONDS, SimTime};
use crate::workload::MAX_REQUESTS;

/// Requests with their times, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    pub(crate) rows: Vec<Row>,
    /// Of all rows, each at most 2^31 - 2.
    pub(crate) block_ids: Vec<TokenId>,
    /// Tokens that an id stands for.
    pub(crate) block_tokens: u32,
    num_refused: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) at: SimTime,
    pub(crate) num_output: u32,
    pub(crate) priority: i64,
    pub(crate) tenant: TenantId,
    pub(crate) weight: u32,
    pub(crate) prompt: Prompt,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Nothing is shared with others.
    Length(u32),
    /// What is shared with others is known by blocks.
    Blocks { len: u32, ids: Range<usize> },
    /// All of it is known, and what was answered.
    Tokens {
        tokens: Arc<[TokenId]>,
        outputs: Arc<[TokenId]>,
        root: CacheRoot,
    },
}

/// A recording that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// Not JSON, or a field is missing.
    #[error(
        "line {line} is no request: {source}; a request is {{\"timestamp\":1500,\"input_length\":800,\"output_length\":120}}"
    )]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A value that can't be.
    #[error("line {line}: {name} is {value}; it must be a number from {min} to {max}")]
    OutOfRange {
        /// Counted from 1.
        line: usize,
        /// Which field.
        name: &'static str,
        /// What was given.
        value: f64,
        /// Smallest one.
        min: f64,
        /// Largest one.
        max: f64,
    },
    /// More blocks than the prompt has tokens for.
    #[error(
        "line {line}: {ids} hash_ids of {block_tokens} tokens each are more than the input_length of {len}; is the trace's block size another one?"
    )]
    TooManyBlocks {
        /// Counted from 1.
        line: usize,
        /// Ids given.
        ids: usize,
        /// Tokens of a block.
        block_tokens: u32,
        /// The prompt's tokens.
        len: u32,
    },
    /// A speed that is no speed.
    #[error("the speed-up is {value}; it must be a number from 1e-6 to 1e6")]
    Speed {
        /// What was given.
        value: f64,
    },
    /// A block size that can't be.
    #[error("the block size of the trace is {value} tokens; it must be from 1 to 1048576")]
    BlockTokens {
        /// What was given.
        value: u32,
    },
    /// More requests than can be told apart.
    #[error("the recording has more than {MAX_REQUESTS} requests")]
    TooMany,
    /// A scheduler's recording that can't be run again, so that nobody knows what it answered.
    #[error("the scheduler's recording can't be replayed: {0}")]
    Replay(#[source] ReplayError),
}

/// A prompt longer than this is a slip of the pen: a million tokens and a bit.
const MAX_TOKENS: u32 = 1 << 20;

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "created_time")]
    timestamp: f64,
    #[serde(alias = "input_tokens", alias = "prompt_length")]
    input_length: f64,
    #[serde(alias = "output_tokens", alias = "response_length")]
    output_length: f64,
    #[serde(default)]
    hash_ids: Vec<BlockName>,
    #[serde(default)]
    priority: i64,
}

#[derive(Deserialize, Eq, Ord, PartialEq, PartialOrd)]
#[serde(untagged)]
enum BlockName {
    Number(u64),
    Text(String),
}

impl Recording {
    /// Reads JSON lines; empty ones are skipped. The first request comes at the start, the others at their distance from it, and nobody has to
    /// have sorted them. `block_tokens` is how many tokens an entry of `hash_ids` stands for.
    ///
    /// # Errors
    /// The first line that is no request, with the value and its limit.
    pub fn from_lines(text: &str, block_tokens: u32) -> Result<Self, RecordingError> {
        if !(1..=MAX_TOKENS).contains(&block_tokens) {
            return Err(RecordingError::BlockTokens { value: block_tokens });
        }
        let mut recording = Self {
            block_tokens,
            ..Self::default()
        };
        let mut names = BTreeMap::new();
        for (index, content) in text.lines().enumerate() {
            if content.trim().is_empty() {
                continue;
            }
            let line = index + 1;
            let parsed =
                serde_json::from_str(content).map_err(|source| RecordingError::Syntax { line, source })?;
            recording.push_line(parsed, line, &mut names)?;
        }
        recording.finish()
    }

    /// The requests that a recorded scheduler took, with the prompts and the answers of then; [`Recording::num_refused`] says how many it
    /// refused. Nobody knows what those would have been answered. The children of one request come one by one.
    ///
    /// # Errors
    /// If the recording can't be replayed.
    pub fn from_trace(trace: &Trace) -> Result<Self, RecordingError> {
        let submissions = trace.requests().map_err(RecordingError::Replay)?;
        let num_submitted = submissions.len();
        let taken = submissions
            .into_iter()
            .filter(|submission| !submission.is_refused);
        let rows = taken.map(|submission| {
            let RecordedRequest {
                now,
                request,
                options,
                is_refused: _,
                output,
            } = submission;
            Row {
                at: SimTime(now.0.saturating_mul(1000)),
                // What hasn't answered by the recording's end is taken to have wanted what it asked for.
                num_output: if output.is_empty() {
                    request.stop.max_tokens
                } else {
                    output.len() as u32
                },
                priority: request.priority,
                tenant: options.tenant,
                weight: options.weight,
                prompt: Prompt::Tokens {
                    tokens: request.prompt,
                    outputs: output.into(),
                    root: request.cache_root,
                },
            }
        });
        let rows: Vec<Row> = rows.collect();
        Self {
            num_refused: num_submitted - rows.len(),
            rows,
            block_ids: Vec::new(),
            block_tokens: 1,
        }
        .finish()
    }

    /// The same requests, so many times as fast.
    ///
    /// # Errors
    /// If the factor is no speed.
    pub fn sped_up(mut self, factor: f64) -> Result<Self, RecordingError> {
        if !(1e-6..=1e6).contains(&factor) {
            return Err(RecordingError::Speed { value: factor });
        }
        for row in &mut self.rows {
            row.at = SimTime::from_seconds(row.at.as_seconds() / factor);
        }
        Ok(self)
    }

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Requests that the recorded scheduler refused, which aren't in it.
    pub fn num_refused(&self) -> usize {
        self.num_refused
    }

    fn push_line(
        &mut self,
        parsed: Line,
        line: usize,
        names: &mut BTreeMap<BlockName, TokenId>,
    ) -> Result<(), RecordingError> {
        let Line {
            timestamp,
            input_length,
            output_length,
            hash_ids,
            priority,
        } = parsed;
        let in_range = |name, value: f64, min, max| {
            if (min..=max).contains(&value) {
                return Ok(value);
            }
            Err(RecordingError::OutOfRange {
                line,
                name,
                value,
                min,
                max,
            })
        };
        let millis = in_range("timestamp", timestamp, 0.0, MAX_SECONDS * 1000.0)?;
        let len = in_range("input_length", input_length, 1.0, f64::from(MAX_TOKENS))? as u32;
        let num_output = in_range("output_length", output_length, 1.0, f64::from(MAX_TOKENS))? as u32;
        let max_ids = len.div_ceil(self.block_tokens) as usize;
        if hash_ids.len() > max_ids {
            return Err(RecordingError::TooManyBlocks {
                line,
                ids: hash_ids.len(),
                block_tokens: self.block_tokens,
                len,
            });
        }
        let first = self.block_ids.len();
        for name in hash_ids {
            let next = names.len() as TokenId;
            self.block_ids.push(*names.entry(name).or_insert(next));
        }
        if names.len() as u64 >= MAX_REQUESTS {
            return Err(RecordingError::TooMany);
        }
        let ids = first..self.block_ids.len();
        self.rows.push(Row {
            at: SimTime::from_seconds(millis / 1000.0),
            num_output,
            priority,
            tenant: TenantId(0),
            weight: 1,
            prompt: if ids.is_empty() {
                Prompt::Length(len)
            } else {
                Prompt::Blocks { len, ids }
            },
        });
        Ok(())
    }

    fn finish(mut self) -> Result<Self, RecordingError> {
        if self.rows.len() as u64 > MAX_REQUESTS {
            return Err(RecordingError::TooMany);
        }
        self.rows.sort_by_key(|row| row.at);
        let start = self.rows.first().map_or(SimTime(0), |row| row.at);
        for row in &mut self.rows {
            row.at = SimTime(row.at.0 - start.0);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_sorted_and_start_at_zero() {
        let text = r#"{"timestamp": 5000, "input_length": 600, "output_length": 10, "hash_ids": [1, 2]}
            {"created_time": 4000, "input_tokens": 3, "output_tokens": 1, "priority": -2, "other": true}

            {"timestamp": 4500.5, "input_length": 512, "output_length": 9, "hash_ids": ["1"]}"#;
        let recording = Recording::from_lines(text, 512).unwrap();
        let times: Vec<f64> = recording.rows.iter().map(|row| row.at.as_seconds()).collect();
        assert_eq!(times, [0.0, 0.5005, 1.0]);
        assert_eq!(recording.rows[0].priority, -2);
        assert_eq!(recording.rows[0].prompt, Prompt::Length(3));
        assert_eq!(recording.rows[2].prompt, Prompt::Blocks { len: 600, ids: 0..2 });
        assert_eq!(
            recording.block_ids.len(),
            3,
            "the number 1 and the text 1 are two names"
        );
        let fast = recording.sped_up(2.0).unwrap();
        assert_eq!(fast.rows[2].at, SimTime::from_seconds(0.5));
    }

    #[test]
    fn a_bad_line_is_named_with_its_value_and_limit() {
        let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [1, 2]}"#;
        let check = |from: &str, to: &str, part: &str| {
            let text = format!("{good}\n{}", good.replace(from, to));
            let error = Recording::from_lines(&text, 512).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(part), "{error}");
        };
        check(
            "600",
            "0",
            "input_length is 0; it must be a number from 1 to 1048576",
        );
        check("600", "1e300", "input_length is 1");
        check("10", "-4", "output_length is -4");
        check("\"timestamp\": 0", "\"timestamp\": -1", "timestamp is -1");
        check("[1, 2]", "[1, 2, 3]", "3 hash_ids of 512 tokens each");
        check("\"output_length\": 10,", "", "output_length");
        check("{", "", "no request");
        assert!(matches!(
            Recording::from_lines(good, 0),
            Err(RecordingError::BlockTokens { value: 0 })
        ));
        for factor in [0.0, -1.0, f64::NAN, 1e9] {
            let recording = Recording::from_lines(good, 512).unwrap();
            assert!(matches!(
                recording.sped_up(factor),
                Err(RecordingError::Speed { .. })
            ));
        }
    }
}
