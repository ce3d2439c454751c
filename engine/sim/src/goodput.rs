//! Which requests count.
//!
//! **Goodput** is the number of requests that completed inside the window and met every objective, divided by the window's seconds. Neither
//! arrivals nor a share of the completions stand in it: a share of those that completed, times the rate of those that arrived, makes up
//! requests that nobody was served.
//!
//! Times of one request, on the simulated server (there is no network and no text):
//!
//! - **TTFT**: from its arrival to the end of the step that gave its first token; time in the queue is part of it.
//! - **ITL**: the gaps between the ends of the steps that gave its consecutive tokens. A request's *p99 ITL* is the nearest rank: the smallest of its
//!   gaps that at least 99 % of its gaps don't exceed; with fewer than 100 gaps that is the longest one.
//! - **TPOT**: from its first to its last token, divided by its tokens less one.
//! - **E2EL**: from its arrival to its last token.
//!
//! A request of one token has no gaps: it meets any objective for ITL and TPOT, as in vLLM, and has no place in their percentiles. Reports
//! say how many of those there were.
//!
//! Sources: *DistServe* (2024) for goodput; vLLM's `--goodput` for the names of the objectives, which lacks ITL.

use std::fmt;

use crate::workload::Shown;

/// What a request must meet to count. Nothing is asked by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Objectives {
    /// Longest time to the first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Longest 99th percentile of the request's gaps, in milliseconds.
    pub itl_ms: Option<f64>,
    /// Longest mean time per token after the first, in milliseconds.
    pub tpot_ms: Option<f64>,
    /// Longest time to the last token, in milliseconds.
    pub e2el_ms: Option<f64>,
}

/// An objective that can't be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ObjectiveError {
    /// Nothing that is measured.
    #[error("{text:?} is no objective; write ttft:MS, itl:MS, tpot:MS or e2el:MS, for example ttft:500")]
    Syntax {
        /// What was given.
        text: String,
    },
    /// No time.
    #[error("the objective {name} is {} ms; it must be above 0 and at most 1e9 ms", Shown(*value))]
    OutOfRange {
        /// Which one.
        name: String,
        /// What was given.
        value: f64,
    },
    /// Given twice.
    #[error("the objective {name} is given twice; which one is meant?")]
    Twice {
        /// Which one.
        name: String,
    },
}

/// What was measured of a request that completed, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// To the first token.
    pub ttft: u64,
    /// 99th percentile of the gaps, if there are gaps.
    pub itl_p99: Option<u64>,
    /// Mean time per token after the first, if there is one.
    pub tpot: Option<f64>,
    /// To the last token.
    pub e2el: u64,
}

impl Objectives {
    /// Reads objectives such as `ttft:500`.
    ///
    /// # Errors
    /// The first one that can't be used.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, ObjectiveError> {
        let mut objectives = Self::default();
        for text in texts {
            let syntax = || ObjectiveError::Syntax {
                text: text.to_owned(),
            };
            let (name, value) = text.split_once(':').ok_or_else(syntax)?;
            let place = match name {
                "ttft" => &mut objectives.ttft_ms,
                "itl" => &mut objectives.itl_ms,
                "tpot" => &mut objectives.tpot_ms,
                "e2el" => &mut objectives.e2el_ms,
                _ => return Err(syntax()),
            };
            let value: f64 = value.parse().map_err(|_| syntax())?;
            let name = name.to_owned();
            if !(value > 0.0 && value <= 1e9) {
                return Err(ObjectiveError::OutOfRange { name, value });
            }
            if place.replace(value).is_some() {
                return Err(ObjectiveError::Twice { name });
            }
        }
        Ok(objectives)
    }

    /// Whether a request that completed met all of them.
    pub fn are_met(&self, times: &Times) -> bool {
        let holds = |limit: Option<f64>, micros: Option<f64>| match (limit, micros) {
            (Some(limit), Some(micros)) => micros <= limit * 1000.0,
            _ => true,
        };
        holds(self.ttft_ms, Some(times.ttft as f64))
            && holds(self.itl_ms, times.itl_p99.map(|micros| micros as f64))
            && holds(self.tpot_ms, times.tpot)
            && holds(self.e2el_ms, Some(times.e2el as f64))
    }
}

/// What [`Objectives::parse`] reads, separated by spaces.
impl fmt::Display for Objectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("ttft", self.ttft_ms),
            ("itl", self.itl_ms),
            ("tpot", self.tpot_ms),
            ("e2el", self.e2el_ms),
        ];
        let mut space = "";
        for (name, value) in parts {
            if let Some(value) = value {
                write!(f, "{space}{name}:{value}")?;
                space = " ";
            }
        }
        if space.is_empty() {
            f.write_str("none")
        } else {
            Ok(())
        }
    }
}

/// Passing completions in a window, per second. A window without length has none.
pub fn goodput(num_passed: u64, window_seconds: f64) -> f64 {
    if window_seconds > 0.0 {
        num_passed as f64 / window_seconds
    } else {
        0.0
    }
}

/// The 99th percentile of a request's gaps by nearest rank; nothing without gaps. Reorders them.
pub(crate) fn p99(gaps: &mut [u32]) -> Option<u32> {
    if gaps.is_empty() {
        return None;
    }
    // Whole numbers: 0.99 isn't a binary fraction, and 99 % of 100 gaps must be 99 of them.
    let rank = (gaps.len() * 99).div_ceil(100);
    let (_, gap, _) = gaps.select_nth_unstable(rank - 1);
    Some(*gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_passing_completions_per_second_of_the_window() {
        // The founding document's example: offered, completed and passed in 100 s.
        let found = [(1000_u64, 600_u64, 550_u64), (800, 780, 752)].map(|(offered, completed, passed)| {
            let wrong = (offered as f64 / 100.0) * (passed as f64 / completed as f64);
            (format!("{:.2}", goodput(passed, 100.0)), format!("{wrong:.2}"))
        });
        assert_eq!(found[0], ("5.50".to_owned(), "9.17".to_owned()));
        assert_eq!(found[1], ("7.52".to_owned(), "7.71".to_owned()));
        assert_eq!(goodput(0, 100.0), 0.0);
        assert_eq!(goodput(1, 0.0), 0.0);
    }

    #[test]
    fn the_p99_of_gaps_is_the_nearest_rank() {
        let p99_of = |count: u32| {
            let mut gaps: Vec<u32> = (1..=count).rev().collect();
            p99(&mut gaps)
        };
        assert_eq!(
            [0, 1, 99, 100, 101, 200].map(p99_of),
            [None, Some(1), Some(99), Some(99), Some(100), Some(198)]
        );
    }

    #[test]
    fn every_objective_must_be_met_and_a_limit_is_met_exactly() {
        let times = Times {
            ttft: 500_000,
            itl_p99: Some(60_000),
            tpot: Some(50_000.5),
            e2el: 7_000_000,
        };
        let met = |texts: &[&str]| Objectives::parse(texts.iter().copied()).unwrap().are_met(&times);
        assert!(met(&[]));
        assert!(met(&["ttft:500", "itl:60", "tpot:50.001", "e2el:7000"]));
        assert!(!met(&["ttft:499.9", "itl:60"]));
        assert!(!met(&["ttft:500", "itl:59.9"]));
        assert!(!met(&["tpot:50"]));
        assert!(!met(&["e2el:6999"]));
    }

    #[test]
    fn a_request_of_one_token_meets_any_objective_for_gaps() {
        let times = Times {
            ttft: 1000,
            itl_p99: None,
            tpot: None,
            e2el: 1000,
        };
        assert!(
            Objectives::parse(["itl:0.001", "tpot:0.001", "ttft:1"])
                .unwrap()
                .are_met(&times)
        );
    }

    #[test]
    fn objectives_that_can_not_be_used_are_refused() {
        let error = |texts: &[&str]| Objectives::parse(texts.iter().copied()).unwrap_err().to_string();
        assert!(error(&["ttft"]).contains("ttft:MS"));
        assert!(error(&["p99:5"]).contains("p99:5"));
        assert!(error(&["itl:x"]).contains("itl:x"));
        assert!(error(&["itl:NaN"]).contains("NaN ms"));
        assert!(error(&["itl:0"]).contains("is 0 ms"));
        assert!(error(&["itl:1e10"]).contains("at most 1e9"));
        assert!(error(&["itl:1", "itl:2"]).contains("twice"));
    }
}
