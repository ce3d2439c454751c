//! Golden vectors (made with Python's `hashlib` from the documented encodings) and injectivity by generation.

use proptest::prelude::*;
use sha2::{Digest, Sha256};

use crate::{AdapterIdentity, BlockHash, CacheIdentity, CacheRoot, block_hash};

fn full_identity() -> CacheIdentity<'static> {
    CacheIdentity {
        weights_digest: &[1, 2, 3],
        weights_version: 7,
        kv_dtype: "bf16",
        tenant_salt: b"tenant",
        adapter: Some(AdapterIdentity {
            digest: &[0xaa, 0xbb],
            generation: 2,
        }),
        media_digests: &[[5; 32], [6; 32]],
        client_salt: b"salt",
    }
}

fn hex(bytes: [u8; 32]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[test]
fn the_root_of_an_empty_identity_is_the_golden_one() {
    let root = CacheIdentity::default().root();
    assert_eq!(
        hex(root.0),
        "23f7b1a14bd2d21479c227ba19770f1fbda79cf98dfb127fd232a50b50af7e00"
    );
}

#[test]
fn the_root_of_a_full_identity_is_the_golden_one() {
    assert_eq!(
        hex(full_identity().root().0),
        "88d441e030ac941dca99c244d8a2367b44d1e67d3ed47de45d2dfd7d496501a2"
    );
}

#[test]
fn chained_blocks_have_the_golden_hashes() {
    let first = block_hash(&full_identity().root().as_parent(), &(0..16).collect::<Vec<_>>());
    assert_eq!(
        hex(first.0),
        "8d6226b02cc9d52f280194cfdc822c4391fbe4e4c3b44fc6ca97306c73b46772"
    );
    let second = block_hash(&first, &[u32::MAX; 16]);
    assert_eq!(
        hex(second.0),
        "fd0050136ebf6a7c46809b5a66434fd3cbbbb0ae3d30c0c0a8eeaa53d3e3838b"
    );
}

/// Engines and gateways of different versions compare these.
#[test]
fn the_short_form_is_the_first_eight_bytes_in_the_order_of_the_hashes() {
    let first = block_hash(&full_identity().root().as_parent(), &(0..16).collect::<Vec<_>>());
    assert_eq!(first.short(), 0x8d62_26b0_2cc9_d52f);
    let low = BlockHash(
        [[0, 0, 0, 0, 0, 0, 0, 1].as_slice(), &[255; 24]]
            .concat()
            .try_into()
            .unwrap(),
    );
    let high = BlockHash(
        [[1, 0, 0, 0, 0, 0, 0, 0].as_slice(), &[0; 24]]
            .concat()
            .try_into()
            .unwrap(),
    );
    assert!(low < high && low.short() < high.short());
}

#[test]
fn a_block_longer_than_one_piece_has_the_golden_hash() {
    let root = CacheIdentity::default().root();
    let hash = block_hash(&root.as_parent(), &(0..130).collect::<Vec<_>>());
    assert_eq!(
        hex(hash.0),
        "d96a9dbfc1c94ba72ddb83c9154cc2e7ce0e3a008b3ae9333b2dc402d73b9aa5"
    );
}

#[test]
fn a_key_is_plain_sha_256_of_the_documented_bytes_whatever_their_number() {
    let parent = full_identity().root().as_parent();
    for len in 0..300 {
        let tokens: Vec<u32> = (0..len)
            .map(|token: u32| token.wrapping_mul(0x0101_0101))
            .collect();
        let mut bytes = b"kvasir.kv.v2".to_vec();
        bytes.extend(u64::from(len).to_le_bytes());
        bytes.extend(parent.0);
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        let expected: [u8; 32] = Sha256::digest(&bytes).into();
        assert_eq!(block_hash(&parent, &tokens).0, expected, "{len} tokens");
    }
}

#[test]
fn an_adapter_named_like_a_salt_shares_nothing_with_it() {
    let adapter = AdapterIdentity {
        digest: b"tenant-A",
        generation: 0,
    };
    let by_adapter = CacheIdentity {
        adapter: Some(adapter),
        ..CacheIdentity::default()
    };
    let by_tenant = CacheIdentity {
        tenant_salt: b"tenant-A",
        ..CacheIdentity::default()
    };
    let by_client = CacheIdentity {
        client_salt: b"tenant-A",
        ..CacheIdentity::default()
    };
    let roots = [
        by_adapter.root(),
        by_tenant.root(),
        by_client.root(),
        CacheIdentity::default().root(),
    ];
    for (index, root) in roots.iter().enumerate() {
        assert!(!roots[index + 1..].contains(root), "root {index} appears twice");
    }
}

#[test]
fn an_adapter_without_content_differs_from_no_adapter() {
    let adapter = AdapterIdentity {
        digest: b"",
        generation: 0,
    };
    let with = CacheIdentity {
        adapter: Some(adapter),
        ..CacheIdentity::default()
    };
    assert_ne!(with.root(), CacheIdentity::default().root());
}

#[test]
fn a_new_generation_of_weights_or_adapter_changes_the_root() {
    let old = full_identity();
    let new_weights = CacheIdentity {
        weights_version: 8,
        ..old
    };
    let new_adapter = CacheIdentity {
        adapter: Some(AdapterIdentity {
            digest: &[0xaa, 0xbb],
            generation: 3,
        }),
        ..old
    };
    assert_ne!(old.root(), new_weights.root());
    assert_ne!(old.root(), new_adapter.root());
    assert_ne!(new_weights.root(), new_adapter.root());
}

#[test]
fn the_order_of_media_matters() {
    let swapped = CacheIdentity {
        media_digests: &[[6; 32], [5; 32]],
        ..full_identity()
    };
    assert_ne!(swapped.root(), full_identity().root());
}

#[test]
fn equal_tokens_after_different_prefixes_have_different_hashes() {
    let root = full_identity().root().as_parent();
    let after_a = block_hash(&block_hash(&root, &[1, 2]), &[5, 6]);
    let after_b = block_hash(&block_hash(&root, &[1, 3]), &[5, 6]);
    assert_ne!(after_a, after_b);
}

#[test]
fn the_cut_into_blocks_is_part_of_the_hash() {
    let root = full_identity().root().as_parent();
    let at_once = block_hash(&root, &[1, 2, 3, 4]);
    let in_two = block_hash(&block_hash(&root, &[1, 2]), &[3, 4]);
    assert_ne!(at_once, in_two);
}

#[test]
fn a_token_is_four_bytes_and_not_a_string_of_smaller_tokens() {
    let root = CacheRoot([0; 32]).as_parent();
    assert_ne!(block_hash(&root, &[0x0001_0000]), block_hash(&root, &[0, 1]));
    assert_ne!(block_hash(&root, &[]), block_hash(&root, &[0]));
}

/// An identity that owns its fields, from few and short values, so that fields collide often.
#[derive(Clone, Debug, PartialEq)]
struct Owned {
    weights_digest: Vec<u8>,
    weights_version: u64,
    kv_dtype: String,
    tenant_salt: Vec<u8>,
    adapter: Option<(Vec<u8>, u64)>,
    media: Vec<[u8; 32]>,
    client_salt: Vec<u8>,
}

impl Owned {
    fn root(&self) -> CacheRoot {
        let adapter = self.adapter.as_ref();
        CacheIdentity {
            weights_digest: &self.weights_digest,
            weights_version: self.weights_version,
            kv_dtype: &self.kv_dtype,
            tenant_salt: &self.tenant_salt,
            adapter: adapter.map(|(digest, generation)| AdapterIdentity {
                digest,
                generation: *generation,
            }),
            media_digests: &self.media,
            client_salt: &self.client_salt,
        }
        .root()
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // Tags, lengths and zeros are what an ambiguous encoding would confuse.
    proptest::collection::vec(0_u8..=8, 0..4)
}

prop_compose! {
    fn identity()(
        weights_digest in bytes(),
        weights_version in 0_u64..2,
        kv_dtype in "[ab]{0,2}",
        tenant_salt in bytes(),
        adapter in proptest::option::of((bytes(), 0_u64..2)),
        media in proptest::collection::vec((0_u8..2).prop_map(|byte| [byte; 32]), 0..3),
        client_salt in bytes(),
    ) -> Owned {
        Owned { weights_digest, weights_version, kv_dtype, tenant_salt, adapter, media, client_salt }
    }
}

proptest! {
    #[test]
    fn roots_are_equal_exactly_for_equal_identities(a in identity(), b in identity()) {
        prop_assert_eq!(a == b, a.root() == b.root());
        prop_assert_eq!(a.root(), a.clone().root());
    }

    #[test]
    fn a_byte_moved_to_the_next_field_changes_the_root(a in identity()) {
        let mut moved = a.clone();
        if let Some(byte) = moved.tenant_salt.pop() {
            moved.client_salt.insert(0, byte);
            prop_assert_ne!(moved.root(), a.root());
        }
    }

    #[test]
    fn hashes_are_equal_exactly_for_equal_parents_and_tokens(
        a in (0_u8..2, proptest::collection::vec(0_u32..3, 0..4)),
        b in (0_u8..2, proptest::collection::vec(0_u32..3, 0..4)),
    ) {
        let hash = |(parent, tokens): &(u8, Vec<u32>)| block_hash(&BlockHash([*parent; 32]), tokens);
        prop_assert_eq!(a == b, hash(&a) == hash(&b));
    }

    #[test]
    fn no_block_of_a_chain_repeats(tokens in proptest::collection::vec(0_u32..2, 0..64)) {
        let root = CacheIdentity::default().root().as_parent();
        let mut seen = vec![root];
        for block in tokens.chunks_exact(4) {
            let hash = block_hash(&seen[seen.len() - 1], block);
            prop_assert!(!seen.contains(&hash));
            seen.push(hash);
        }
    }
}
