//! Physical KV blocks: who holds them, which are free, and whose content can be found again.

mod free_list;
mod pool;
mod prefix;

pub(crate) use pool::{BlockPool, BlockRef};

#[cfg(test)]
mod tests;
