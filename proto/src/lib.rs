//! The wire contracts between Kvasir's processes.
//!
//! Plain data and generated stubs, nothing else. The messages are also the types of the in-process
//! client, so that a request means the same with and without a network between edge and engine.

/// An encoded `google.protobuf.FileDescriptorSet` of all our .proto files, for reflection and for the test that keeps
/// the wire compatible.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The engine service: sessions of requests over token ids.
pub mod engine {
    /// The entry of `ModelInfo.details` that says how many bytes the weights have, in decimal.
    pub const MODEL_BYTES: &str = "model_bytes";

    /// Version 1.
    #[expect(missing_docs, reason = "generated; the .proto file is documented")]
    #[allow(
        clippy::all,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        unused_qualifications,
        reason = "generated code"
    )]
    pub mod v1 {
        tonic::include_proto!("kvasir.engine.v1");
    }
}
