//! Prints why a service is as it is.

use std::io::{self, Write};
use std::str::FromStr;

use kvasir_operator_runtime::{ExplainError, explain};

/// A service by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    namespace: String,
    name: String,
}

/// What was given names no service.
#[derive(Debug, thiserror::Error)]
#[error("write NAMESPACE/NAME, for example default/chat")]
pub(crate) struct NoTarget;

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err(NoTarget),
        }
    }
}

/// Why nothing was explained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// There is no thread to run on, or the output is closed.
    #[error("can't work: {0}")]
    Io(#[from] io::Error),
    /// The cluster didn't say.
    #[error(transparent)]
    Explain(#[from] ExplainError),
}

/// Asks the cluster and prints the explanation.
pub(crate) fn print(target: &Target) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let text = runtime.block_on(explain(&target.namespace, &target.name))?;
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_exactly_two_parts() {
        let target: Target = "team/chat".parse().unwrap();
        assert_eq!(
            (target.namespace.as_str(), target.name.as_str()),
            ("team", "chat")
        );
        for bad in ["", "chat", "/chat", "team/", "a/b/c"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
