//! Causal attention of a few rows of one sequence over its paged keys and values, for the query heads of one KV head.
//!
//! ```text
//! m, l, acc = -inf, 0, 0                                     per query (a row and a head)
//! for each piece of 64 positions from 0 (or from the window's first piece):
//!     s[p] = scale * (sum over d of q[d] * k[p][d])          one chain over d; 16 positions are lanes
//!     m'   = max(m, s);  e[p] = exp(s[p] - m')               positions outside the query's view have e = 0
//!     l    = l * exp(m - m') + sum of e                      in one fixed order
//!     acc  = acc * exp(m - m');  for p in view: acc[d] = fma(e[p], v[p][d], acc[d])
//!     m    = m'
//! out = acc / l
//! ```
//!
//! Pieces lie at fixed positions, so a query's result depends on its position and the cache only: neither on the block
//! size, nor on the rows that are computed together. Positions outside the view are never multiplied: the memory there may
//! hold anything, NaN included.

mod score;
mod softmax;
mod weigh;

use crate::kv::{KvElement, KvLayout, with_kv_element};
use crate::matmul::Rows;
use crate::simd::{LANES, Simd, Task};
use score::Score;
use softmax::Softmax;
use weigh::Weigh;

/// Positions per step of the online softmax: four vectors, so that their chains run side by side.
const PIECE: usize = 64;

/// Queries that go through a piece together at most: their sums are in registers.
const MAX_QUERIES: usize = 6;

/// Attention of some rows of one sequence, for one KV head.
#[derive(Clone, Copy)]
pub struct AttentionTask<'a> {
    /// Shape of the storage.
    pub layout: KvLayout,
    /// One layer's storage.
    pub kv: &'a [u8],
    /// Which head of it.
    pub kv_head: usize,
    /// The physical block that holds positions `i * block_size..(i + 1) * block_size`.
    pub block_of: &'a dyn Fn(usize) -> usize,
    /// The rows.
    pub q: Rows<'a>,
    /// Where in a row the first of the KV head's query heads starts.
    pub first_q: usize,
    /// Query heads that share the KV head.
    pub num_heads: usize,
    /// Position of the first row.
    pub first_position: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Only the last this many positions are seen, the row's own included.
    pub window: Option<usize>,
}

/// A task with its working memory and the receiver of its results.
pub(crate) struct RunAttention<'a> {
    pub(crate) task: AttentionTask<'a>,
    pub(crate) scratch: &'a mut AttentionScratch,
    /// Gets `(row, values)` for every row: `num_heads * head_dim` values.
    pub(crate) sink: &'a mut dyn FnMut(usize, &[f32]),
}

/// A thread's working memory for attention.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    /// `[query][PIECE]`: scores, then their exponentials.
    scores: Vec<[f32; PIECE]>,
    /// `[query][head_dim rounded up to lanes]`.
    sums: Vec<f32>,
    stats: Vec<Stats>,
}

/// The running softmax of a query.
#[derive(Clone, Copy, Debug)]
struct Stats {
    max: f32,
    sum: f32,
}

/// Positions of a piece that a query sees: `from..to`, counted from the piece's start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct View {
    from: usize,
    to: usize,
}

/// 16 positions of the cache.
#[derive(Clone, Copy)]
struct Vector<'a> {
    keys: &'a [u8],
    values: &'a [u8],
    /// The first position's place in its block.
    slot: usize,
}

const NO_VECTOR: Vector<'static> = Vector {
    keys: &[],
    values: &[],
    slot: 0,
};

impl Task for RunAttention<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { task, scratch, sink } = self;
        let width = task.layout.head_dim().next_multiple_of(LANES);
        let num_queries = task.q.num_rows * task.num_heads;
        scratch.scores.resize(num_queries, [0.0; PIECE]);
        scratch.sums.clear();
        scratch.sums.resize(num_queries * width, 0.0);
        scratch.stats.clear();
        scratch.stats.resize(
            num_queries,
            Stats {
                max: f32::NEG_INFINITY,
                sum: 0.0,
            },
        );

        let end = task.first_position + task.q.num_rows;
        let first = task.seen(0).0 / PIECE * PIECE;
        for piece in (first..end).step_by(PIECE) {
            with_kv_element!(task.layout.kv_type(), E => add_piece::<S, E>(s, &task, piece, scratch));
        }
        finish(&task, width, scratch, sink);
    }
}

impl AttentionTask<'_> {
    /// The positions that a query sees, `from..to`.
    fn seen(&self, query: usize) -> (usize, usize) {
        let to = self.first_position + query / self.num_heads + 1;
        (self.window.map_or(0, |window| to.saturating_sub(window)), to)
    }

    fn view(&self, query: usize, piece: usize) -> View {
        let (from, to) = self.seen(query);
        let clamp = |position: usize| position.saturating_sub(piece).min(PIECE);
        View {
            from: clamp(from),
            to: clamp(to),
        }
    }

    fn query(&self, query: usize) -> &[f32] {
        let (row, head) = (query / self.num_heads, query % self.num_heads);
        let head_dim = self.layout.head_dim();
        &self.q.data[row * self.q.stride + self.first_q + head * head_dim..][..head_dim]
    }

    /// The cache's vectors of a piece; those that no query sees stay empty.
    fn vectors(&self, piece: usize) -> [Vector<'_>; PIECE / LANES] {
        let (first, _) = self.seen(0);
        let end = self.first_position + self.q.num_rows;
        let block_size = self.layout.block_size();
        let mut vectors = [NO_VECTOR; PIECE / LANES];
        for (i, vector) in vectors.iter_mut().enumerate() {
            let position = piece + i * LANES;
            if position >= end || position + LANES <= first {
                continue;
            }
            let block = (self.block_of)(position / block_size);
            let head = &self.kv[self.layout.head_at(block, self.kv_head)..][..self.layout.head_bytes()];
            let (keys, values) = head.split_at(head.len() / 2);
            *vector = Vector {
                keys,
                values,
                slot: position % block_size,
            };
        }
        vectors
    }
}

/// Divides by the softmax's sum and hands the rows on.
#[inline(always)]
fn finish(
    task: &AttentionTask<'_>,
    width: usize,
    scratch: &mut AttentionScratch,
    sink: &mut dyn FnMut(usize, &[f32]),
) {
    let head_dim = task.layout.head_dim();
    let AttentionScratch { sums, stats, .. } = scratch;
    for (row, stats) in stats.chunks(task.num_heads).enumerate() {
        let row_at = row * task.num_heads * width;
        for (head, stats) in stats.iter().enumerate() {
            // Heads move together, so that a row's values are one piece.
            let (from, to) = (row_at + head * width, row_at + head * head_dim);
            for d in 0..head_dim {
                sums[to + d] = sums[from + d] / stats.sum;
            }
        }
        sink(row, &sums[row_at..][..task.num_heads * head_dim]);
    }
}

/// Takes all queries through a piece.
#[inline(always)]
fn add_piece<S: Simd, E: KvElement>(
    s: S,
    task: &AttentionTask<'_>,
    piece: usize,
    scratch: &mut AttentionScratch,
) {
    let num_queries = task.q.num_rows * task.num_heads;
    let vectors = task.vectors(piece);
    let mut first = 0;
    while first < num_queries {
        let tile = Tile {
            task,
            piece,
            vectors: &vectors,
            first,
        };
        first += match num_queries - first {
            1 => tile.add::<S, E, 1>(s, scratch),
            2 => tile.add::<S, E, 2>(s, scratch),
            3 => tile.add::<S, E, 3>(s, scratch),
            4 | 5 => tile.add::<S, E, 4>(s, scratch),
            _ => tile.add::<S, E, MAX_QUERIES>(s, scratch),
        };
    }
}

/// A few consecutive queries and a piece.
struct Tile<'a> {
    task: &'a AttentionTask<'a>,
    piece: usize,
    vectors: &'a [Vector<'a>; PIECE / LANES],
    first: usize,
}

impl Tile<'_> {
    /// Takes `T` queries through the piece; returns `T`.
    #[inline(always)]
    fn add<S: Simd, E: KvElement, const T: usize>(self, s: S, scratch: &mut AttentionScratch) -> usize {
        let Self {
            task,
            piece,
            vectors,
            first,
        } = self;
        let layout = task.layout;
        let width = layout.head_dim().next_multiple_of(LANES);
        let mut queries = [&[] as &[f32]; T];
        let mut views = [View { from: 0, to: 0 }; T];
        for t in 0..T {
            queries[t] = task.query(first + t);
            views[t] = task.view(first + t, piece);
        }
        let scores = scratch.scores[first..][..T]
            .as_mut_array::<T>()
            .expect("T queries");
        let stats = &mut scratch.stats[first..][..T];
        let sums = &mut scratch.sums[first * width..][..T * width];
        // Views grow with the position at both ends.
        let all = View {
            from: views[0].from,
            to: views[T - 1].to,
        };
        if all.from >= all.to {
            return T;
        }
        let score = Score {
            queries,
            vectors,
            block_size: layout.block_size(),
            scale: task.scale,
        };
        score.all::<S, E>(s, all.from / LANES..all.to.div_ceil(LANES), scores);
        for t in 0..T {
            let sums = &mut sums[t * width..][..width];
            s.vectorize(Softmax {
                scores: &mut scores[t],
                view: views[t],
                stats: &mut stats[t],
                sums,
            });
        }
        let weigh = Weigh {
            vectors,
            head_dim: layout.head_dim(),
            width,
        };
        weigh.all::<S, E, T>(s, views, scores, sums);
        T
    }
}
