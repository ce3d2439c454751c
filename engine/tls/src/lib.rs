//! TLS of every role, and the only place that builds a rustls configuration: one crypto provider (ring), TLS 1.2 and 1.3, ALPN for HTTP/2
//! and HTTP/1.1.
//!
//! A [`ServerTls`] or [`ClientTls`] is made from files and hands out a configuration for each new connection. When the files change,
//! [`poll`](Reloadable::poll) puts a new configuration in place; open connections keep theirs. Files that can't be used change nothing and are
//! reported. Resumption never outlives a reload, because each configuration has session storage of its own: a client whose authority was
//! removed can't come back with a ticket.
//!
//! Peers are known by the names in their certificates: see [`NameRule`]. Servers of others are known by the name that was dialled: see
//! [`web_client`].

mod client;
mod error;
mod files;
mod identity;
mod names;
mod reload;
mod server;
pub mod signature;
mod web;

pub use client::{ClientFiles, ClientTls, client_from_memory};
pub use error::{TlsError, explain};
pub use identity::{PeerIdentity, peer_identity};
pub use names::{Name, NameMismatch, NameRule};
pub use reload::{Reload, Reloadable, Source};
pub use server::{ClientAuth, ServerFiles, ServerTls};
pub use web::web_client;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};

/// The protocols that connections may speak, in the order of preference.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&TLS13, &TLS12];

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn alpn() -> Vec<Vec<u8>> {
    ALPN.iter().map(|protocol| protocol.to_vec()).collect()
}
