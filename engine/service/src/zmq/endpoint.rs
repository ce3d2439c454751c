//! Where a ZeroMQ socket listens, or what it connects to.

use std::net::IpAddr;
use std::path::PathBuf;

/// A parsed endpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Endpoint {
    /// Host and port. `*` is every IPv4 address.
    Tcp { host: String, port: u16 },
    /// A Unix socket.
    Ipc(PathBuf),
}

/// Why an endpoint can't be used.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum EndpointError {
    /// None of the forms.
    #[error("{0:?} is no ZeroMQ endpoint: use tcp://HOST:PORT, tcp://*:PORT or ipc://PATH")]
    Form(String),
    /// Only sockets of one process meet there.
    #[error("{0:?} can only be reached from inside this process: use tcp:// or ipc://")]
    Inproc(String),
    /// The rank's port doesn't exist.
    #[error("{0:?} with {1} added for the data-parallel rank is no port: use a lower one")]
    Port(String, u32),
}

impl Endpoint {
    /// Reads an endpoint. Each data-parallel rank has the port, or the path, of its number after the first one's, as in vLLM.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub(super) fn parse(text: &str, dp_rank: u32) -> Result<Self, EndpointError> {
        let form = || EndpointError::Form(text.chars().take(200).collect());
        if text.starts_with("inproc://") {
            return Err(EndpointError::Inproc(text.chars().take(200).collect()));
        }
        if let Some(path) = text.strip_prefix("ipc://") {
            return match (path, dp_rank) {
                ("", _) => Err(form()),
                (path, 0) => Ok(Self::Ipc(path.into())),
                (path, rank) => Ok(Self::Ipc(format!("{path}_dp{rank}").into())),
            };
        }
        let (host, port) = text
            .strip_prefix("tcp://")
            .and_then(|rest| rest.rsplit_once(':'))
            .ok_or_else(form)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_name = |host: &str| {
            host.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        };
        if host.is_empty() || !(host == "*" || is_name(host) || host.parse::<IpAddr>().is_ok()) {
            return Err(form());
        }
        let first: u16 = port.parse().map_err(|_| form())?;
        // Port 0 takes a free one for each rank.
        let port = if first == 0 {
            Some(0)
        } else {
            u16::try_from(u32::from(first) + dp_rank).ok()
        };
        Ok(Self::Tcp {
            host: host.to_owned(),
            port: port.ok_or_else(|| EndpointError::Port(text.to_owned(), dp_rank))?,
        })
    }

    /// vLLM's rule: what names an interface by a wildcard or is a socket file is bound, anything else is connected to.
    pub(super) fn is_bound_by_vllm(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => host == "*" || host.contains("::"),
            Self::Ipc(_) => true,
        }
    }

    /// Whether both may be one socket, so that what one listens on the other would find taken, or connect to.
    pub(super) fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ipc(one), Self::Ipc(other)) => one == other,
            (
                Self::Tcp { host: one, port },
                Self::Tcp {
                    host: other,
                    port: same,
                },
            ) => {
                port == same
                    && *port != 0
                    && (one.eq_ignore_ascii_case(other) || is_here(one) && is_here(other))
            }
            _ => false,
        }
    }

    /// Whether only this machine is behind it.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost")
                    || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            Self::Ipc(_) => true,
        }
    }
}

/// Whether a name or address leads to this machine for sure.
fn is_here(host: &str) -> bool {
    host == "*"
        || host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback() || address.is_unspecified())
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp {
            host: host.to_owned(),
            port,
        }
    }

    #[test]
    fn endpoints_are_read_and_shown() {
        for (text, endpoint, is_bound, is_local) in [
            ("tcp://*:5557", tcp("*", 5557), true, false),
            ("tcp://127.0.0.1:5557", tcp("127.0.0.1", 5557), false, true),
            ("tcp://[::1]:0", tcp("::1", 0), true, true),
            ("tcp://indexer.local:80", tcp("indexer.local", 80), false, false),
            ("ipc:///run/kv", Endpoint::Ipc("/run/kv".into()), true, true),
        ] {
            let found = Endpoint::parse(text, 0).unwrap();
            assert_eq!(found, endpoint);
            assert_eq!(found.to_string(), text);
            assert_eq!(
                (found.is_bound_by_vllm(), found.is_local()),
                (is_bound, is_local),
                "{text}"
            );
        }
    }

    #[test]
    fn each_rank_has_its_own() {
        assert_eq!(Endpoint::parse("tcp://*:5557", 3).unwrap(), tcp("*", 5560));
        assert_eq!(
            Endpoint::parse("ipc:///run/kv", 3).unwrap(),
            Endpoint::Ipc("/run/kv_dp3".into())
        );
        assert!(matches!(
            Endpoint::parse("tcp://*:65535", 1),
            Err(EndpointError::Port(..))
        ));
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "tcp://",
            "tcp://host",
            "tcp://:1",
            "tcp://h:x",
            "tcp://h:99999",
            "tcp://a b:1",
            "ipc://",
            "udp://h:1",
        ] {
            assert_eq!(
                Endpoint::parse(text, 0),
                Err(EndpointError::Form(text.to_owned())),
                "{text}"
            );
        }
        assert!(matches!(
            Endpoint::parse("inproc://x", 0),
            Err(EndpointError::Inproc(_))
        ));
    }

    #[test]
    fn two_sockets_at_one_place_are_noticed() {
        for (one, other, meet) in [
            ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557", true),
            ("tcp://*:5557", "tcp://localhost:5557", true),
            ("tcp://[::1]:5557", "tcp://0.0.0.0:5557", true),
            ("tcp://Host:5557", "tcp://host:5557", true),
            ("ipc:///run/kv", "ipc:///run/kv", true),
            ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", false),
            ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", false),
            ("tcp://elsewhere:5557", "tcp://127.0.0.1:5557", false),
            ("ipc:///run/kv", "tcp://127.0.0.1:5557", false),
        ] {
            let [one, other] = [one, other].map(|text| Endpoint::parse(text, 0).unwrap());
            assert_eq!(
                (one.meets(&other), other.meets(&one)),
                (meet, meet),
                "{one} {other}"
            );
        }
    }
}
