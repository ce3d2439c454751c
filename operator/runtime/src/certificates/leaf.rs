//! The certificate in a Secret that pods mount or that somebody else fills, whoever signed it.

use jiff::Timestamp;
use kvasir_operator_core::identity::{CERTIFICATE_KEY, Identity, PRIVATE_KEY_KEY, TRUST_KEY};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::held::{Data, KeyId, is_key_of, serial, signing_key, text, validity};
use super::issue::Made;

/// A certificate with what lies beside it.
pub(super) struct FoundLeaf {
    pub(super) made: Made,
    /// The authorities beside it; empty where there are none.
    pub(super) trust: String,
    pub(super) names: Identity,
    pub(super) begin: Timestamp,
    pub(super) end: Timestamp,
    /// Serial number of the authority that signed it, if that has a name of the operator's own.
    pub(super) issuer: Option<u64>,
    /// The key that signed it.
    pub(super) signed_by: KeyId,
    public_key: Vec<u8>,
}

/// Why a Secret holds no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoLeaf {
    /// It lacks this key, or holds nothing under it.
    #[error("it has no {0}")]
    Lacks(&'static str),
    /// What it holds can't be read.
    #[error("its {CERTIFICATE_KEY} is no certificate")]
    Unreadable,
}

impl FoundLeaf {
    /// Whether the private key is the certificate's; nothing where the key is of a kind that can't be read here.
    pub(super) fn has_its_key(&self) -> Option<bool> {
        is_key_of(&self.made.key, &self.public_key)
    }
}

/// Reads it.
pub(super) fn read(data: &Data) -> Result<FoundLeaf, NoLeaf> {
    let filled = |key| {
        let text = text(data, key).filter(|text| !text.trim().is_empty());
        text.ok_or(NoLeaf::Lacks(key))
    };
    let made = Made {
        certificate: filled(CERTIFICATE_KEY)?,
        key: filled(PRIVATE_KEY_KEY)?,
    };
    let (_, pem) = parse_x509_pem(made.certificate.as_bytes()).map_err(|_| NoLeaf::Unreadable)?;
    let certificate = pem.parse_x509().map_err(|_| NoLeaf::Unreadable)?;
    let (begin, end) = validity(&certificate).ok_or(NoLeaf::Unreadable)?;
    Ok(FoundLeaf {
        trust: text(data, TRUST_KEY).unwrap_or_default(),
        names: names_of(&certificate),
        begin,
        end,
        issuer: serial(certificate.issuer()),
        signed_by: signing_key(&certificate),
        public_key: certificate.public_key().raw.to_vec(),
        made,
    })
}

fn names_of(certificate: &X509Certificate<'_>) -> Identity {
    let mut names = Identity::default();
    let extension = certificate.subject_alternative_name().ok().flatten();
    for name in extension
        .iter()
        .flat_map(|extension| &extension.value.general_names)
    {
        match name {
            GeneralName::DNSName(dns) => names.dns.push((*dns).to_owned()),
            GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
            _ => {}
        }
    }
    names
}
