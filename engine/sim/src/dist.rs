//! Distributions of lengths and pauses, as people write them on a command line.

use std::fmt;
use std::str::FromStr;

use crate::rng::Rng;
use crate::time::MAX_SECONDS;
use crate::workload::Shown;

/// A length in tokens, at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// `256`.
    Fixed(u32),
    /// `uniform:100:400`: each length from the first to the last is equally likely.
    Uniform {
        /// Shortest.
        min: u32,
        /// Longest.
        max: u32,
    },
    /// `lognormal:200:0.8` or `lognormal:200:0.8:4000`: half are below the median; the longest is cut off.
    LogNormal {
        /// In tokens.
        median: f64,
        /// Deviation of the logarithm.
        sigma: f64,
        /// Longest, if it isn't the limit of what is measured.
        max: Option<u32>,
    },
    /// `exponential:200` or `exponential:200:4000`.
    Exponential {
        /// In tokens.
        mean: f64,
        /// Longest, if it isn't the limit of what is measured.
        max: Option<u32>,
    },
}

/// A pause in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pause {
    /// `2.5`.
    Fixed(f64),
    /// `exponential:2.5`.
    Exponential(f64),
}

/// A distribution that can't be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DistError {
    /// No length.
    #[error(
        "{text:?} is no length; write a number of tokens, uniform:MIN:MAX, lognormal:MEDIAN:SIGMA[:MAX] or exponential:MEAN[:MAX]"
    )]
    Lengths {
        /// What was given.
        text: String,
    },
    /// No pause.
    #[error("{text:?} is no pause; write a number of seconds or exponential:MEAN")]
    Pause {
        /// What was given.
        text: String,
    },
    /// A length outside of its range.
    #[error("{name} is {}{unit}; it must be from {min} to {max}", Shown(*value))]
    OutOfRange {
        /// Which length.
        name: String,
        /// What was given.
        value: f64,
        /// Of what, with a space in front; empty if the name says it.
        unit: &'static str,
        /// Smallest one.
        min: u32,
        /// Largest one.
        max: u32,
    },
    /// A range that ends before it begins.
    #[error("{name} ranges from {min} to {max}; the first must not be above the second")]
    Backwards {
        /// Which length.
        name: String,
        /// Where it begins.
        min: u32,
        /// Where it ends.
        max: u32,
    },
    /// A deviation outside of its range.
    #[error("the sigma of {name} is {}; it must be a number from 0 to 10", Shown(*value))]
    Sigma {
        /// Which length.
        name: String,
        /// What was given.
        value: f64,
    },
    /// A pause outside of its range.
    #[error("{name} is {} s; it must be a number from 0 to {MAX_SECONDS:e} s", Shown(*value))]
    Seconds {
        /// Which pause.
        name: String,
        /// What was given.
        value: f64,
    },
}

impl Lengths {
    /// Checks that every length it names lies in `1..=limit`.
    ///
    /// # Errors
    /// The first value that can't work; `name` says of what.
    pub fn validate(&self, name: &str, unit: &'static str, limit: u32) -> Result<(), DistError> {
        let in_range = |part: &str, value: f64| {
            if (1.0..=f64::from(limit)).contains(&value) {
                return Ok(());
            }
            Err(DistError::OutOfRange {
                name: format!("{part}{name}"),
                value,
                unit,
                min: 1,
                max: limit,
            })
        };
        let cut = |max: Option<u32>| max.map_or(Ok(()), |max| in_range("the longest ", f64::from(max)));
        match *self {
            Self::Fixed(len) => in_range("", f64::from(len)),
            Self::Uniform { min, max } => {
                in_range("the shortest ", f64::from(min))?;
                in_range("the longest ", f64::from(max))?;
                if min > max {
                    let name = name.to_owned();
                    return Err(DistError::Backwards { name, min, max });
                }
                Ok(())
            }
            Self::LogNormal { median, sigma, max } => {
                in_range("the median ", median)?;
                if !(0.0..=10.0).contains(&sigma) {
                    let name = name.to_owned();
                    return Err(DistError::Sigma { name, value: sigma });
                }
                cut(max)
            }
            Self::Exponential { mean, max } => {
                in_range("the mean ", mean)?;
                cut(max)
            }
        }
    }

    /// One length in `1..=limit`.
    pub fn draw(&self, rng: &mut Rng, limit: u32) -> u32 {
        let (value, max) = match *self {
            Self::Fixed(len) => return len.clamp(1, limit),
            Self::Uniform { min, max } => return rng.between(min, max).clamp(1, limit),
            Self::LogNormal { median, sigma, max } => (median * (sigma * rng.normal()).exp(), max),
            Self::Exponential { mean, max } => (mean * rng.exponential(), max),
        };
        (value.round() as u32).clamp(1, max.unwrap_or(limit).min(limit))
    }
}

impl Pause {
    /// Checks the value.
    ///
    /// # Errors
    /// If it is no time; `name` says of what.
    pub fn validate(&self, name: &str) -> Result<(), DistError> {
        let (Self::Fixed(value) | Self::Exponential(value)) = *self;
        if (0.0..=MAX_SECONDS).contains(&value) {
            return Ok(());
        }
        let name = name.to_owned();
        Err(DistError::Seconds { name, value })
    }

    /// One pause, in seconds.
    pub fn draw(&self, rng: &mut Rng) -> f64 {
        match *self {
            Self::Fixed(seconds) => seconds,
            Self::Exponential(mean) => mean * rng.exponential(),
        }
    }
}

impl FromStr for Lengths {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self, DistError> {
        parse_lengths(text).ok_or_else(|| DistError::Lengths {
            text: text.to_owned(),
        })
    }
}

fn parse_lengths(text: &str) -> Option<Lengths> {
    let parts: Vec<&str> = text.split(':').collect();
    let max = |index: usize| match parts.get(index) {
        Some(part) => part.parse().ok().map(Some),
        None => Some(None),
    };
    Some(match *parts.as_slice() {
        [len] | ["fixed", len] => Lengths::Fixed(len.parse().ok()?),
        ["uniform", min, max] => Lengths::Uniform {
            min: min.parse().ok()?,
            max: max.parse().ok()?,
        },
        ["lognormal", median, sigma] | ["lognormal", median, sigma, _] => Lengths::LogNormal {
            median: median.parse().ok()?,
            sigma: sigma.parse().ok()?,
            max: max(3)?,
        },
        ["exponential", mean] | ["exponential", mean, _] => Lengths::Exponential {
            mean: mean.parse().ok()?,
            max: max(2)?,
        },
        _ => return None,
    })
}

impl FromStr for Pause {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self, DistError> {
        let seconds = |part: &str| {
            part.parse().map_err(|_| DistError::Pause {
                text: text.to_owned(),
            })
        };
        match text.strip_prefix("exponential:") {
            Some(mean) => Ok(Self::Exponential(seconds(mean)?)),
            None => Ok(Self::Fixed(seconds(text)?)),
        }
    }
}

/// What [`FromStr`] reads.
impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = |max: Option<u32>| max.map_or_else(String::new, |max| format!(":{max}"));
        match *self {
            Self::Fixed(len) => write!(f, "{len}"),
            Self::Uniform { min, max } => write!(f, "uniform:{min}:{max}"),
            Self::LogNormal {
                median,
                sigma,
                max: cut,
            } => write!(f, "lognormal:{median}:{sigma}{}", max(cut)),
            Self::Exponential { mean, max: cut } => write!(f, "exponential:{mean}{}", max(cut)),
        }
    }
}

/// What [`FromStr`] reads.
impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fixed(seconds) => write!(f, "{seconds}"),
            Self::Exponential(mean) => write!(f, "exponential:{mean}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_read_what_they_print() {
        for text in [
            "256",
            "uniform:1:9",
            "lognormal:200:0.8",
            "lognormal:200:0.8:4000",
            "exponential:50",
            "exponential:50:100",
        ] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
        for text in ["2.5", "exponential:0.25"] {
            assert_eq!(text.parse::<Pause>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn texts_that_are_no_distribution_are_refused() {
        for text in [
            "",
            "-1",
            "1.5",
            "normal:1:2",
            "uniform:1",
            "lognormal:1",
            "lognormal:1:2:3:4",
            "exponential:",
        ] {
            assert!(
                matches!(text.parse::<Lengths>(), Err(DistError::Lengths { .. })),
                "{text}"
            );
        }
        for text in ["", "x", "exponential:", "uniform:1:2"] {
            assert!(
                matches!(text.parse::<Pause>(), Err(DistError::Pause { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn lengths_outside_of_their_limit_are_named_with_it() {
        for (text, part) in [
            ("0", "the prompt is 0 tokens; it must be from 1 to 100"),
            ("101", "is 101 tokens; it must be from 1 to 100"),
            ("uniform:0:5", "the shortest the prompt is 0"),
            ("uniform:5:200", "the longest the prompt is 200"),
            ("uniform:9:5", "ranges from 9 to 5"),
            ("lognormal:NaN:1", "is NaN"),
            ("lognormal:10:-1", "sigma of the prompt is -1"),
            ("lognormal:10:inf", "sigma of the prompt is inf"),
            ("lognormal:10:1:0", "is 0 tokens"),
            ("exponential:1e300", "is 1e300 tokens; it must be from 1 to 100"),
            ("lognormal:10:1e300", "sigma of the prompt is 1e300;"),
        ] {
            let error = text
                .parse::<Lengths>()
                .unwrap()
                .validate("the prompt", " tokens", 100)
                .unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
        for text in ["-1", "NaN", "inf", "exponential:2e9"] {
            let pause: Pause = text.parse().unwrap();
            assert!(pause.validate("the pause").is_err(), "{text}");
        }
    }

    #[test]
    fn draws_stay_in_their_range_and_have_the_right_centre() {
        let draws = |text: &str| {
            let lengths: Lengths = text.parse().unwrap();
            let mut rng = Rng::new(5, 0);
            let mut draws: Vec<u32> = (0..20_001).map(|_| lengths.draw(&mut rng, 5000)).collect();
            draws.sort_unstable();
            draws
        };
        let uniform = draws("uniform:10:20");
        assert_eq!((uniform[0], uniform[20_000]), (10, 20));
        let lognormal = draws("lognormal:200:1.5:1000");
        assert!(
            (190..=210).contains(&lognormal[10_000]),
            "median {}",
            lognormal[10_000]
        );
        assert_eq!(lognormal[20_000], 1000);
        let exponential = draws("exponential:100");
        let mean = exponential.iter().sum::<u32>() / 20_001;
        assert!((97..=103).contains(&mean), "mean {mean}");
        assert!(exponential[0] >= 1 && exponential[20_000] <= 5000);
    }
}
