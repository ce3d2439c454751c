//! Who may connect to an engine, over what, and what an engine is told of its place in a cluster.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use crate::address::ListenAddress;
use crate::error::ConfigError;
use crate::gateway::CertificateName;
use crate::options::section;

section! {
    /// Mutual TLS, the ports beside gRPC, and whether only gateways are served.
    AccessConfig, "Access" {
        "tls-cert" => tls_cert: Option<PathBuf> = None, "FILE",
            "PEM file of the engine's certificate and the authorities between it and the root; read again when it changes";
        "tls-key" => tls_key: Option<PathBuf> = None, "FILE",
            "PEM file of its key";
        "tls-client-ca" => tls_client_ca: Option<PathBuf> = None, "FILE",
            "PEM file of the authorities of clients' certificates";
        "tls-client-name" => tls_client_name: Vec<CertificateName> = Vec::new(), "NAME",
            "Name of which a gateway's certificate must carry one, dns:NAME or uri:URI; repeatable";
        "tls-admin-name" => tls_admin_name: Vec<CertificateName> = Vec::new(), "NAME",
            "Name of which the operator's certificate must carry one; repeatable";
        "gateway-mode" => gateway_mode: bool = false, "",
            "Serve gateways only: every request must carry its tenant's cache salt, and KV events with tokens stay off";
        "health-listen" => health_listen: Option<SocketAddr> = None, "ADDRESS",
            "Address of /health and /ready, for probes; plain HTTP without secrets";
        "metrics-listen" => metrics_listen: Option<SocketAddr> = None, "ADDRESS",
            "Address of /metrics, for Prometheus; plain HTTP";
        "admin-listen" => admin_listen: Option<SocketAddr> = None, "ADDRESS",
            "Address of the operator's gRPC port: load, drain and metrics, over mutual TLS with --tls-admin-name";
    }
}

section! {
    /// What the operator says through the environment.
    PlaceConfig, "Place in a cluster" {
        "pod-name" => pod_name: Option<String> = None, "NAME",
            "Name of the pod";
        "pod-uid" => pod_uid: Option<String> = None, "UID",
            "Unique id of the pod; the default of --instance-id";
        "pod-ip" => pod_ip: Option<String> = None, "ADDRESS",
            "Address of the pod";
        "pod-index" => pod_index: Option<u32> = None, "INDEX",
            "Index of the pod in its group";
        "group" => group: Option<String> = None, "NAME",
            "Name of the group";
        "epoch" => epoch: Option<u64> = None, "EPOCH",
            "How often the group has joined [default: the time of the start, so that a pod that starts again is newer]";
        "rendezvous" => rendezvous: Option<String> = None, "HOST:PORT",
            "Where the ranks of a group meet";
        "world-size" => world_size: NonZeroU32 = ONE, "RANKS",
            "Ranks of the group";
        "tensor-parallel-size" => tensor_parallel_size: NonZeroU32 = ONE, "RANKS",
            "Ranks that share each layer";
        "pipeline-parallel-size" => pipeline_parallel_size: NonZeroU32 = ONE, "RANKS",
            "Ranks that share the layers";
        "data-parallel-size" => data_parallel_size: NonZeroU32 = ONE, "RANKS",
            "Coupled copies of the model";
    }
}

const ONE: NonZeroU32 = NonZeroU32::MIN;

/// The files of an engine's TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EngineTlsFiles<'a> {
    /// Its certificate.
    pub certificate: &'a Path,
    /// Its key.
    pub key: &'a Path,
    /// The authorities of clients' certificates.
    pub client_authorities: &'a Path,
}

impl AccessConfig {
    /// The files of TLS; `None` where it's off.
    ///
    /// # Errors
    /// Some are named and others aren't.
    pub fn tls_files(&self) -> Result<Option<EngineTlsFiles<'_>>, ConfigError> {
        match (
            &self.tls_cert.value,
            &self.tls_key.value,
            &self.tls_client_ca.value,
        ) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), Some(client_authorities)) => Ok(Some(EngineTlsFiles {
                certificate,
                key,
                client_authorities,
            })),
            _ => Err(ConfigError::Conflict(
                "tls-cert, tls-key and tls-client-ca belong together: an engine asks its clients for certificates, \
                 so give all three or none"
                    .to_owned(),
            )),
        }
    }

    /// Checks the rules that bind these options and the address of gRPC.
    ///
    /// # Errors
    /// The rule that is broken, with the way out.
    pub fn validate(&self, listen: &ListenAddress) -> Result<(), ConfigError> {
        let conflict = |message: String| Err(ConfigError::Conflict(message));
        let has_tls = self.tls_files()?.is_some();
        if listen.is_remote() && !has_tls {
            return conflict(format!(
                "listen ({listen}) isn't a loopback address, and whoever reaches an engine can read prompts: give tls-cert, tls-key, \
                 tls-client-ca and tls-client-name, or listen on 127.0.0.1 or a Unix socket"
            ));
        }
        let is_tcp = matches!(listen, ListenAddress::Tcp(_));
        if has_tls && is_tcp && self.tls_client_name.value.is_empty() {
            return conflict(
                "tls-client-name is missing: it says whose certificates may use the engine, for example \
                 --tls-client-name dns:gateway.chat.svc"
                    .to_owned(),
            );
        }
        if let Some(admin) = self.admin_listen.value
            && (!has_tls || self.tls_admin_name.value.is_empty())
        {
            return conflict(format!(
                "admin-listen ({admin}) needs mutual TLS: give tls-cert, tls-key, tls-client-ca and tls-admin-name"
            ));
        }
        Ok(())
    }
}

impl PlaceConfig {
    /// Checks that this build can be a rank of such a group.
    ///
    /// # Errors
    /// The group has several ranks.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let sizes = [
            ("world-size", self.world_size.value),
            ("tensor-parallel-size", self.tensor_parallel_size.value),
            ("pipeline-parallel-size", self.pipeline_parallel_size.value),
            ("data-parallel-size", self.data_parallel_size.value),
        ];
        match sizes.into_iter().find(|(_, size)| *size > ONE) {
            None => Ok(()),
            Some((name, size)) => Err(ConfigError::Conflict(format!(
                "{name} is {size}, and this build runs a model on one rank only: leave it at 1"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layer, Source};

    fn access(options: &[(&str, &str)]) -> AccessConfig {
        let mut layer = Layer::default();
        for (key, text) in options {
            layer.set(*key, Source::Flag, vec![(*text).to_owned()]);
        }
        AccessConfig::resolve(&layer).unwrap()
    }

    fn check(listen: &str, options: &[(&str, &str)]) -> Result<(), String> {
        let listen = ListenAddress::parse(listen).unwrap();
        access(options)
            .validate(&listen)
            .map_err(|error| error.to_string())
    }

    const TLS: [(&str, &str); 4] = [
        ("tls-cert", "c"),
        ("tls-key", "k"),
        ("tls-client-ca", "a"),
        ("tls-client-name", "dns:gateway.a.svc"),
    ];

    #[test]
    fn beyond_loopback_only_mutual_tls_is_served() {
        for listen in ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/e.sock"] {
            assert_eq!(check(listen, &[]), Ok(()), "{listen}");
        }
        for listen in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            assert!(
                check(listen, &[]).unwrap_err().contains("tls-client-ca"),
                "{listen}"
            );
            assert!(check(listen, &TLS[..2]).is_err(), "{listen}");
            assert!(
                check(listen, &TLS[..3]).unwrap_err().contains("tls-client-name"),
                "{listen}"
            );
            assert_eq!(check(listen, &TLS), Ok(()), "{listen}");
        }
    }

    #[test]
    fn the_admin_port_is_for_the_operators_name_alone() {
        let admin = ("admin-listen", "127.0.0.1:8082");
        assert!(check("127.0.0.1:1", &[admin]).is_err());
        let mut options = TLS.to_vec();
        options.push(admin);
        assert!(
            check("127.0.0.1:1", &options)
                .unwrap_err()
                .contains("tls-admin-name")
        );
        options.push(("tls-admin-name", "uri:spiffe://kvasir/operator"));
        assert_eq!(check("127.0.0.1:1", &options), Ok(()));
    }

    #[test]
    fn names_and_addresses_of_a_wrong_form_are_refused() {
        for (key, text) in [
            ("tls-client-name", "gateway"),
            ("health-listen", "8080"),
            ("health-listen", "localhost"),
        ] {
            let mut layer = Layer::default();
            layer.set(key, Source::Flag, vec![text.to_owned()]);
            assert!(AccessConfig::resolve(&layer).is_err(), "{key} {text}");
        }
    }

    #[test]
    fn a_group_of_several_ranks_is_refused_until_there_is_one() {
        let mut layer = Layer::default();
        layer.set("group", Source::Flag, vec!["chat-0".to_owned()]);
        assert!(PlaceConfig::resolve(&layer).unwrap().validate().is_ok());
        layer.set("world-size", Source::Flag, vec!["2".to_owned()]);
        let error = PlaceConfig::resolve(&layer).unwrap().validate().unwrap_err();
        assert!(error.to_string().contains("world-size is 2"), "{error}");
    }
}
