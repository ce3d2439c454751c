//! Physical KV blocks: who holds them, which are free, and whose content can be found again.

mod free_list;
mod log;
mod pool;
mod prefix;
mod table;

pub(crate) use log::Content;
pub use log::{BlockEvent, BlockEventDetail, BlockEvents, CachedBlock};
pub(crate) use pool::{BlockPool, BlockRef, Cached};
pub(crate) use table::Tables;

#[cfg(test)]
mod tests;
