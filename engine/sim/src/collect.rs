//! Counts what happens inside the window.
//!
//! A window without an end is closed by the last event. What lies before it (warming up) or behind it isn't counted, wherever the request began:
//! in a steady state as many requests reach into the window as out of it.

use kvasir_engine_core::Stats;

use crate::cost::StepShape;
use crate::goodput::{Objectives, Times, goodput};
use crate::histogram::Histogram;
use crate::report::{Counts, EngineReport, Report, TenantReport};
use crate::time::SimTime;

/// Where a tally goes: index of the tenant in the workload.
pub(crate) type TenantIndex = u16;

/// A refusal or a deadline.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Failure {
    QueueFull,
    TooLong,
    TimedOut,
}

/// A request that gave its last token, times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) tenant: TenantIndex,
    pub(crate) queued: u64,
    /// Whether it gave fewer tokens than it should have.
    pub(crate) is_cut: bool,
    pub(crate) times: Times,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    counts: Counts,
    ttft: Histogram,
    itl_p99: Histogram,
}

/// Counts and distributions.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    objectives: Objectives,
    start: SimTime,
    end: Option<SimTime>,
    tenants: Vec<(String, Tally)>,
    all: Tally,
    tpot: Histogram,
    e2el: Histogram,
    queued: Histogram,
    output_tokens: u64,
    steps: u64,
    step_nanos: u64,
    step_tokens: u64,
    decodes: u64,
    /// Seconds times share of the blocks.
    usage_area: f64,
    usage_max: f64,
}

impl Collector {
    pub(crate) fn new(
        objectives: Objectives,
        tenants: Vec<String>,
        start: SimTime,
        end: Option<SimTime>,
    ) -> Self {
        Self {
            objectives,
            start,
            end,
            tenants: tenants.into_iter().map(|name| (name, Tally::default())).collect(),
            all: Tally::default(),
            tpot: Histogram::default(),
            e2el: Histogram::default(),
            queued: Histogram::default(),
            output_tokens: 0,
            steps: 0,
            step_nanos: 0,
            step_tokens: 0,
            decodes: 0,
            usage_area: 0.0,
            usage_max: 0.0,
        }
    }

    fn counts(&self, at: SimTime) -> bool {
        at >= self.start && self.end.is_none_or(|end| at < end)
    }

    fn tallies(&mut self, tenant: TenantIndex) -> impl Iterator<Item = &mut Tally> {
        let own = self.tenants.get_mut(usize::from(tenant)).map(|(_, tally)| tally);
        own.into_iter().chain([&mut self.all])
    }

    pub(crate) fn arrived(&mut self, at: SimTime, tenant: TenantIndex) {
        if self.counts(at) {
            self.tallies(tenant).for_each(|tally| tally.counts.arrivals += 1);
        }
    }

    pub(crate) fn failed(&mut self, at: SimTime, tenant: TenantIndex, failure: Failure) {
        if !self.counts(at) {
            return;
        }
        for Tally { counts, .. } in self.tallies(tenant) {
            *match failure {
                Failure::QueueFull => &mut counts.refused_queue_full,
                Failure::TooLong => &mut counts.refused_too_long,
                Failure::TimedOut => &mut counts.timed_out,
            } += 1;
        }
    }

    pub(crate) fn token(&mut self, at: SimTime) {
        self.output_tokens += u64::from(self.counts(at));
    }

    pub(crate) fn completed(&mut self, at: SimTime, completion: Completion) {
        if !self.counts(at) {
            return;
        }
        let Completion {
            tenant,
            queued,
            is_cut,
            times,
        } = completion;
        let passed = u64::from(self.objectives.are_met(&times));
        for Tally {
            counts,
            ttft,
            itl_p99,
        } in self.tallies(tenant)
        {
            counts.completed += 1;
            counts.passed += passed;
            counts.cut_short += u64::from(is_cut);
            ttft.add(times.ttft);
            match times.itl_p99 {
                Some(gap) => itl_p99.add(gap),
                None => counts.single_token += 1,
            }
        }
        if let Some(tpot) = times.tpot {
            self.tpot.add(tpot.round() as u64);
        }
        self.e2el.add(times.e2el);
        self.queued.add(queued);
    }

    /// A step that ended.
    pub(crate) fn step(&mut self, began: SimTime, ended: SimTime, shape: StepShape) {
        if self.counts(ended) {
            self.steps += 1;
            self.step_nanos += ended.0.saturating_sub(began.0.max(self.start.0));
            self.step_tokens += shape.prefill_tokens + shape.decode_seqs;
            self.decodes += shape.decode_seqs;
        }
    }

    /// Sequences held `usage` of the blocks from one moment to another.
    pub(crate) fn usage(&mut self, from: SimTime, to: SimTime, usage: f64) {
        let to = self.end.map_or(to, |end| to.min(end));
        let from = from.max(self.start);
        if to > from {
            self.usage_area += usage * to.seconds_since(from);
            self.usage_max = self.usage_max.max(usage);
        }
    }

    /// The report; `before` and `after` are the engines' counters at the start and the end of the window, and `now` closes a window without an
    /// end. Nothing if the window has no length.
    pub(crate) fn report(
        mut self,
        now: SimTime,
        outstanding: &[TenantIndex],
        before: &[Stats],
        after: &[Stats],
    ) -> Option<Report> {
        let seconds = self.end.unwrap_or(now).seconds_since(self.start);
        if seconds <= 0.0 {
            return None;
        }
        for &tenant in outstanding {
            self.tallies(tenant)
                .for_each(|tally| tally.counts.outstanding += 1);
        }
        let grown = |counter: fn(&Stats) -> u64| {
            let sum = |stats: &[Stats]| stats.iter().map(counter).sum::<u64>();
            sum(after).saturating_sub(sum(before))
        };
        let per_second = |count: u64| count as f64 / seconds;
        let tenants = if self.tenants.len() > 1 {
            std::mem::take(&mut self.tenants)
        } else {
            Vec::new()
        };
        Some(Report {
            window_seconds: seconds,
            goodput: goodput(self.all.counts.passed, seconds),
            request_throughput: per_second(self.all.counts.completed),
            output_token_throughput: per_second(self.output_tokens),
            prompt_token_throughput: per_second(grown(|stats| stats.num_prompt_tokens)),
            requests: self.all.counts,
            ttft_ms: self.all.ttft.summary_ms(),
            itl_p99_ms: self.all.itl_p99.summary_ms(),
            tpot_ms: self.tpot.summary_ms(),
            e2el_ms: self.e2el.summary_ms(),
            queue_ms: self.queued.summary_ms(),
            engine: self.engine(
                seconds * after.len() as f64,
                grown(|stats| stats.num_preemptions),
                grown(|stats| stats.prefix_cache_queries),
                grown(|stats| stats.prefix_cache_hits),
            ),
            tenants: tenants
                .into_iter()
                .map(|tenant| tenant_report(tenant, seconds))
                .collect(),
        })
    }

    fn engine(&self, engine_seconds: f64, preemptions: u64, queries: u64, hits: u64) -> EngineReport {
        let per_step = |sum: f64| {
            if self.steps > 0 {
                sum / self.steps as f64
            } else {
                0.0
            }
        };
        EngineReport {
            steps: self.steps,
            step_ms: per_step(self.step_nanos as f64 / 1e6),
            tokens_per_step: per_step(self.step_tokens as f64),
            decodes_per_step: per_step(self.decodes as f64),
            busy: (self.step_nanos as f64 / 1e9 / engine_seconds).min(1.0),
            preemptions,
            kv_usage_mean: self.usage_area / engine_seconds,
            kv_usage_max: self.usage_max,
            prefix_hit_rate: (queries > 0).then(|| hits as f64 / queries as f64),
        }
    }
}

fn tenant_report((name, tally): (String, Tally), seconds: f64) -> TenantReport {
    TenantReport {
        name,
        goodput: goodput(tally.counts.passed, seconds),
        requests: tally.counts,
        ttft_ms: tally.ttft.summary_ms(),
        itl_p99_ms: tally.itl_p99.summary_ms(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(ttft: u64) -> Completion {
        Completion {
            tenant: 0,
            is_cut: false,
            queued: 0,
            times: Times {
                ttft,
                itl_p99: Some(1000),
                tpot: Some(1000.0),
                e2el: ttft + 5000,
            },
        }
    }

    /// A window from 10 s to 110 s with an objective of 300 ms to the first token.
    fn collector() -> Collector {
        let objectives = Objectives::parse(["ttft:300", "itl:50"]).unwrap();
        let seconds = SimTime::from_seconds;
        Collector::new(
            objectives,
            vec!["all".to_owned()],
            seconds(10.0),
            Some(seconds(110.0)),
        )
    }

    fn report(collector: Collector, outstanding: usize) -> Report {
        let idle = [Stats::default()];
        collector
            .report(SimTime::from_seconds(500.0), &vec![0; outstanding], &idle, &idle)
            .unwrap()
    }

    /// The founding document's example: so many arrived, completed and passed in 100 s.
    fn candidate(offered: u64, completed: u64, passed: u64) -> Report {
        let mut collector = collector();
        let inside = SimTime::from_seconds(50.0);
        (0..offered).for_each(|_| collector.arrived(inside, 0));
        for i in 0..completed {
            collector.completed(inside, completion(if i < passed { 299_000 } else { 301_000 }));
        }
        report(collector, (offered - completed) as usize)
    }

    #[test]
    fn goodput_counts_passing_completions_and_shows_the_others_beside() {
        let (a, b) = (candidate(1000, 600, 550), candidate(800, 780, 752));
        assert_eq!(
            (format!("{:.2}", a.goodput), format!("{:.2}", b.goodput)),
            ("5.50".into(), "7.52".into())
        );
        let Counts {
            arrivals,
            completed,
            passed,
            outstanding,
            ..
        } = a.requests;
        assert_eq!((arrivals, completed, passed, outstanding), (1000, 600, 550, 400));
        assert_eq!((a.request_throughput, a.requests.failed()), (6.0, 0));
    }

    #[test]
    fn what_happens_outside_of_the_window_is_not_counted() {
        let mut collector = collector();
        for at in [9.999, 110.0, 200.0] {
            let at = SimTime::from_seconds(at);
            collector.arrived(at, 0);
            collector.token(at);
            collector.completed(at, completion(1));
            collector.failed(at, 0, Failure::TimedOut);
            collector.step(at, at, StepShape::default());
        }
        let report = report(collector, 0);
        assert_eq!(report.requests, Counts::default());
        assert_eq!((report.output_token_throughput, report.engine.steps), (0.0, 0));
        assert_eq!((report.window_seconds, report.ttft_ms), (100.0, None));
    }

    #[test]
    fn failures_are_told_apart_and_lower_goodput_only_by_not_completing() {
        let mut collector = collector();
        let inside = SimTime::from_seconds(10.0);
        for failure in [
            Failure::QueueFull,
            Failure::TooLong,
            Failure::TooLong,
            Failure::TimedOut,
        ] {
            collector.arrived(inside, 0);
            collector.failed(inside, 0, failure);
        }
        collector.completed(inside, completion(1));
        let report = report(collector, 0);
        let counts = report.requests;
        assert_eq!(
            (
                counts.refused_queue_full,
                counts.refused_too_long,
                counts.timed_out
            ),
            (1, 2, 1)
        );
        assert_eq!((counts.failed(), report.goodput), (4, 0.01));
    }

    #[test]
    fn usage_is_averaged_over_the_time_inside_the_window() {
        let mut collector = collector();
        let seconds = SimTime::from_seconds;
        collector.usage(seconds(0.0), seconds(10.0), 1.0);
        collector.usage(seconds(10.0), seconds(60.0), 0.5);
        collector.usage(seconds(60.0), seconds(300.0), 0.1);
        let engine = report(collector, 0).engine;
        assert!(
            (engine.kv_usage_mean - 0.3).abs() < 1e-9,
            "{}",
            engine.kv_usage_mean
        );
        assert_eq!(engine.kv_usage_max, 0.5);
    }

    #[test]
    fn a_window_without_length_has_no_report() {
        let collector = Collector::new(Objectives::default(), Vec::new(), SimTime(5), None);
        assert_eq!(collector.report(SimTime(5), &[], &[], &[]), None);
    }
}
