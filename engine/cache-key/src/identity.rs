//! What must agree, beside the tokens, before two sequences may share KV.

use sha2::{Digest, Sha256};

use crate::CacheRoot;

/// Names the encoding, so that a root can never equal a block's key.
const ROOT_DOMAIN: &[u8] = b"kvasir.cache-key.root.v1";

/// Everything except tokens that KV depends on, or that decides who may see it.
///
/// Two identities that differ in any field, even by moving bytes from one field to its neighbour, have different roots.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CacheIdentity<'a> {
    /// Digest of the weights.
    pub weights_digest: &'a [u8],
    /// Raised when weights are replaced in place, so that old blocks become unreachable at once.
    pub weights_version: u64,
    /// Storage type of the KV cache, for example `bf16`.
    pub kv_dtype: &'a str,
    /// Separates tenants; chosen by the gateway, never by a client. Empty without tenants.
    pub tenant_salt: &'a [u8],
    /// The adapter that runs on top of the weights, if any.
    pub adapter: Option<AdapterIdentity<'a>>,
    /// SHA-256 digests of the media in the prompt, in the order of their place holders.
    pub media_digests: &'a [[u8; 32]],
    /// A client's own subdivision of its tenant's blocks. Empty means none.
    pub client_salt: &'a [u8],
}

/// An adapter by content, not by name: two adapters with one name don't share KV.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AdapterIdentity<'a> {
    /// Digest of the adapter's weights.
    pub digest: &'a [u8],
    /// Raised when the adapter is replaced in place.
    pub generation: u64,
}

impl CacheIdentity<'_> {
    /// The root of every chain under this identity.
    ///
    /// Hashes the domain, then each field as tag (1 byte), length (8 bytes, little-endian) and content. The fields of an
    /// absent adapter are left out, which differs from an adapter with an empty digest.
    pub fn root(&self) -> CacheRoot {
        let Self {
            weights_digest,
            weights_version,
            kv_dtype,
            tenant_salt,
            adapter,
            media_digests,
            client_salt,
        } = self;
        let mut fields = Fields::new();
        fields.put(Tag::WeightsDigest, weights_digest);
        fields.put(Tag::WeightsVersion, &weights_version.to_le_bytes());
        fields.put(Tag::KvDtype, kv_dtype.as_bytes());
        fields.put(Tag::TenantSalt, tenant_salt);
        if let Some(AdapterIdentity { digest, generation }) = adapter {
            fields.put(Tag::AdapterDigest, digest);
            fields.put(Tag::AdapterGeneration, &generation.to_le_bytes());
        }
        fields.put(Tag::MediaDigests, media_digests.as_flattened());
        fields.put(Tag::ClientSalt, client_salt);
        fields.finish()
    }
}

/// The tags are part of the encoding: never renumber them, only add.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Tag {
    WeightsDigest = 1,
    WeightsVersion = 2,
    KvDtype = 3,
    TenantSalt = 4,
    AdapterDigest = 5,
    AdapterGeneration = 6,
    MediaDigests = 7,
    ClientSalt = 8,
}

/// Tagged, length-prefixed fields on their way into the hash.
struct Fields(Sha256);

impl Fields {
    fn new() -> Self {
        Self(Sha256::new_with_prefix(ROOT_DOMAIN))
    }

    fn put(&mut self, tag: Tag, content: &[u8]) {
        self.0.update([tag as u8]);
        self.0.update((content.len() as u64).to_le_bytes());
        self.0.update(content);
    }

    fn finish(self) -> CacheRoot {
        CacheRoot(self.0.finalize().into())
    }
}
