//! Values that are one of a few words, and times.

use std::time::Duration;

/// Declares an enum whose variants are written as fixed words.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            /// The words, in order of declaration.
            pub const WORDS: &'static [&'static str] = &[$($text),+];

            /// The word of this value.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The value of a word, if it is one of ours.
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

choice! {
    /// Least severe log message that is written.
    LogLevel {
        /// Everything.
        Trace = "trace",
        /// What helps to find a fault.
        Debug = "debug",
        /// What an operator wants to know.
        Info = "info",
        /// What is odd.
        Warn = "warn",
        /// What failed.
        Error = "error",
    }
}

choice! {
    /// Type that weights are computed in; vLLM's words.
    Dtype {
        /// As stored in the file.
        Auto = "auto",
        /// 16 bits, 5 of them exponent.
        Half = "half",
        /// The same.
        Float16 = "float16",
        /// 16 bits, 8 of them exponent.
        Bfloat16 = "bfloat16",
        /// 32 bits.
        Float = "float",
        /// The same.
        Float32 = "float32",
    }
}

choice! {
    /// Form of the weights' files; vLLM's words.
    LoadFormat {
        /// Whatever is found.
        Auto = "auto",
        /// safetensors with a config.json.
        Safetensors = "safetensors",
        /// One GGUF file.
        Gguf = "gguf",
    }
}

choice! {
    /// Type that keys and values are stored in.
    KvCacheDtype {
        /// The backend's choice.
        Auto = "auto",
        /// 32 bits.
        Float32 = "float32",
        /// 16 bits, 5 of them exponent.
        Float16 = "float16",
        /// 16 bits, 8 of them exponent.
        Bfloat16 = "bfloat16",
    }
}

choice! {
    /// The order of waiting requests; vLLM's words.
    SchedulingPolicy {
        /// First come, first served.
        Fcfs = "fcfs",
        /// By the request's priority, lower first, then by arrival.
        Priority = "priority",
    }
}

choice! {
    /// Whose rules the scheduler follows where they differ.
    SchedulerCompat {
        /// Ours: small requests pass a large one for a bounded time, and resuming leaves a reserve.
        Kvasir = "kvasir",
        /// vLLM's order of admission and choice of victim, exactly.
        Vllm = "vllm",
    }
}

/// A part of a whole: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Fraction(pub f64);

impl Fraction {
    /// Parses a fraction such as `0.9`.
    ///
    /// # Errors
    /// What is allowed, as a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.trim().parse::<f64>() {
            Ok(part) if part > 0.0 && part <= 1.0 => Ok(Self(part)),
            _ => Err("expected a fraction above 0 and at most 1, such as 0.9".to_owned()),
        }
    }
}

/// A time in seconds, with a fraction if need be; also written as `30s`, `500ms`, `2m`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Seconds(pub Duration);

impl Seconds {
    /// Parses a time of at most a year.
    ///
    /// # Errors
    /// What is allowed, as a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        const LONGEST_SECONDS: f64 = 366.0 * 24.0 * 3600.0;
        let text = text.trim();
        let (number, scale) = if let Some(number) = text.strip_suffix("ms") {
            (number, 0.001)
        } else if let Some(number) = text.strip_suffix('s') {
            (number, 1.0)
        } else if let Some(number) = text.strip_suffix('m') {
            (number, 60.0)
        } else {
            (text, 1.0)
        };
        match number.trim().parse::<f64>().map(|number| number * scale) {
            Ok(seconds) if (0.0..=LONGEST_SECONDS).contains(&seconds) => {
                Ok(Self(Duration::from_secs_f64(seconds)))
            }
            _ => Err("expected seconds from 0 to a year, such as 30, 0.5, 500ms or 2m".to_owned()),
        }
    }
}
