//! One step's events in vLLM's format: an array `[ts, events, data_parallel_rank]` whose events are maps with their type's name under
//! `type`, optional fields left out (rule B9; vLLM 0.32 `distributed/kv_events.py`). It carries token ids.

use kvasir_engine_core::{BlockEvent, BlockEvents, CachedBlock, GroupId, SeqId};

use super::msgpack::Writer;

/// vLLM's name for the pool that steps read, on whatever device it is; `CPU` and `STORAGE` are where it offloads to.
const MEDIUM: &str = "GPU";

/// What is the same in all batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) block_size: u32,
    pub(crate) dp_rank: u32,
    /// Whether a hash is its last 64 bits as a number, which is vLLM's default, rather than 32 bytes.
    pub(crate) int_hashes: bool,
}

/// One event on the wire.
#[derive(Debug)]
enum Item {
    /// Blocks of one sequence that follow each other: events `first..last`.
    Stored {
        first: usize,
        last: usize,
    },
    /// Of one group.
    Removed {
        first: usize,
        last: usize,
    },
    AllCleared,
}

impl Format {
    /// Encodes what happened until `time`, in seconds since 1970. `request_of` gives the request of a sequence, which goes out as vLLM's
    /// session id: the request context of the event. Empty for none.
    pub(crate) fn encode<'a>(
        &self,
        time: f64,
        events: &BlockEvents,
        request_of: impl Fn(SeqId) -> &'a str,
    ) -> Vec<u8> {
        let items = group(&events.events);
        let mut writer = Writer::default();
        writer.array(3);
        writer.float(time);
        writer.array(items.len());
        for item in items {
            match item {
                Item::Stored { first, last } => {
                    self.stored(&mut writer, events, &events.events[first..last], &request_of);
                }
                Item::Removed { first, last } => self.removed(&mut writer, &events.events[first..last]),
                Item::AllCleared => {
                    writer.small_map(1);
                    kind(&mut writer, "AllBlocksCleared");
                }
            }
        }
        writer.uint(u64::from(self.dp_rank));
        writer.into_bytes()
    }

    fn stored<'a>(
        &self,
        writer: &mut Writer,
        all: &BlockEvents,
        run: &[BlockEvent],
        request_of: &impl Fn(SeqId) -> &'a str,
    ) {
        let [
            BlockEvent::Stored {
                seq,
                group,
                parent,
                tokens: first,
                ..
            },
            ..,
        ] = run
        else {
            return;
        };
        let end = match run.last() {
            Some(BlockEvent::Stored { tokens, .. }) => tokens.end,
            _ => first.end,
        };
        let tokens = &all.tokens[first.start..end];
        let request = request_of(*seq);
        writer.small_map(if request.is_empty() { 9 } else { 10 });
        kind(writer, "BlockStored");
        self.hashes(writer, run);
        writer.str("parent_block_hash");
        match parent {
            Some(parent) => self.hash(writer, &parent.0),
            None => writer.nil(),
        }
        writer.str("token_ids");
        writer.array(tokens.len());
        for &token in tokens {
            writer.uint(u64::from(token));
        }
        writer.str("block_size");
        writer.uint(u64::from(self.block_size));
        writer.str("lora_id");
        writer.nil();
        writer.str("medium");
        writer.str(MEDIUM);
        writer.str("lora_name");
        writer.nil();
        group_idx(writer, *group);
        if !request.is_empty() {
            writer.str("session_id");
            writer.str(request);
        }
    }

    fn removed(&self, writer: &mut Writer, run: &[BlockEvent]) {
        let [BlockEvent::Removed { group, .. }, ..] = run else {
            return;
        };
        writer.small_map(4);
        kind(writer, "BlockRemoved");
        self.hashes(writer, run);
        writer.str("medium");
        writer.str(MEDIUM);
        group_idx(writer, *group);
    }

    fn hashes(&self, writer: &mut Writer, run: &[BlockEvent]) {
        writer.str("block_hashes");
        writer.array(run.len());
        for content in run.iter().filter_map(content) {
            self.hash(writer, &content.hash.0);
        }
    }

    fn hash(&self, writer: &mut Writer, hash: &[u8; 32]) {
        if !self.int_hashes {
            return writer.bin(hash);
        }
        let [.., a, b, c, d, e, f, g, h] = *hash;
        writer.uint(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
    }
}

fn kind(writer: &mut Writer, name: &str) {
    writer.str("type");
    writer.str(name);
}

fn group_idx(writer: &mut Writer, group: GroupId) {
    writer.str("group_idx");
    writer.uint(u64::from(group.0));
}

fn content(event: &BlockEvent) -> Option<CachedBlock> {
    match *event {
        BlockEvent::Stored { group, hash, .. } | BlockEvent::Removed { group, hash, .. } => {
            Some(CachedBlock { group, hash })
        }
        BlockEvent::AllCleared => None,
    }
}

/// Joins neighbours: blocks of a sequence in its order, and removals of a group.
fn group(events: &[BlockEvent]) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &events[before]);
        let follows = before.is_some_and(|before| follows(before, event));
        match (event, items.last_mut()) {
            (_, Some(Item::Stored { last, .. } | Item::Removed { last, .. })) if follows => *last = index + 1,
            (BlockEvent::Stored { .. }, _) => items.push(Item::Stored {
                first: index,
                last: index + 1,
            }),
            (BlockEvent::Removed { .. }, _) => items.push(Item::Removed {
                first: index,
                last: index + 1,
            }),
            (BlockEvent::AllCleared, _) => items.push(Item::AllCleared),
        }
    }
    items
}

fn follows(before: &BlockEvent, event: &BlockEvent) -> bool {
    match (before, event) {
        (
            BlockEvent::Stored {
                seq: last_seq,
                group: last_group,
                hash,
                tokens: last_tokens,
                ..
            },
            BlockEvent::Stored {
                seq,
                group,
                parent,
                tokens,
                ..
            },
        ) => {
            (last_seq, last_group) == (seq, group)
                && *parent == Some(*hash)
                && last_tokens.end == tokens.start
        }
        (BlockEvent::Removed { group: last, .. }, BlockEvent::Removed { group, .. }) => last == group,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use kvasir_cache_key::BlockHash;

    use super::*;

    fn stored(seq: u64, parent: Option<u8>, hash: u8, tokens: std::ops::Range<usize>) -> BlockEvent {
        BlockEvent::Stored {
            seq: SeqId(seq),
            group: GroupId(0),
            hash: BlockHash([hash; 32]),
            parent: parent.map(|parent| BlockHash([parent; 32])),
            index: 0,
            tokens,
        }
    }

    fn removed(hash: u8) -> BlockEvent {
        BlockEvent::Removed {
            seq: SeqId(0),
            group: GroupId(0),
            hash: BlockHash([hash; 32]),
        }
    }

    fn shape(events: &[BlockEvent]) -> Vec<(usize, usize)> {
        group(events)
            .iter()
            .map(|item| match *item {
                Item::Stored { first, last } | Item::Removed { first, last } => (first, last),
                Item::AllCleared => (0, 0),
            })
            .collect()
    }

    #[test]
    fn blocks_of_a_sequence_in_its_order_are_one_event() {
        let events = [
            stored(1, None, 1, 0..4),
            stored(1, Some(1), 2, 4..8),
            // Another sequence, a gap in the chain, and removals between.
            stored(2, None, 3, 8..12),
            stored(2, Some(9), 4, 12..16),
            removed(7),
            removed(8),
            stored(2, Some(4), 5, 16..20),
        ];
        assert_eq!(shape(&events), [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]);
    }

    /// Made with msgspec 0.23 from vLLM's structs.
    #[test]
    fn a_batch_is_encoded_as_msgspec_encodes_it() {
        let mut events = BlockEvents::new();
        events.tokens = vec![1, 300];
        events.events = vec![stored(1, None, 1, 0..2), removed(2), BlockEvent::AllCleared];
        let format = Format {
            block_size: 2,
            dp_rank: 0,
            int_hashes: true,
        };
        let bytes = format.encode(1.5, &events, |_| "r");
        let golden = concat!(
            "93cb3ff800000000000093",
            "8aa474797065ab426c6f636b53746f726564",
            "ac626c6f636b5f68617368657391cf0101010101010101",
            "b1706172656e745f626c6f636b5f68617368c0",
            "a9746f6b656e5f6964739201cd012c",
            "aa626c6f636b5f73697a6502",
            "a76c6f72615f6964c0",
            "a66d656469756da3475055",
            "a96c6f72615f6e616d65c0",
            "a967726f75705f69647800",
            "aa73657373696f6e5f6964a172",
            "84a474797065ac426c6f636b52656d6f766564",
            "ac626c6f636b5f68617368657391cf0202020202020202",
            "a66d656469756da3475055",
            "a967726f75705f69647800",
            "81a474797065b0416c6c426c6f636b73436c6561726564",
            "00",
        );
        let hex = bytes
            .iter()
            .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        assert_eq!(hex, golden);
    }
}
