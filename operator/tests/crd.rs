//! The committed definition is what the command prints.

use std::path::Path;
use std::process::Command;

const GOLDEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../crds/kvasir.dev_inferenceservices.yaml"
);

/// Set to any value, it writes the golden file instead of comparing with it.
const UPDATE: &str = "UPDATE_GOLDEN";

#[test]
fn committed_definition_is_what_the_command_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_kvasir-operator"))
        .arg("crd")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let printed = String::from_utf8(output.stdout).unwrap();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(GOLDEN, &printed).unwrap();
    }
    let committed = std::fs::read_to_string(Path::new(GOLDEN)).unwrap_or_default();
    assert!(
        printed == committed,
        "{GOLDEN} is old: run this test with {UPDATE}=1"
    );
}

#[test]
fn committed_definition_stays_small() {
    // kubectl keeps a copy of what it applies in an annotation of at most 256 KiB, and people read the file. It is counted as
    // it lies in the repository and in the chart; as JSON, as kubectl keeps it, it is a tenth larger.
    let bytes = std::fs::metadata(GOLDEN).unwrap().len();
    assert!(bytes < 50_000, "{GOLDEN} has {bytes} bytes: shorten descriptions");
}
