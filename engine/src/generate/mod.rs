//! Batch generation: rows in, rows out, as many at once as the engine takes.

mod input;
mod output;
mod row;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::future::Future;
use std::io::Write;

use futures::{Stream, StreamExt};

pub(crate) use input::{Input, open_input};
pub(crate) use output::{Done, open as open_output};
pub(crate) use row::{Format, RowRules};

use crate::answerer::{Answer, AnswerError, Answerer, TokenUsage};
use row::Row;

/// What a run did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Summary {
    /// Rows that were answered now.
    pub(crate) answered: u64,
    /// Rows that got an error line.
    pub(crate) failed: u64,
    /// Rows that an earlier run had finished.
    pub(crate) skipped: u64,
    /// Tokens of the answered rows.
    pub(crate) usage: TokenUsage,
    /// Whether it was told to stop before the end.
    pub(crate) interrupted: bool,
}

/// Why a run can't go on. The rows written so far stay.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The output can't be written.
    #[error("can't write the output: {0}")]
    Write(#[source] std::io::Error),
    /// The input can't be read.
    #[error("can't read the input: {0}")]
    Read(#[source] std::io::Error),
    /// Two rows have the same id, so a later run couldn't tell them apart.
    #[error(
        "rows {first} and {second} both have the id {id:?}; ids must be unique, rows without one are told apart by number"
    )]
    DuplicateId {
        /// The name.
        id: String,
        /// An index.
        first: u64,
        /// An index.
        second: u64,
    },
    /// The output has the answer to another question under this row's id or number.
    #[error(
        "the output already has row {index}{}, but of another question: the input, the model or a sampling flag changed \
         since; give another --output, or --overwrite",
        id.as_ref().map_or_else(String::new, |id| format!(" (id {id:?})"))
    )]
    Changed {
        /// Which row.
        index: u64,
        /// Its name.
        id: Option<String>,
    },
    /// The engine can't answer any more.
    #[error("the engine failed at row {index}: {error}; run the same command again to continue")]
    Engine {
        /// At which row.
        index: u64,
        /// What it said.
        error: AnswerError,
    },
}

/// Answers rows, at most `concurrency` at once, and writes each as it is done, until the input ends or `stop` resolves.
/// Rows that can't be answered become error lines; a failing engine ends the run instead, so that those rows are tried again later.
///
/// # Errors
/// If input or output fail, or the engine does.
pub(crate) async fn run(
    lines: impl Stream<Item = std::io::Result<Vec<u8>>> + Send,
    plan: RunPlan<'_>,
    output: &mut dyn Write,
    stop: impl Future<Output = ()>,
) -> Result<Summary, RunError> {
    let RunPlan {
        rules,
        done,
        answerer,
        concurrency,
        on_row,
    } = plan;
    let mut summary = Summary::default();
    let mut ids = Ids::default();
    let rows = lines
        .filter(|line| std::future::ready(line.as_ref().map_or(true, |line| !line.trim_ascii().is_empty())))
        .enumerate()
        .map(|(index, line)| {
            line.map(|line| rules.row(index as u64, &line))
                .map_err(RunError::Read)
        })
        .map(|row| row.and_then(|row| ids.check(row)));
    let answers = rows
        .map(|row| async move {
            match row {
                Ok(row) => match done.digest(&row) {
                    None => Ok(Outcome::Answered(answer(answerer, row).await)),
                    Some(digest) if digest == row.request_digest => Ok(Outcome::Skipped),
                    Some(_) => Err(RunError::Changed {
                        index: row.index,
                        id: row.id,
                    }),
                },
                Err(error) => Err(error),
            }
        })
        .buffer_unordered(concurrency.max(1));
    let mut answers = std::pin::pin!(answers);
    let mut stop = std::pin::pin!(stop);
    loop {
        let next = tokio::select! {
            biased;
            () = &mut stop => {
                summary.interrupted = true;
                return Ok(summary);
            }
            next = answers.next() => next,
        };
        let Some(outcome) = next else { return Ok(summary) };
        match outcome? {
            Outcome::Skipped => summary.skipped += 1,
            Outcome::Answered((row, result)) => {
                summary.take(&row, &result)?;
                output::write_row(output, &row, &result).map_err(RunError::Write)?;
            }
        }
        on_row(&summary);
    }
}

/// What a run works with.
pub(crate) struct RunPlan<'a> {
    /// How lines become requests.
    pub(crate) rules: &'a RowRules,
    /// Rows to skip.
    pub(crate) done: &'a Done,
    /// Who answers.
    pub(crate) answerer: &'a dyn Answerer,
    /// Rows in work at the same time.
    pub(crate) concurrency: usize,
    /// Told after each row.
    pub(crate) on_row: &'a (dyn Fn(&Summary) + Send + Sync),
}

enum Outcome {
    Skipped,
    Answered((Row, Result<Answer, AnswerError>)),
}

async fn answer(answerer: &dyn Answerer, mut row: Row) -> (Row, Result<Answer, AnswerError>) {
    // The request isn't needed for the output line, so it is moved out rather than copied.
    let placeholder = Err(AnswerError::invalid("row", "already taken"));
    let result = match std::mem::replace(&mut row.request, placeholder) {
        Ok(request) => answerer.answer(request).await,
        Err(error) => Err(error),
    };
    (row, result)
}

impl Summary {
    fn take(&mut self, row: &Row, result: &Result<Answer, AnswerError>) -> Result<(), RunError> {
        match result {
            Ok(answer) => {
                self.answered += 1;
                self.usage.prompt_tokens += answer.usage.prompt_tokens;
                self.usage.completion_tokens += answer.usage.completion_tokens;
            }
            Err(error) if error.is_final() => self.failed += 1,
            Err(error) => {
                return Err(RunError::Engine {
                    index: row.index,
                    error: error.clone(),
                });
            }
        }
        Ok(())
    }
}

/// The ids so far, with the rows that have them.
#[derive(Default)]
struct Ids {
    seen: BTreeSet<(String, u64)>,
}

impl Ids {
    fn check(&mut self, row: Row) -> Result<Row, RunError> {
        if let Some(id) = &row.id {
            let earlier = self.seen.range((id.clone(), 0)..=(id.clone(), u64::MAX)).next();
            if let Some((id, first)) = earlier {
                return Err(RunError::DuplicateId {
                    id: id.clone(),
                    first: *first,
                    second: row.index,
                });
            }
            self.seen.insert((id.clone(), row.index));
        }
        Ok(row)
    }
}
