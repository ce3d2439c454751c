//! The wire contracts between Kvasir's processes.
//!
//! Plain data and generated stubs, nothing else. The messages are also the types of the in-process
//! client, so that a request means the same with and without a network between edge and engine.

/// The engine service: sessions of requests over token ids.
pub mod engine {
    /// Version 1.
    #[expect(missing_docs, reason = "generated; the .proto file is documented")]
    #[allow(clippy::all, clippy::pedantic, unused_qualifications, reason = "generated code")]
    pub mod v1 {
        tonic::include_proto!("kvasir.engine.v1");
    }
}
