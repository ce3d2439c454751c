//! Measured steps, one JSON object a line.

use serde::{Deserialize, Serialize};

use crate::cost::StepShape;

/// One step that a server or a calibration ran. Fields beside these four are ignored.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct StepRecord {
    /// Input tokens of prompts.
    pub prefill_tokens: u64,
    /// Sequences that computed the token they sampled last.
    pub decode_seqs: u64,
    /// KV positions that attention read: a token at position `p` reads `p + 1`.
    pub context_tokens: u64,
    /// From the start of the step to its tokens.
    pub seconds: f64,
}

/// A line that is no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON, or a field is missing.
    #[error(
        "line {line} is no step record: {source}; a record is {{\"prefill_tokens\":64,\"decode_seqs\":2,\"context_tokens\":2400,\"seconds\":0.12}}"
    )]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// No time for a step.
    #[error("line {line}: seconds is {seconds}; a step takes more than 0 and at most 3600 s")]
    Seconds {
        /// Counted from 1.
        line: usize,
        /// What was given.
        seconds: f64,
    },
    /// Nothing was computed.
    #[error("line {line}: a step needs at least one prefill token or decoding sequence")]
    Empty {
        /// Counted from 1.
        line: usize,
    },
}

impl StepRecord {
    /// What the time is explained by.
    pub fn shape(&self) -> StepShape {
        StepShape {
            prefill_tokens: self.prefill_tokens,
            decode_seqs: self.decode_seqs,
            context_tokens: self.context_tokens,
        }
    }

    /// Reads a text of records; empty lines are skipped.
    ///
    /// # Errors
    /// The first line that is no record.
    pub fn parse_lines(text: &str) -> Result<Vec<Self>, RecordError> {
        let mut records = Vec::new();
        for (index, content) in text.lines().enumerate() {
            let line = index + 1;
            if content.trim().is_empty() {
                continue;
            }
            let record: Self =
                serde_json::from_str(content).map_err(|source| RecordError::Syntax { line, source })?;
            if !(record.seconds > 0.0 && record.seconds <= 3600.0) {
                return Err(RecordError::Seconds {
                    line,
                    seconds: record.seconds,
                });
            }
            if record.prefill_tokens == 0 && record.decode_seqs == 0 {
                return Err(RecordError::Empty { line });
            }
            records.push(record);
        }
        Ok(records)
    }

    /// As one line of JSON, without its end.
    pub fn to_line(&self) -> String {
        let Self {
            prefill_tokens,
            decode_seqs,
            context_tokens,
            seconds,
        } = self;
        format!(
            "{{\"prefill_tokens\":{prefill_tokens},\"decode_seqs\":{decode_seqs},\"context_tokens\":{context_tokens},\
             \"seconds\":{seconds:.6}}}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_what_it_writes_and_ignores_other_fields() {
        let record = StepRecord {
            prefill_tokens: 64,
            decode_seqs: 2,
            context_tokens: 2400,
            seconds: 0.125,
        };
        let with_more = record.to_line().replace("{\"pre", "{\"step\":7,\"pre");
        let text = format!("{}\n\n{with_more}\n", record.to_line());
        assert_eq!(StepRecord::parse_lines(&text).unwrap(), [record, record]);
    }

    #[test]
    fn a_bad_line_is_named_with_its_number_and_value() {
        let good = r#"{"prefill_tokens":1,"decode_seqs":0,"context_tokens":1,"seconds":0.1}"#;
        let check = |bad: &str, part: &str| {
            let error = StepRecord::parse_lines(&format!("{good}\n{bad}"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("line 2") && error.contains(part), "{error}");
        };
        check("nonsense", "no step record");
        check(&good.replace("0.1", "0"), "seconds is 0");
        check(&good.replace("0.1", "1e300"), "seconds is 1");
        check(
            &good.replace("prefill_tokens\":1", "prefill_tokens\":0"),
            "at least one",
        );
        check(&good.replace(",\"seconds\":0.1", ""), "seconds");
        check(
            &good.replace("prefill_tokens\":1", "prefill_tokens\":-1"),
            "no step record",
        );
    }
}
