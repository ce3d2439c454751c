//! When a reader of load reports is told again. No I/O, no clock.

use std::time::{Duration, Instant};

use kvasir_client::types::LoadReport;

use crate::pace::Pacer;

/// An engine with work whose steps don't end says so this often.
const STALL_INTERVAL: Duration = Duration::from_secs(1);

/// One reader's side: a report at once, then whenever it differs, at most one per interval; and while a step is stuck one per second, whose
/// `stalled_us` tells for how long.
#[derive(Debug)]
pub(crate) struct LoadTeller {
    pacer: Pacer,
    told: Option<(Instant, LoadReport)>,
}

impl LoadTeller {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            pacer: Pacer::new(interval),
            told: None,
        }
    }

    /// The report, if it has to be told now; else when to ask again, beside the next change.
    pub(crate) fn next(&mut self, now: Instant, report: LoadReport) -> Result<LoadReport, Option<Instant>> {
        if let Some((at, told)) = &self.told {
            let differs = lasting(&report) != *told;
            let has_work = report.stalled_us > 0;
            let due = *at + STALL_INTERVAL;
            if !differs && (!has_work || now < due) {
                return Err(has_work.then_some(due));
            }
        }
        if !self.pacer.pass(now) {
            return Err(self.pacer.next());
        }
        self.told = Some((now, lasting(&report)));
        Ok(report)
    }
}

/// A report without what changes by itself.
fn lasting(report: &LoadReport) -> LoadReport {
    LoadReport {
        stalled_us: 0,
        process_cpu_us: 0,
        ..report.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    fn report(num_steps: u64, stalled_us: u64) -> LoadReport {
        LoadReport {
            num_steps,
            stalled_us,
            ..LoadReport::default()
        }
    }

    #[test]
    fn the_first_report_comes_at_once_and_equal_ones_dont_follow() {
        let (start, mut teller) = (Instant::now(), LoadTeller::new(TENTH));
        assert_eq!(teller.next(start, report(1, 0)), Ok(report(1, 0)));
        for seconds in 1..100 {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(teller.next(now, report(1, 0)), Err(None));
        }
    }

    #[test]
    fn changes_are_told_at_most_ten_times_a_second_and_the_last_one_is_told() {
        let (start, mut teller) = (Instant::now(), LoadTeller::new(TENTH));
        let mut told = Vec::new();
        for ms in 0..950 {
            if let Ok(report) = teller.next(start + Duration::from_millis(ms), report(ms, 0)) {
                told.push(report.num_steps);
            }
        }
        assert_eq!(told, [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
        let again = teller
            .next(start + Duration::from_millis(960), report(949, 0))
            .unwrap_err();
        assert_eq!(again, Some(start + Duration::from_secs(1)));
        assert_eq!(teller.next(again.unwrap(), report(949, 0)), Ok(report(949, 0)));
    }

    #[test]
    fn a_stuck_step_is_told_once_a_second() {
        let (start, mut teller) = (Instant::now(), LoadTeller::new(TENTH));
        let told = (0..5000_u64).filter(|&ms| {
            let now = start + Duration::from_millis(ms);
            teller.next(now, report(1, 1 + ms * 1000)).is_ok()
        });
        assert_eq!(told.count(), 5);
    }
}
