//! Rules of the HTTP server: who may be served without a key.

use std::path::PathBuf;

use crate::address::is_loopback_host;
use crate::error::ConfigError;
use crate::secret::Secret;
use crate::sections::HttpConfig;
use crate::value::Value;

/// Where the HTTP server listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Bind {
    /// A host and a port.
    Tcp {
        /// An address or a name.
        host: String,
        /// 0 lets the system choose.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl HttpConfig {
    /// Where to listen, given whether there is any key.
    ///
    /// # Errors
    /// If strangers could reach the server and no key guards it: vLLM's default is to serve them.
    pub fn bind(&self, has_keys: bool) -> Result<Bind, ConfigError> {
        if let Some(path) = &self.uds.value {
            // The socket's permissions decide who reaches it.
            return Ok(Bind::Unix(path.clone()));
        }
        let host = self.host.value.clone();
        if !has_keys && !self.allow_unauthenticated.value && !is_loopback_host(&host) {
            return Err(ConfigError::OpenToTheNetwork { host });
        }
        Ok(Bind::Tcp {
            host,
            port: self.port.value,
        })
    }

    /// Whether the admin routes open to the right people, given all keys and where the server listens.
    ///
    /// # Errors
    /// If a key would be both, or an admin route was asked for that nobody could use, or strangers.
    pub fn check_admin(
        &self,
        bind: &Bind,
        keys: &[Secret],
        admin_keys: &[Secret],
    ) -> Result<(), ConfigError> {
        if admin_keys.iter().any(|key| keys.contains(key)) {
            return Err(ConfigError::Conflict(
                "an admin key is also an API key, which every client has: make a key of its own for admin-api-key".to_owned(),
            ));
        }
        if !self.enable_debug_dump.value || !admin_keys.is_empty() {
            return Ok(());
        }
        let is_private = match bind {
            Bind::Unix(_) => true,
            Bind::Tcp { host, .. } => is_loopback_host(host),
        };
        if is_private && keys.is_empty() {
            return Ok(());
        }
        Err(ConfigError::DumpWithoutAdminKey)
    }
}

/// The keys of a key file: one per line; empty lines and lines that start with `#` are skipped.
///
/// # Errors
/// The number of a line that can't be a key, or that there is none: a server that was given a file of keys must not run open.
pub fn parse_key_file(text: &str, path: &str) -> Result<Vec<Secret>, ConfigError> {
    let lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()));
    let keys: Vec<Secret> = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            <Secret as Value>::parse(line)
                .map_err(|reason| ConfigError::Conflict(format!("{path}, line {number}: {reason}")))
        })
        .collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err(ConfigError::Conflict(format!(
            "{path} holds no API key: write one per line"
        )));
    }
    Ok(keys)
}
