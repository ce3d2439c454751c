//! Bounds of all numbers.

use super::*;

/// Every number of the file, with the bounds that a fault names.
const NUMBERS: &[(&str, i128, i128)] = &[
    ("maxBodyBytes", 1024, 1 << 30),
    ("requestTimeoutSeconds", 1, U32),
    ("shutdownTimeoutSeconds", 0, 86_400),
    ("leaveSeconds", 0, 3600),
    (
        "auth.apiKeys.keys[0].expiresUnixSeconds",
        i64::MIN as i128,
        i64::MAX as i128,
    ),
    ("auth.jwt[0].skewSeconds", 0, 300),
    ("auth.jwt[0].jwks.refreshSeconds", 10, 86_400),
    ("tenants[0].priority", i32::MIN as i128, i32::MAX as i128),
    ("tenants[0].weight", 1, U32),
    ("tenants[0].maxTokens", 1, U32),
    ("tenants[0].limits.requestsPerMinute", 1, U64),
    ("tenants[0].limits.tokensPerMinute", 1, U64),
    ("tenants[0].limits.inputTokensPerMinute", 1, U64),
    ("tenants[0].limits.outputTokensPerMinute", 1, U64),
    ("tenants[0].limits.concurrency", 1, U32),
    ("tenants[0].limits.queueSharePercent", 1, 100),
    ("limits.replicas", 1, U32),
    ("engines.endpointSlices.port", 1, 65_535),
    ("revisions[0].weight", 0, U32),
    ("routing.prefixChars", 1, U32),
    ("routing.maxIndexBlocks", 1, U32),
    ("routing.connectTimeoutMillis", 1, 60_000),
    ("routing.firstTokenTimeoutSeconds", 1, 3600),
    ("routing.interTokenTimeoutSeconds", 1, 3600),
    ("routing.maxAttempts", 1, 10),
    ("waiting.capacity", 1, U32),
    ("waiting.maxWaitSeconds", 1, 3600),
    ("waiting.holdSeconds", 0, 3600),
    ("tracing.samplePercent", 1, 100),
];
const U32: i128 = u32::MAX as i128;
const U64: i128 = u64::MAX as i128;

/// The value at a path, made where there is none.
fn at<'a>(mut value: &'a mut serde_json::Value, path: &str) -> &'a mut serde_json::Value {
    for part in path.split(['.', '[']) {
        value = match part.strip_suffix(']') {
            Some(place) => &mut value[place.parse::<usize>().unwrap()],
            None => &mut value[part],
        };
    }
    value
}

/// The paths of everything in the schema that has a number's format.
fn paths_of_numbers(
    root: &serde_json::Value,
    schema: &serde_json::Value,
    path: &str,
    into: &mut Vec<String>,
) {
    if let Some(name) = schema["$ref"].as_str() {
        return paths_of_numbers(root, root.pointer(&name[1..]).unwrap(), path, into);
    }
    for choice in schema["anyOf"].as_array().into_iter().flatten() {
        paths_of_numbers(root, choice, path, into);
    }
    if schema["format"]
        .as_str()
        .is_some_and(|format| format.contains("int"))
    {
        into.push(path.to_owned());
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let separator = if path.is_empty() { "" } else { "." };
        paths_of_numbers(root, inner, &format!("{path}{separator}{name}"), into);
    }
    if let Some(items) = schema.get("items") {
        paths_of_numbers(root, items, &format!("{path}[0]"), into);
    }
}

#[test]
fn a_number_out_of_its_bounds_is_refused_and_told_both_of_them() {
    let large = serde_json::to_value(parse_gateway(LARGE).unwrap()).unwrap();
    for (path, least, most) in NUMBERS {
        let words = format!("expected a whole number from {least} to {most}");
        for wrong in [least - 1, most + 1] {
            // What no JSON number of ours can say is left to the parser of the others.
            let Ok(wrong) = i64::try_from(wrong) else { continue };
            let mut changed = large.clone();
            *at(&mut changed, path) = wrong.into();
            drop_nulls(&mut changed);
            let faults = parse_gateway(&changed.to_string()).unwrap_err().to_string();
            assert!(faults.contains(&format!("{path}: found ")), "{wrong}: {faults}");
            assert!(faults.contains(&words), "{path} = {wrong}: {faults}");
        }
        for right in [*least, (*most).min(1 << 40)] {
            let mut changed = large.clone();
            *at(&mut changed, path) = i64::try_from(right).unwrap().into();
            drop_nulls(&mut changed);
            let faults = parse_gateway(&changed.to_string()).err();
            let is_told =
                faults.is_some_and(|faults| faults.to_string().contains(&format!("{path}: found ")));
            assert!(!is_told, "{path} = {right}");
        }
    }
}

#[test]
fn every_number_of_the_file_has_bounds() {
    let (schema, mut paths) = (gateway_schema(), Vec::new());
    paths_of_numbers(&schema, &schema, "", &mut paths);
    let mut known: Vec<&str> = NUMBERS.iter().map(|(path, ..)| *path).collect();
    known.extend(["engines.dns.port", "engines.dns.intervalSeconds"]);
    // A model's fields are of the file's own types.
    paths.retain(|path| !path.starts_with("models[0]."));
    for path in &paths {
        assert!(known.contains(&path.as_str()), "{path} isn't in the table");
    }
    assert_eq!(paths.len(), known.len());
}
