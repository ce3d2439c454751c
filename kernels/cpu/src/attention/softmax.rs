//! The online softmax.

use super::{PIECE, Stats, View};
use crate::math::exp;
use crate::simd::{LANES, Simd, Task, max, sum};

/// One query's step of the online softmax: scores become exponentials, the sums are rescaled.
pub(super) struct Softmax<'a> {
    pub(super) scores: &'a mut [f32; PIECE],
    pub(super) view: View,
    pub(super) stats: &'a mut Stats,
    pub(super) sums: &'a mut [f32],
}

impl Task for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            scores,
            view,
            stats,
            sums,
        } = self;
        if view.from >= view.to {
            return;
        }
        scores[..view.from].fill(f32::NEG_INFINITY);
        scores[view.to..].fill(f32::NEG_INFINITY);
        let vectors = scores.as_chunks_mut::<LANES>().0;
        let mut highest = s.splat(stats.max);
        for vector in vectors.iter() {
            highest = s.max(highest, s.load(vector));
        }
        let new_max = max(s, highest);
        let mut total = s.splat(0.0);
        for vector in vectors {
            let e = exp(s, s.sub(s.load(vector), s.splat(new_max)));
            total = s.add(total, e);
            s.store(e, vector);
        }
        // exp(0) is exactly 1: nothing to correct.
        if new_max != stats.max {
            let mut correction = [0.0; LANES];
            s.store(exp(s, s.splat(stats.max - new_max)), &mut correction);
            stats.sum *= correction[0];
            let factor = s.splat(correction[0]);
            for lanes in sums.as_chunks_mut::<LANES>().0 {
                s.store(s.mul(s.load(lanes), factor), lanes);
            }
        }
        stats.sum += sum(s, total);
        stats.max = new_max;
    }
}
