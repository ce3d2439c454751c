//! Prints the custom resource definition.

use std::io::{self, Write};

use crate::yaml;

/// Why the definition couldn't be printed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It has no JSON form.
    #[error("can't serialize the custom resource definition: {0}")]
    Serialize(#[source] serde_json::Error),
    /// The output is closed or full.
    #[error("can't write to standard output: {0}")]
    Write(#[source] io::Error),
}

/// Writes the definition as YAML.
pub(crate) fn print(output: &mut impl Write) -> Result<(), Error> {
    let definition = serde_json::to_value(kvasir_operator_api::crd()).map_err(Error::Serialize)?;
    output
        .write_all(yaml::to_string(&definition).as_bytes())
        .map_err(Error::Write)?;
    output.flush().map_err(Error::Write)
}
