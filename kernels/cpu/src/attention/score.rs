//! Scores: dot products of queries with 16 positions' keys, one chain over the head's values each.

use std::marker::PhantomData;
use std::ops::Range;

use super::{PIECE, Vector};
use crate::kv::KvElement;
use crate::simd::{LANES, Simd, Task};

/// Scores of `T` queries.
#[derive(Clone, Copy)]
pub(super) struct Score<'a, const T: usize> {
    pub(super) queries: [&'a [f32]; T],
    pub(super) vectors: &'a [Vector<'a>; PIECE / LANES],
    pub(super) block_size: usize,
    pub(super) scale: f32,
}

impl<const T: usize> Score<'_, T> {
    /// The scores of some of the piece's vectors, two at a time where the registers allow.
    #[inline(always)]
    pub(super) fn all<S: Simd, E: KvElement>(self, s: S, vectors: Range<usize>, out: &mut [[f32; PIECE]; T]) {
        let mut v = vectors.start;
        while v < vectors.end {
            if const { S::TILE_PANELS > 1 } && v + 2 <= vectors.end {
                s.vectorize(ScoreTask::<E, T, 2> {
                    score: self,
                    v,
                    out,
                    element: PhantomData,
                });
                v += 2;
            } else {
                s.vectorize(ScoreTask::<E, T, 1> {
                    score: self,
                    v,
                    out,
                    element: PhantomData,
                });
                v += 1;
            }
        }
    }
}

/// Scores of vectors `v..v + V` of the piece.
struct ScoreTask<'a, E, const T: usize, const V: usize> {
    score: Score<'a, T>,
    v: usize,
    out: &'a mut [[f32; PIECE]; T],
    element: PhantomData<E>,
}

impl<E: KvElement, const T: usize, const V: usize> Task for ScoreTask<'_, E, T, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Score {
            queries: all,
            vectors,
            block_size,
            scale,
        } = self.score;
        let head_dim = all[0].len();
        let mut queries = [&[] as &[f32]; T];
        for t in 0..T {
            queries[t] = &all[t][..head_dim];
        }
        let stride = block_size * E::BYTES;
        let mut keys = [&[] as &[u8]; V];
        for v in 0..V {
            let vector = &vectors[self.v + v];
            keys[v] = &vector.keys[vector.slot * E::BYTES..];
        }
        let mut acc = [[s.splat(0.0); V]; T];
        for d in 0..head_dim {
            let mut k = [s.splat(0.0); V];
            for v in 0..V {
                k[v] = E::load(s, &keys[v][d * stride..]);
            }
            for t in 0..T {
                let q = s.splat(queries[t][d]);
                for v in 0..V {
                    acc[t][v] = s.fma(q, k[v], acc[t][v]);
                }
            }
        }
        for t in 0..T {
            let out = self.out[t].as_chunks_mut::<LANES>().0;
            for v in 0..V {
                s.store(s.mul(acc[t][v], s.splat(scale)), &mut out[self.v + v]);
            }
        }
    }
}
