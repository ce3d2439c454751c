//! The limits as OpenAI's clients read them.

use std::time::Duration;

use super::{Dimension, DimensionUsage, Exhausted, Usage};

/// The `x-ratelimit-*` headers: limit, remaining and reset of requests and of tokens. Where tokens are limited only apart, the kind of
/// which the smaller part remains is shown.
pub fn rate_limit_headers(usage: &Usage) -> Vec<(&'static str, String)> {
    let of = |dimension: Dimension| usage.0[dimension as usize];
    let tighter = [of(Dimension::InputTokens), of(Dimension::OutputTokens)]
        .into_iter()
        .flatten()
        .min_by(by_remaining_part);
    let requests = [
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
    ];
    let tokens = [
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ];
    let shown = [
        (requests, of(Dimension::Requests)),
        (tokens, of(Dimension::Tokens).or(tighter)),
    ];
    let mut headers = Vec::with_capacity(6);
    for (names, usage) in shown {
        let Some(DimensionUsage { limit, used, reset }) = usage else {
            continue;
        };
        let values = [
            limit.to_string(),
            limit.saturating_sub(used).to_string(),
            duration(reset),
        ];
        headers.extend(names.into_iter().zip(values));
    }
    headers
}

/// The value of `Retry-After`, 1 or more; `None` when waiting won't help.
pub fn retry_after_seconds(exhausted: &Exhausted) -> Option<u64> {
    match exhausted {
        Exhausted::PerMinute { retry_after, .. } => {
            retry_after.map(|after| after.as_micros().div_ceil(1_000_000).max(1) as u64)
        }
        // Nobody knows when a request ends.
        Exhausted::Concurrency { .. } => Some(1),
    }
}

/// `remaining / limit` compared without division: a/b < c/d is a*d < c*b.
fn by_remaining_part(a: &DimensionUsage, b: &DimensionUsage) -> std::cmp::Ordering {
    let part = |of: &DimensionUsage, other: &DimensionUsage| {
        u128::from(of.limit.saturating_sub(of.used)) * u128::from(other.limit)
    };
    part(a, b).cmp(&part(b, a))
}

/// As OpenAI writes durations: `1m3s`, `12s`, `1.5s`, `20ms`.
fn duration(duration: Duration) -> String {
    let millis = duration.as_micros().div_ceil(1000);
    let (minutes, millis) = (millis / 60_000, millis % 60_000);
    let (seconds, fraction) = (millis / 1000, millis % 1000);
    let fraction = if fraction == 0 {
        String::new()
    } else {
        format!(".{fraction:03}").trim_end_matches('0').to_owned()
    };
    match (minutes, seconds) {
        (0, 0) if !fraction.is_empty() => format!("{millis}ms"),
        (0, _) => format!("{seconds}{fraction}s"),
        _ => format!("{minutes}m{seconds}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "usages hold options")]
    fn usage(limit: u64, used: u64, reset_millis: u64) -> Option<DimensionUsage> {
        Some(DimensionUsage {
            limit,
            used,
            reset: Duration::from_millis(reset_millis),
        })
    }

    #[test]
    fn headers_have_the_form_of_openai() {
        let headers = rate_limit_headers(&Usage([
            usage(60, 1, 1000),
            usage(150_000, 16, 360_000),
            None,
            None,
        ]));
        let expected = [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-limit-tokens", "150000"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ];
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        assert_eq!(headers, expected);
    }

    #[test]
    fn the_tighter_kind_of_tokens_is_shown_where_they_are_limited_apart() {
        let remaining = |input, output| {
            let headers = rate_limit_headers(&Usage([None, None, input, output]));
            headers
                .into_iter()
                .find(|(name, _)| *name == "x-ratelimit-remaining-tokens")
                .map(|(_, value)| value)
        };
        assert_eq!(remaining(usage(100, 50, 0), usage(1000, 900, 0)).unwrap(), "100");
        assert_eq!(remaining(usage(100, 95, 0), usage(1000, 900, 0)).unwrap(), "5");
        assert_eq!(remaining(None, usage(10, 20, 0)).unwrap(), "0");
        assert_eq!(remaining(None, None), None);
    }

    #[test]
    fn durations_are_short_and_never_too_early() {
        let text = |micros| duration(Duration::from_micros(micros));
        let cases = [
            (0, "0s"),
            (1, "1ms"),
            (20_000, "20ms"),
            (1_500_000, "1.5s"),
            (59_999_001, "1m0s"),
            (61_050_000, "1m1.05s"),
        ];
        for (micros, expected) in cases {
            assert_eq!(text(micros), expected);
        }
    }

    #[test]
    fn retry_after_is_whole_seconds_and_never_too_early() {
        let after = |retry_after: Option<Duration>| {
            retry_after_seconds(&Exhausted::PerMinute {
                dimension: Dimension::Requests,
                limit: 1,
                used: 1,
                wanted: 1,
                retry_after,
            })
        };
        assert_eq!(after(Some(Duration::ZERO)), Some(1));
        assert_eq!(after(Some(Duration::from_micros(1_000_001))), Some(2));
        assert_eq!(after(None), None);
        assert_eq!(retry_after_seconds(&Exhausted::Concurrency { limit: 3 }), Some(1));
    }
}
