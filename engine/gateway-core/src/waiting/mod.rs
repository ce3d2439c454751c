//! Decides who waits in front of the engines, for how long, and who goes next.
//!
//! A request waits in the [`WaitingRoom`] while engines are busy, or while there is none and one may come (parking: the service is scaled
//! to zero). The [`Door`] says which. The number of those who wait is a signal for scaling.
//!
//! Who goes next: of the most urgent class that waits, the tenant that was served least by its weight, and of its requests the oldest
//! (start-time fair queueing, Goyal, Vin and Cheng 1996, with tokens for packets). Classes are strict, so a class could starve; therefore
//! every fourth turn belongs to the request that has waited longest, if it has waited for its patience. Why not raise the class of those
//! who wait: one tenant's long queue would then overtake all others at once.
//!
//! Laws (properties in `tests`):
//! 1. Bounded wait: a request whose patience is over goes after at most four turns for each older request, and four more.
//! 2. Fairness: tenants of one class that always wait get tokens by weight, to within one request each; the fourth turns come on top.
//! 3. Nobody is lost: who enters leaves once, by going, leaving, or running out of time.
//! 4. The room is bounded, and each tenant's part of it.

mod door;
mod room;

pub use door::{Arrival, Door, DoorConfig, Engines, Refusal};
pub use room::{Full, RoomConfig, Signal, Waiter, WaiterId, WaitingRoom};

#[cfg(test)]
mod tests;
