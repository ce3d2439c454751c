//! What a revision serves: its text, and how its blocks are named.

use std::sync::Arc;

use kvasir_cache_key::{BlockHash, CacheIdentity, block_hash};
use kvasir_client::types::ModelInfo;
use kvasir_edge::Pipeline;
use kvasir_gateway_core::routing::{CacheLayout, KvGroup, Revision};
use kvasir_gateway_core::salt::{SaltError, TenantSalt};

/// What all engines of a revision must agree on. Token ids, hashes and answers of others would mean something else.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Identity {
    text_assets_digest: String,
    weights_digest: String,
    weights_version: u64,
    kv_dtype: String,
    block_size: u32,
    vocab_size: u32,
    max_model_len: u32,
    layout: CacheLayout,
}

/// A revision that is known.
pub(crate) struct RevisionModel {
    pub(crate) revision: Revision,
    pub(crate) pipeline: Pipeline,
    pub(crate) info: Arc<ModelInfo>,
    pub(crate) identity: Identity,
    pub(crate) num_blocks: u32,
    /// The digest's bytes, as the engine hashes them.
    weights: Vec<u8>,
}

impl Identity {
    pub(crate) fn of(info: &ModelInfo) -> Self {
        Self {
            text_assets_digest: info.text_assets_digest.clone(),
            weights_digest: info.weights_digest.clone(),
            weights_version: info.weights_version,
            kv_dtype: info.kv_dtype.clone(),
            block_size: info.block_size,
            vocab_size: info.vocab_size,
            max_model_len: info.max_model_len,
            layout: layout(info),
        }
    }

    /// What engines keep of a prompt.
    pub(super) fn layout(&self) -> &CacheLayout {
        &self.layout
    }
}

fn layout(info: &ModelInfo) -> CacheLayout {
    let groups = info.kv_groups.iter().map(|group| match group.window_positions {
        None => KvGroup::Full,
        Some(positions) => KvGroup::Window { positions },
    });
    CacheLayout::new(info.block_size, &groups.collect::<Vec<_>>())
}

impl RevisionModel {
    pub(crate) fn new(revision: Revision, pipeline: Pipeline, info: ModelInfo) -> Self {
        Self {
            revision,
            pipeline,
            identity: Identity::of(&info),
            num_blocks: info.num_blocks,
            weights: from_hex(&info.weights_digest),
            info: Arc::new(info),
        }
    }

    /// The first 8 bytes of the hashes of a prompt's full blocks, or of those at its beginning if only that is given.
    ///
    /// # Errors
    /// The client's salt is too long.
    pub(crate) fn hashes(
        &self,
        salt: &TenantSalt,
        client_salt: &str,
        prompt: &[u32],
    ) -> Result<Vec<u64>, SaltError> {
        let identity = CacheIdentity {
            weights_digest: &self.weights,
            weights_version: self.info.weights_version,
            kv_dtype: &self.info.kv_dtype,
            ..CacheIdentity::default()
        };
        let mut parent = salt.root(identity, Some(client_salt))?.as_parent();
        let size = self.info.block_size.max(1) as usize;
        let next = |tokens: &[u32]| {
            parent = block_hash(&parent, tokens);
            BlockHash::short(&parent)
        };
        Ok(prompt.chunks_exact(size).map(next).collect())
    }
}

/// The bytes of an even number of hexadecimal digits; of anything else its own bytes.
fn from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
        _ => None,
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}
