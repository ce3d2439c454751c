//! Addresses that stay on this machine.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// An address of an engine's gRPC service: a loopback port or a Unix socket. Others are for gateways, which have
/// mutual TLS, because whoever reaches an engine can use it and read what it generates.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LocalAddress {
    /// A loopback address with a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl LocalAddress {
    /// Parses `127.0.0.1:PORT`, `localhost:PORT`, `[::1]:PORT` or `unix:PATH`; `http://` before a port is allowed.
    ///
    /// # Errors
    /// What is allowed, as a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() {
                Err("expected a path after unix:".to_owned())
            } else {
                Ok(Self::Unix(PathBuf::from(path)))
            };
        }
        if text.starts_with("https://") {
            return Err(
                "only a gateway reaches engines over TLS; use http:// on a loopback port or unix:PATH"
                    .to_owned(),
            );
        }
        let rest = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let (host, port) = rest
            .rsplit_once(':')
            .ok_or("expected 127.0.0.1:PORT or unix:PATH")?;
        let port: u16 = port
            .parse()
            .map_err(|_| format!("{port:?} isn't a port (0 to 65535)"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip = match host {
            "localhost" => IpAddr::from([127, 0, 0, 1]),
            _ => host.parse().map_err(|_| remote(host))?,
        };
        if ip.is_loopback() {
            Ok(Self::Tcp(SocketAddr::new(ip, port)))
        } else {
            Err(remote(host))
        }
    }
}

/// Where an engine listens. Beyond loopback only with mutual TLS, which [`AccessConfig`](crate::AccessConfig) checks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ListenAddress {
    /// An address with a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Parses `IP:PORT`, `[IP]:PORT`, `localhost:PORT` or `unix:PATH`; `http://` before a port is allowed.
    ///
    /// # Errors
    /// What is allowed, as a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        if let Ok(address) = rest.parse() {
            return Ok(Self::Tcp(address));
        }
        match LocalAddress::parse(text) {
            Ok(LocalAddress::Tcp(address)) => Ok(Self::Tcp(address)),
            Ok(LocalAddress::Unix(path)) => Ok(Self::Unix(path)),
            Err(_) => Err("expected IP:PORT, for example 0.0.0.0:50051, or unix:PATH".to_owned()),
        }
    }

    /// Whether processes of other machines can connect.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().is_loopback())
    }
}

fn remote(host: &str) -> String {
    format!(
        "{host:?} isn't a loopback address: without mutual TLS an engine is reached over 127.0.0.1:PORT or unix:PATH only; gateways have it"
    )
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// True if a host to bind can only be reached from this machine. Names other than `localhost` may resolve to anything.
pub fn is_loopback_host(host: &str) -> bool {
    host == "localhost"
        || host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}
