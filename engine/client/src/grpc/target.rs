//! Where an engine is: a loopback address or a Unix socket.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use http::Uri;

/// A parsed target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Target {
    /// Host and port of plain TCP. The host resolves to loopback only, which is checked at each connection.
    Tcp { host: String, port: u16 },
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why a target can't be used.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum TargetError {
    /// Neither of the two forms.
    #[error("{0:?} is no engine address: use http://127.0.0.1:PORT or unix:/PATH")]
    Form(String),
    /// TLS was asked for.
    #[error(
        "{0:?} asks for TLS, which comes with mutual TLS between gateway and engine: use http:// on loopback or unix:/PATH"
    )]
    Tls(String),
    /// The address is reachable from elsewhere.
    #[error(
        "{0:?} is not on loopback, and without mutual TLS anybody on the network could read prompts: use http://127.0.0.1:PORT, unix:/PATH, or a tunnel to one of these"
    )]
    NotLoopback(String),
}

impl Target {
    /// Reads `http://HOST:PORT`, `unix:/PATH` or `unix:///PATH`.
    pub(super) fn parse(text: &str) -> Result<Self, TargetError> {
        let form = || TargetError::Form(text.chars().take(200).collect());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(form())
            };
        }
        let uri: Uri = text.parse().map_err(|_| form())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(TargetError::Tls(text.to_owned())),
            _ => return Err(form()),
        }
        let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let authority = uri.authority().ok_or_else(form)?;
        let (host, port) = (authority.host(), authority.port_u16().ok_or_else(form)?);
        if !bare || authority.as_str().contains('@') {
            return Err(form());
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let loopback = match host.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => host.eq_ignore_ascii_case("localhost"),
        };
        if loopback {
            Ok(Self::Tcp {
                host: host.to_owned(),
                port,
            })
        } else {
            Err(TargetError::NotLoopback(text.to_owned()))
        }
    }

    /// The first address that is on loopback: `localhost` in a hosts file may be anything.
    pub(super) fn choose(addresses: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
        addresses.into_iter().find(|address| address.ip().is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_unix_targets_are_read() {
        let tcp = |host: &str, port| {
            Ok(Target::Tcp {
                host: host.to_owned(),
                port,
            })
        };
        assert_eq!(Target::parse("http://127.0.0.1:9000"), tcp("127.0.0.1", 9000));
        assert_eq!(Target::parse("http://127.8.9.1:9000/"), tcp("127.8.9.1", 9000));
        assert_eq!(Target::parse("http://[::1]:9000"), tcp("::1", 9000));
        assert_eq!(Target::parse("http://localhost:1"), tcp("localhost", 1));
        assert_eq!(
            Target::parse("unix:/run/k.sock"),
            Ok(Target::Unix("/run/k.sock".into()))
        );
        assert_eq!(
            Target::parse("unix:///run/k.sock"),
            Ok(Target::Unix("/run/k.sock".into()))
        );
    }

    #[test]
    fn addresses_that_others_can_reach_are_refused() {
        for text in [
            "http://10.0.0.1:1",
            "http://0.0.0.0:1",
            "http://engine:1",
            "http://[::]:1",
            "http://localhost.evil:1",
        ] {
            assert_eq!(
                Target::parse(text),
                Err(TargetError::NotLoopback(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn tls_is_refused_with_its_own_message() {
        assert!(matches!(
            Target::parse("https://127.0.0.1:1"),
            Err(TargetError::Tls(_))
        ));
    }

    #[test]
    fn other_forms_are_refused() {
        let forms = [
            "",
            "127.0.0.1:1",
            "http://127.0.0.1",
            "http://127.0.0.1:99999",
            "http://127.0.0.1:1/path",
            "http://127.0.0.1:1?x",
            "http://user@127.0.0.1:1",
            "unix:",
            "unix:relative",
            "unix://relative",
            "ftp://127.0.0.1:1",
            "http://",
        ];
        for text in forms {
            assert_eq!(
                Target::parse(text),
                Err(TargetError::Form(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn a_name_that_resolves_elsewhere_is_not_connected_to() {
        let elsewhere: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let here: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!(Target::choose([elsewhere].into_iter()), None);
        assert_eq!(Target::choose([elsewhere, here].into_iter()), Some(here));
    }
}
