//! Prints the objects that the operator makes first of an InferenceService, as a List that `kubectl apply` takes.
//!
//! Reads the resource as the API server returned it (with uid and defaults) as JSON from standard input.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use jiff::Timestamp;
use kvasir_operator_api::InferenceService;
use kvasir_operator_core::observed::Observed;
use kvasir_operator_core::{Settings, plan, validate};
use serde_json::{Value, json};

fn main() -> ExitCode {
    match children() {
        Ok(list) => match writeln!(io::stdout(), "{list}") {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => {
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn children() -> Result<Value, String> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| format!("can't read standard input: {e}"))?;
    let service: InferenceService =
        serde_json::from_str(&text).map_err(|e| format!("not an InferenceService: {e}"))?;
    let settings = Settings {
        alpha_topology: true,
        allow_local_sources: true,
        token_reviewers: Some("reviewers".to_owned()),
        ..Settings::default()
    };
    let validated = validate(&service, &settings).map_err(|errors| {
        errors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    })?;
    let first = plan(&validated, &Observed::default(), &settings, Timestamp::UNIX_EPOCH);
    let items: Vec<Value> = first.write.into_iter().map(|write| write.child.object).collect();
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": items }))
}
