//! The life of a pod's containers, as a function of time and rule.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use crate::rules::{Exit, Rule};

/// Where a pod is in its life.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Play {
    /// When it arrived on its node.
    pub(crate) arrived: Timestamp,
    /// What its main container does.
    pub(crate) state: State,
    /// Restarts of the main container.
    pub(crate) restarts: i32,
    /// How it ended last.
    pub(crate) last: Option<Ended>,
    /// It answers its readiness probe.
    pub(crate) ready: bool,
    /// Since when it is ready or not.
    pub(crate) ready_changed: Timestamp,
}

/// What a container does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// It waits to start.
    Creating {
        /// Why, if not for time alone.
        obstacle: Option<Obstacle>,
    },
    /// It runs.
    Running {
        /// Since when.
        since: Timestamp,
    },
    /// It has ended and will start again.
    Backoff {
        /// When.
        until: Timestamp,
    },
    /// It has ended for good.
    Over,
}

/// Why a container doesn't start, as the kubelet says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    /// `ImagePullBackOff` and others.
    pub(crate) reason: String,
    /// In words.
    pub(crate) message: String,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ended {
    /// Its exit code.
    pub(crate) code: i32,
    /// The reason that Kubernetes shows.
    pub(crate) reason: String,
    /// Its last words.
    pub(crate) message: Option<String>,
    /// When it had started.
    pub(crate) started: Timestamp,
    /// When.
    pub(crate) at: Timestamp,
}

/// What becomes of a container that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// It starts again.
    Always,
    /// It starts again after an error. Without a rule it ends well.
    OnFailure,
    /// It never starts again. Without a rule it ends well.
    Never,
}

impl Restart {
    /// The pod's policy.
    pub(crate) fn of(pod: &Pod) -> Self {
        match pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }
}

impl Play {
    /// A pod that just arrived.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            arrived: now,
            state: State::Creating { obstacle: None },
            restarts: 0,
            last: None,
            ready: false,
            ready_changed: now,
        }
    }

    /// Goes on to `now`. Returns when something will change by itself. `obstacle` keeps it from starting.
    pub(crate) fn advance(
        &mut self,
        rule: &Rule,
        restart: Restart,
        obstacle: Option<&Obstacle>,
        now: Timestamp,
    ) -> Option<Duration> {
        loop {
            match self.state.clone() {
                State::Creating { .. } => match self.start(rule, obstacle, now) {
                    Start::Blocked => return None,
                    Start::At(due) => return Some(until(due, now)),
                    Start::Now => {}
                },
                State::Running { since } => {
                    let end = self
                        .end(rule, restart)
                        .map(|exit| (since + seconds(exit.after_seconds), exit));
                    if let Some((due, exit)) = &end
                        && *due <= now
                    {
                        self.finish(exit, since, rule, restart, now);
                        continue;
                    }
                    let ready_at = since + seconds(rule.ready_after_seconds);
                    self.set_ready(!rule.never_ready && ready_at <= now, now);
                    let ready_at = (ready_at > now && !rule.never_ready).then_some(ready_at);
                    let next = end.map(|(due, _)| due).into_iter().chain(ready_at).min();
                    return next.map(|due| until(due, now));
                }
                State::Backoff { until: due } if due <= now => {
                    self.restarts += 1;
                    self.state = State::Running { since: now };
                }
                State::Backoff { until: due } => return Some(until(due, now)),
                State::Over => return None,
            }
        }
    }

    fn start(&mut self, rule: &Rule, obstacle: Option<&Obstacle>, now: Timestamp) -> Start {
        let pull = rule.pull.as_ref().map(|message| Obstacle {
            reason: "ImagePullBackOff".to_owned(),
            message: message.clone(),
        });
        let obstacle = obstacle.cloned().or(pull);
        let blocked = obstacle.is_some();
        self.state = State::Creating { obstacle };
        let due = self.arrived + seconds(rule.start_after_seconds);
        if blocked {
            return Start::Blocked;
        }
        if due > now {
            return Start::At(due);
        }
        self.state = State::Running { since: now };
        Start::Now
    }

    /// How the present run will end, if it does.
    fn end(&self, rule: &Rule, restart: Restart) -> Option<Exit> {
        let scripted = rule
            .exit
            .clone()
            .filter(|exit| exit.times.is_none_or(|times| self.restarts < times));
        let well = Exit {
            code: 0,
            reason: None,
            message: None,
            after_seconds: 0.0,
            times: None,
        };
        scripted.or((restart != Restart::Always).then_some(well))
    }

    fn finish(&mut self, exit: &Exit, since: Timestamp, rule: &Rule, restart: Restart, now: Timestamp) {
        let usual = if exit.code == 0 { "Completed" } else { "Error" };
        self.last = Some(Ended {
            code: exit.code,
            reason: exit.reason.clone().unwrap_or_else(|| usual.to_owned()),
            message: exit.message.clone(),
            started: since,
            at: now,
        });
        self.set_ready(false, now);
        let again = match restart {
            Restart::Always => true,
            Restart::OnFailure => exit.code != 0,
            Restart::Never => false,
        };
        self.state = if again {
            State::Backoff {
                until: now
                    + seconds(
                        rule.backoff_seconds
                            .unwrap_or_else(|| kubelet_backoff(self.restarts)),
                    ),
            }
        } else {
            State::Over
        };
    }

    fn set_ready(&mut self, ready: bool, now: Timestamp) {
        if self.ready != ready {
            self.ready = ready;
            self.ready_changed = now;
        }
    }
}

enum Start {
    Blocked,
    At(Timestamp),
    Now,
}

/// The kubelet's: at once, then 10 s doubled up to 5 min.
fn kubelet_backoff(restarts: i32) -> f64 {
    match restarts {
        ..=0 => 0.0,
        n => (10.0 * 2_f64.powi(n - 1)).min(300.0),
    }
}

/// Seconds as a duration; what isn't one is none.
pub(crate) fn seconds(value: f64) -> SignedDuration {
    SignedDuration::try_from_secs_f64(value).unwrap_or_default()
}

fn until(due: Timestamp, now: Timestamp) -> Duration {
    due.duration_since(now).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn rule(yaml: &str) -> Rule {
        serde_yaml::from_str(yaml).unwrap()
    }

    #[test]
    fn without_a_rule_a_pod_is_ready_at_once_and_stays_so() {
        let mut play = Play::new(at(0));
        assert_eq!(play.advance(&Rule::default(), Restart::Always, None, at(0)), None);
        assert!(play.ready);
        assert_eq!(play.state, State::Running { since: at(0) });
    }

    #[test]
    fn delays_pass_one_after_the_other() {
        let rule = rule("{startAfterSeconds: 2, readyAfterSeconds: 5}");
        let mut play = Play::new(at(0));
        let wait = play.advance(&rule, Restart::Always, None, at(0));
        assert_eq!(wait, Some(Duration::from_secs(2)));
        assert_eq!(
            play.advance(&rule, Restart::Always, None, at(2)),
            Some(Duration::from_secs(5))
        );
        assert!(!play.ready);
        assert_eq!(play.advance(&rule, Restart::Always, None, at(7)), None);
        assert!(play.ready);
    }

    #[test]
    fn a_container_ends_as_often_as_the_rule_says_and_says_how() {
        let rule = rule(
            "{exit: {code: 137, reason: OOMKilled, message: bye, afterSeconds: 1, times: 2}, backoffSeconds: 3}",
        );
        let mut play = Play::new(at(0));
        play.advance(&rule, Restart::Always, None, at(0));
        play.advance(&rule, Restart::Always, None, at(1));
        assert_eq!(play.state, State::Backoff { until: at(4) });
        let last = play.last.clone().unwrap();
        assert_eq!(
            (last.code, last.reason.as_str(), last.message.as_deref()),
            (137, "OOMKilled", Some("bye"))
        );
        play.advance(&rule, Restart::Always, None, at(4));
        assert_eq!((play.restarts, play.ready), (1, true));
        play.advance(&rule, Restart::Always, None, at(5));
        play.advance(&rule, Restart::Always, None, at(8));
        assert_eq!(play.advance(&rule, Restart::Always, None, at(60)), None);
        assert_eq!((play.restarts, play.ready), (2, true));
    }

    #[test]
    fn a_rule_that_appears_ends_a_running_container() {
        let mut play = Play::new(at(0));
        play.advance(&Rule::default(), Restart::Always, None, at(0));
        let wait = play.advance(&rule("{exit: {code: 1, times: 1}}"), Restart::Always, None, at(9));
        // The kubelet restarts at once the first time.
        assert_eq!((wait, play.restarts), (None, 1));
        assert!(play.ready);
    }

    #[test]
    fn restarts_wait_longer_each_time_like_a_kubelets() {
        assert_eq!(
            [0, 1, 2, 3, 9].map(kubelet_backoff),
            [0.0, 10.0, 20.0, 40.0, 300.0]
        );
    }

    #[test]
    fn an_image_that_cannot_be_pulled_blocks_until_it_can() {
        let mut play = Play::new(at(0));
        let blocked = rule("{pull: unauthorized}");
        assert_eq!(play.advance(&blocked, Restart::Always, None, at(0)), None);
        let State::Creating {
            obstacle: Some(obstacle),
        } = &play.state
        else {
            panic!("{play:?}")
        };
        assert_eq!(obstacle.reason, "ImagePullBackOff");
        play.advance(&Rule::default(), Restart::Always, None, at(5));
        assert!(play.ready);
    }

    #[test]
    fn a_pod_that_never_restarts_completes() {
        let mut play = Play::new(at(0));
        play.advance(&Rule::default(), Restart::Never, None, at(0));
        assert_eq!(play.state, State::Over);
        assert_eq!(play.last.map(|last| last.code), Some(0));
        let mut failing = Play::new(at(0));
        failing.advance(&rule("{exit: {code: 3}}"), Restart::Never, None, at(0));
        assert_eq!(
            (failing.state, failing.last.map(|last| last.code)),
            (State::Over, Some(3))
        );
    }
}
