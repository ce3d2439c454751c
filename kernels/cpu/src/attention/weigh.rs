//! Weighted sums of values, position after position.

use std::marker::PhantomData;

use super::{PIECE, Vector, View};
use crate::kv::KvElement;
use crate::simd::{LANES, Simd, Task};

/// Adds weighted values to the sums of queries.
#[derive(Clone, Copy)]
pub(super) struct Weigh<'a> {
    pub(super) vectors: &'a [Vector<'a>; PIECE / LANES],
    pub(super) head_dim: usize,
    pub(super) width: usize,
}

impl Weigh<'_> {
    /// All `T` queries, each over its view in ascending order: together where all of them see, alone at the edges.
    #[inline(always)]
    pub(super) fn all<S: Simd, E: KvElement, const T: usize>(
        self,
        s: S,
        views: [View; T],
        weights: &[[f32; PIECE]; T],
        sums: &mut [f32],
    ) {
        let common = View {
            from: views[T - 1].from,
            to: views[0].to,
        };
        if common.from >= common.to {
            for t in 0..T {
                self.one::<S, E>(
                    s,
                    views[t],
                    &weights[t],
                    &mut sums[t * self.width..][..self.width],
                );
            }
            return;
        }
        for t in 0..T {
            let before = View {
                from: views[t].from,
                to: common.from,
            };
            self.one::<S, E>(s, before, &weights[t], &mut sums[t * self.width..][..self.width]);
        }
        s.vectorize(WeighTask::<E, T> {
            place: self,
            view: common,
            weights,
            sums,
            element: PhantomData,
        });
        for t in 0..T {
            let after = View {
                from: common.to,
                to: views[t].to,
            };
            self.one::<S, E>(s, after, &weights[t], &mut sums[t * self.width..][..self.width]);
        }
    }

    #[inline(always)]
    fn one<S: Simd, E: KvElement>(self, s: S, view: View, weights: &[f32; PIECE], sums: &mut [f32]) {
        if view.from < view.to {
            let weights = std::array::from_ref(weights);
            s.vectorize(WeighTask::<E, 1> {
                place: self,
                view,
                weights,
                sums,
                element: PhantomData,
            });
        }
    }
}

struct WeighTask<'a, E, const T: usize> {
    place: Weigh<'a>,
    view: View,
    weights: &'a [[f32; PIECE]; T],
    sums: &'a mut [f32],
    element: PhantomData<E>,
}

impl<E: KvElement, const T: usize> Task for WeighTask<'_, E, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let head_dim = self.place.head_dim;
        let mut first = 0;
        while first < head_dim {
            if const { S::TILE_PANELS > 1 } && first + 2 * LANES <= head_dim {
                self.columns::<S, 2>(s, first);
                first += 2 * LANES;
            } else {
                self.columns::<S, 1>(s, first);
                first += LANES;
            }
        }
    }
}

impl<E: KvElement, const T: usize> WeighTask<'_, E, T> {
    /// The sums of `16 * V` columns from `first`; with `V` = 1 there may be fewer.
    #[inline(always)]
    fn columns<S: Simd, const V: usize>(&mut self, s: S, first: usize) {
        let Weigh {
            vectors,
            head_dim,
            width,
        } = self.place;
        let View { from, to } = self.view;
        let mut acc = [[s.splat(0.0); V]; T];
        for t in 0..T {
            for v in 0..V {
                acc[t][v] = s.load(lanes_at(&mut self.sums[t * width..], first + v * LANES));
            }
        }
        for piece in from / LANES..to.div_ceil(LANES) {
            let start = from.max(piece * LANES);
            let count = to.min(piece * LANES + LANES) - start;
            let mut weights = [&[] as &[f32]; T];
            for t in 0..T {
                weights[t] = &self.weights[t][start..][..count];
            }
            let at = (vectors[piece].slot + start % LANES) * head_dim + first;
            let values = &vectors[piece].values[at * E::BYTES..];
            for p in 0..count {
                let row = &values[p * head_dim * E::BYTES..];
                let mut x = [s.splat(0.0); V];
                for v in 0..V {
                    let lanes = head_dim - first - v * LANES;
                    x[v] = load_lanes::<S, E>(s, &row[v * LANES * E::BYTES..], lanes);
                }
                for t in 0..T {
                    let weight = s.splat(weights[t][p]);
                    for v in 0..V {
                        acc[t][v] = s.fma(weight, x[v], acc[t][v]);
                    }
                }
            }
        }
        for t in 0..T {
            for v in 0..V {
                s.store(
                    acc[t][v],
                    lanes_at(&mut self.sums[t * width..], first + v * LANES),
                );
            }
        }
    }
}

#[inline(always)]
fn lanes_at(sums: &mut [f32], at: usize) -> &mut [f32; LANES] {
    sums[at..]
        .first_chunk_mut()
        .expect("sums are padded to whole vectors")
}

/// 16 values, or as many as there are: the lanes from `lanes` on are 0.
#[inline(always)]
fn load_lanes<S: Simd, E: KvElement>(s: S, bytes: &[u8], lanes: usize) -> S::F {
    if lanes >= LANES {
        return E::load(s, bytes);
    }
    let mut padded_bytes = [0; 64];
    padded_bytes[..lanes * E::BYTES].copy_from_slice(&bytes[..lanes * E::BYTES]);
    E::load(s, &padded_bytes)
}
