//! `model.safetensors.index.json`: which shard has which tensor.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::SafetensorsError;
use super::json::{UniqueMap, malformed};

/// Most shards of a model; the largest published models have below 500.
const MAX_SHARDS: usize = 4096;

/// Parses an index; the result maps names of tensors to names of files in the index's own directory.
///
/// # Errors
/// [`SafetensorsError`], also for a shard's name that could lead out of the directory.
pub fn parse_index(bytes: &[u8]) -> Result<BTreeMap<String, String>, SafetensorsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: UniqueMap<String>,
    }
    let index: Index = serde_json::from_slice(bytes).map_err(|error| malformed(bytes, 0, &error))?;
    let weight_map = index.weight_map.0;
    if let Some((name, shard)) = weight_map.iter().find(|(_, shard)| !is_plain_shard(shard)) {
        return Err(SafetensorsError::ShardName {
            name: name.clone(),
            shard: shard.clone(),
        });
    }
    let found = weight_map.values().collect::<BTreeSet<_>>().len();
    if found > MAX_SHARDS {
        return Err(SafetensorsError::TooManyShards {
            found,
            limit: MAX_SHARDS,
        });
    }
    Ok(weight_map)
}

/// Whether `shard` is a file name and nothing more. Names with `..` inside are refused too: no converter writes them.
fn is_plain_shard(shard: &str) -> bool {
    !shard.starts_with('.')
        && shard.ends_with(".safetensors")
        && !shard.contains(['/', '\\', ':', '\0'])
        && !shard.contains("..")
}

#[cfg(test)]
mod tests {
    use super::parse_index;
    use crate::safetensors::SafetensorsError;

    #[test]
    fn index_maps_tensors_to_shards() {
        let map =
            parse_index(br#"{"metadata":{"total_size":8},"weight_map":{"a":"m-1.safetensors"}}"#).unwrap();
        assert_eq!(map["a"], "m-1.safetensors");
    }

    #[test]
    fn shard_that_leads_out_of_the_directory_is_refused() {
        for shard in [
            "../m.safetensors",
            "/m.safetensors",
            "a/m.safetensors",
            "a\\\\m.safetensors",
            "C:m.safetensors",
        ]
        .into_iter()
        .chain(["..safetensors", ".safetensors", "m.bin", "", "m..safetensors"])
        {
            let json = format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#);
            let error = parse_index(json.as_bytes()).unwrap_err();
            assert!(
                matches!(error, SafetensorsError::ShardName { .. }),
                "{shard}: {error}"
            );
        }
    }

    #[test]
    fn tensor_that_occurs_twice_is_refused_with_its_name() {
        let json = br#"{"weight_map":{"a":"m.safetensors","a":"n.safetensors"}}"#;
        let error = parse_index(json).unwrap_err().to_string();
        assert!(error.contains("`a` occurs a second time"), "{error}");
    }

    #[test]
    fn too_many_shards_are_refused() {
        let pairs: Vec<_> = (0..5000)
            .map(|i| format!(r#""t{i}":"m{i}.safetensors""#))
            .collect();
        let json = format!(r#"{{"weight_map":{{{}}}}}"#, pairs.join(","));
        let error = parse_index(json.as_bytes()).unwrap_err();
        assert_eq!(
            error,
            SafetensorsError::TooManyShards {
                found: 5000,
                limit: 4096
            }
        );
    }
}
