//! What goes wrong again and again: said when it's something new, and from time to time while it lasts.

use std::time::{Duration, Instant};

/// Between two reminders of what hasn't changed.
const REMINDER: Duration = Duration::from_mins(5);

/// One thing that is tried again and again. Its failures are worth a line of the log when they begin, when their reason changes, and every
/// five minutes.
#[derive(Clone, Debug, Default)]
pub struct Recurring {
    last: Option<(String, Instant)>,
}

impl Recurring {
    /// It failed for this reason: whether that is worth a line.
    pub fn is_news(&mut self, reason: &str, now: Instant) -> bool {
        let is_known = self
            .last
            .as_ref()
            .is_some_and(|(known, said)| known == reason && now.saturating_duration_since(*said) < REMINDER);
        if !is_known {
            self.last = Some((reason.to_owned(), now));
        }
        !is_known
    }

    /// It works: the next failure is news.
    pub fn is_over(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_news_when_it_begins_when_it_changes_and_rarely_while_it_lasts() {
        let (mut trouble, start) = (Recurring::default(), Instant::now());
        let mut said = Vec::new();
        for second in 0..700 {
            let reason = if (300..400).contains(&second) {
                "refused"
            } else {
                "no route"
            };
            if trouble.is_news(reason, start + Duration::from_secs(second)) {
                said.push(second);
            }
        }
        assert_eq!(said, [0, 300, 400]);
        assert!(trouble.is_news("no route", start + Duration::from_secs(700)));
        assert!(!trouble.is_news("no route", start + Duration::from_secs(701)));
        trouble.is_over();
        assert!(trouble.is_news("no route", start + Duration::from_secs(702)));
    }
}
