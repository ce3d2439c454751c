//! Every order of actions at small scope: nothing is generated and nothing is left out.
//!
//! Laws, for each state that can be reached: the scheduler's own invariants hold; a step reads only what was written for its sequence and
//! writes to no block that another step in flight touches for somebody else; sequences give the output that they give alone; no order of
//! actions comes back to a state, so without new requests every run ends, and it ends with no sequence left. Time is
//! abstract: it passes as an action of its own.

mod explore;
#[path = "../shared/known.rs"]
mod known;
mod scopes;
mod world;
