//! The bounds of numbers. The schema has them, from the fields' types and from what is written beside the fields, so that what an editor
//! says, what a fault says and what is refused are one thing.

use serde_json::Value;

use super::fault::Fault;
use super::file::GatewayConfig;

/// A place in the schema.
#[derive(Clone, Copy)]
struct Spot<'a> {
    root: &'a Value,
    schema: &'a Value,
}

/// The bounds of the field at a path such as `tenants[2].limits.concurrency`; none if it isn't a whole number.
pub(super) fn bounds(path: &str) -> Option<(i128, i128)> {
    let root = super::gateway_schema();
    let mut spot = Spot {
        root: &root,
        schema: &root,
    };
    for part in path.split(['.', '[']) {
        spot = match part.strip_suffix(']') {
            Some(_) => spot.item()?,
            None => spot.field(part)?,
        };
    }
    spot.bounds()
}

/// How bounds are said.
pub(super) fn words((least, most): (i128, i128)) -> String {
    format!("a whole number from {least} to {most}")
}

/// Every number that is out of its bounds.
pub(super) fn faults(config: &GatewayConfig) -> Vec<Fault> {
    let root = super::gateway_schema();
    let spot = Spot {
        root: &root,
        schema: &root,
    };
    let mut faults = Vec::new();
    // A configuration is plain data and always serializes.
    let value = serde_json::to_value(config).unwrap_or_default();
    walk(spot, &value, "", &mut faults);
    faults
}

fn walk(spot: Spot<'_>, value: &Value, path: &str, faults: &mut Vec<Fault>) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                if let Some(spot) = spot.field(name) {
                    let separator = if path.is_empty() { "" } else { "." };
                    walk(spot, inner, &format!("{path}{separator}{name}"), faults);
                }
            }
        }
        Value::Array(items) => {
            let Some(spot) = spot.item() else { return };
            for (place, inner) in items.iter().enumerate() {
                walk(spot, inner, &format!("{path}[{place}]"), faults);
            }
        }
        Value::Number(number) => {
            let found = number
                .as_i64()
                .map(i128::from)
                .or_else(|| number.as_u64().map(i128::from));
            if let (Some(found), Some(bounds @ (least, most))) = (found, spot.bounds())
                && !(least..=most).contains(&found)
            {
                faults.push(Fault::new(
                    path,
                    format!("found {found}, expected {}", words(bounds)),
                ));
            }
        }
        _ => {}
    }
}

impl Spot<'_> {
    /// Where a reference leads, and past the choice between something and nothing.
    fn resolved(self) -> Self {
        if let Some(name) = self.schema["$ref"].as_str() {
            let pointer = name.trim_start_matches('#');
            let schema = self.root.pointer(pointer).unwrap_or(&Value::Null);
            return Self { schema, ..self }.resolved();
        }
        let choices = self.schema["anyOf"].as_array();
        let something = choices.and_then(|choices| choices.iter().find(|choice| choice["type"] != "null"));
        match something {
            Some(schema) => Self { schema, ..self }.resolved(),
            None => self,
        }
    }

    fn field(self, name: &str) -> Option<Self> {
        let spot = self.resolved();
        let schema = spot.schema["properties"].get(name)?;
        Some(Self { schema, ..spot })
    }

    fn item(self) -> Option<Self> {
        let spot = self.resolved();
        let schema = spot.schema.get("items")?;
        Some(Self { schema, ..spot })
    }

    /// What the type holds, as far as nothing narrower is written.
    fn bounds(self) -> Option<(i128, i128)> {
        let schema = self.resolved().schema;
        let (least, most) = match schema["format"].as_str()? {
            "uint8" => (0, i128::from(u8::MAX)),
            "uint16" => (0, i128::from(u16::MAX)),
            "uint32" => (0, i128::from(u32::MAX)),
            "uint64" => (0, i128::from(u64::MAX)),
            "int32" => (i128::from(i32::MIN), i128::from(i32::MAX)),
            "int64" => (i128::from(i64::MIN), i128::from(i64::MAX)),
            _ => return None,
        };
        let written = |key: &str| schema[key].as_i64().map(i128::from);
        Some((
            written("minimum").unwrap_or(least),
            written("maximum").unwrap_or(most),
        ))
    }
}
