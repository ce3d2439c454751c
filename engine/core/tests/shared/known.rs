//! A sequence as an executor knows it, and the check that a plan's part for it is its own. For every test that runs plans.

use kvasir_engine_core::{BlockId, GroupId, PENDING_TOKEN, SeqPlan, StepPlan, TokenId};

/// What a position's KV holds: every token up to it, and where its digest began.
pub(crate) fn extend_digest(before: u64, token: TokenId) -> u64 {
    (before ^ u64::from(token).wrapping_add(1))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(23)
}

/// Tokens and block tables.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Known {
    /// Where the digests of its positions begin.
    root: u64,
    prompt_len: usize,
    /// Prompt and sampled tokens.
    pub(crate) tokens: Vec<TokenId>,
    /// Those of them that the scheduler knows; the others were sampled by steps in flight.
    pub(crate) num_reported: usize,
    /// One for each KV group.
    pub(crate) tables: Vec<Vec<BlockId>>,
}

impl Known {
    pub(crate) fn new(root: u64, prompt: &[TokenId], num_groups: usize) -> Self {
        Self {
            root,
            prompt_len: prompt.len(),
            tokens: prompt.to_vec(),
            num_reported: prompt.len(),
            tables: vec![Vec::new(); num_groups],
        }
    }

    /// Takes over how a plan changes the block tables, and gives the digests of all positions up to the end of its part of the step. Asserts that
    /// the plan's tokens are the sequence's, with placeholders where the scheduler can't know them yet.
    pub(crate) fn follow(&mut self, seq: &SeqPlan, plan: &StepPlan) -> Vec<u64> {
        self.change_tables(seq, plan);
        let first = seq.first_position as usize;
        let end = first + seq.tokens.len();
        let mut expected = self.tokens[first..end].to_vec();
        let num_known = self.num_reported.saturating_sub(first).min(expected.len());
        expected[num_known..].fill(PENDING_TOKEN);
        assert_eq!(
            plan.tokens[seq.tokens.clone()],
            expected,
            "{:?} computes tokens that aren't its own",
            seq.seq
        );
        assert_eq!(
            seq.samples,
            end == self.tokens.len(),
            "{:?} samples exactly after its last token",
            seq.seq
        );
        assert_eq!(
            seq.output_index as usize,
            self.tokens.len() - self.prompt_len,
            "{:?} draws at another position",
            seq.seq
        );
        let mut digest = self.root;
        let chain = self.tokens[..end].iter().map(|&token| {
            digest = extend_digest(digest, token);
            digest
        });
        chain.collect()
    }

    fn change_tables(&mut self, seq: &SeqPlan, plan: &StepPlan) {
        assert_eq!(plan.num_groups as usize, self.tables.len());
        for (group, table) in (0..).map(GroupId).zip(&mut self.tables) {
            table.truncate(seq.blocks_from as usize);
            assert_eq!(table.len(), seq.blocks_from as usize, "the block table has a gap");
            table.extend_from_slice(plan.blocks_of(seq, group));
        }
    }
}
