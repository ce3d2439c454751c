//! Authorities and certificates as they lie in Secrets. What can't be read isn't there, and is made anew.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use kvasir_operator_core::Validated;
use kvasir_operator_core::certificates::{Authority, CLOCK_SKEW, Leaf, Subject};
use kvasir_operator_core::identity::{self, Identity};
use rcgen::{KeyPair, PublicKeyData};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::pem::parse_x509_pem;
use x509_parser::x509::X509Name;

use super::issue::{AUTHORITY_NAME, Made};
use super::{Secrets, leaf};

/// Data of a Secret.
pub(crate) type Data = BTreeMap<String, ByteString>;

/// An authority with its key, or without where that is lost.
#[derive(Clone)]
pub(crate) struct HeldAuthority {
    pub(crate) authority: Authority,
    pub(crate) made: Made,
    /// Which key it has: another authority may have had its serial number.
    key: KeyId,
}

/// What a certificate calls a key.
pub(super) type KeyId = Option<Vec<u8>>;

/// A certificate whose key lies beside it.
#[derive(Clone)]
pub(crate) struct HeldLeaf {
    pub(crate) leaf: Leaf,
    /// The authorities that lie beside it.
    pub(crate) trust: String,
    /// The key that signed it.
    signed_by: KeyId,
}

impl HeldAuthority {
    fn has_signed(&self, held: &HeldLeaf) -> bool {
        self.authority.serial == held.leaf.authority && self.key == held.signed_by
    }
}

/// Key of an authority's certificate in the Secret.
pub(super) fn certificate_key(serial: u64) -> String {
    format!("{serial}.crt")
}

/// Key of an authority's private key in the Secret.
pub(super) fn private_key_key(serial: u64) -> String {
    format!("{serial}.key")
}

/// The authorities in a Secret of the service's own. One that somebody else put there signs nothing: whoever knows its keys could speak for
/// every engine.
pub(super) fn authorities_of(secrets: &Secrets, name: &str) -> Vec<HeldAuthority> {
    let own = secrets.get(name).filter(|found| found.ours);
    own.map(|found| authorities(&found.data)).unwrap_or_default()
}

/// The authorities in a Secret, oldest first.
pub(super) fn authorities(data: &Data) -> Vec<HeldAuthority> {
    let serials = data
        .keys()
        .filter_map(|key| key.strip_suffix(".crt")?.parse::<u64>().ok());
    let mut all: Vec<_> = serials.filter_map(|serial| authority(data, serial)).collect();
    all.sort_by_key(|held| held.authority.serial);
    all
}

fn authority(data: &Data, serial: u64) -> Option<HeldAuthority> {
    let made = Made {
        certificate: text(data, &certificate_key(serial))?,
        key: text(data, &private_key_key(serial))?,
    };
    let held = read_authority(made)?;
    (held.authority.can_sign && held.authority.serial == serial).then_some(held)
}

/// An authority; without a key that is its own it can't sign.
fn read_authority(made: Made) -> Option<HeldAuthority> {
    let (_, pem) = parse_x509_pem(made.certificate.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let (begin, end) = validity(&certificate)?;
    let key = own_key(&certificate);
    let authority = Authority {
        serial: serial(certificate.subject())?,
        not_before: begin.saturating_add(CLOCK_SKEW).ok()?,
        not_after: end,
        can_sign: is_key_of(&made.key, certificate.public_key().raw) == Some(true),
    };
    certificate
        .is_ca()
        .then_some(HeldAuthority { authority, made, key })
}

/// Authorities that aren't among `held` and signed a certificate that is left: they lie beside it. Their keys are lost.
pub(super) fn lost(leaves: &[HeldLeaf], held: &[HeldAuthority]) -> Vec<HeldAuthority> {
    let mut lost: Vec<HeldAuthority> = Vec::new();
    for leaf in leaves {
        let end = "-----END CERTIFICATE-----\n";
        for text in leaf.trust.split_inclusive(end) {
            let begin = text.find("-----BEGIN").unwrap_or(0);
            let made = Made {
                certificate: text[begin..].to_owned(),
                key: String::new(),
            };
            let found = read_authority(made).filter(|found| found.has_signed(leaf));
            let is_new = |found: &HeldAuthority| {
                let mut known = held.iter().chain(&lost);
                known.all(|known| known.authority.serial != found.authority.serial)
            };
            lost.extend(found.filter(is_new));
        }
    }
    lost
}

/// A leaf by its authority among `held`; if that isn't there, by none.
pub(super) fn by_authority(held_leaf: &HeldLeaf, held: &[HeldAuthority]) -> Leaf {
    let known = held.iter().any(|authority| authority.has_signed(held_leaf));
    Leaf {
        authority: if known { held_leaf.leaf.authority } else { NOBODY },
        ..held_leaf.leaf.clone()
    }
}

/// Serial number that no authority has.
const NOBODY: u64 = 0;

/// The certificate in the Secret of `subject`, if it is for exactly that subject and its names.
pub(super) fn leaf(
    data: &Data,
    service: &Validated,
    subject: &Subject,
    names: &Identity,
) -> Option<HeldLeaf> {
    let found = leaf::read(data).ok()?;
    if let Subject::Group { id, uid } = subject
        && !found.names.uris.contains(&identity::group(service, *id, uid))
    {
        // Of an earlier group of this id.
        return None;
    }
    if found.has_its_key() != Some(true) || found.names != *names {
        return None;
    }
    let leaf = Leaf {
        subject: subject.clone(),
        authority: found.issuer?,
        not_before: found.begin.saturating_add(CLOCK_SKEW).ok()?,
        not_after: found.end,
    };
    Some(HeldLeaf {
        leaf,
        trust: found.trust,
        signed_by: found.signed_by,
    })
}

pub(super) fn text(data: &Data, key: &str) -> Option<String> {
    String::from_utf8(data.get(key)?.0.clone()).ok()
}

/// Whether the private key is that of the public one; nothing where it can't be read.
pub(super) fn is_key_of(key: &str, public: &[u8]) -> Option<bool> {
    let key = KeyPair::from_pem(key).ok()?;
    Some(key.subject_public_key_info() == public)
}

/// What the certificate calls its own key.
pub(super) fn own_key(certificate: &X509Certificate<'_>) -> KeyId {
    certificate
        .iter_extensions()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_vec()),
            _ => None,
        })
}

/// What the certificate calls the key that signed it.
pub(super) fn signing_key(certificate: &X509Certificate<'_>) -> KeyId {
    certificate
        .iter_extensions()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(signer) => {
                Some(signer.key_identifier.as_ref()?.0.to_vec())
            }
            _ => None,
        })
}

pub(super) fn validity(certificate: &X509Certificate<'_>) -> Option<(Timestamp, Timestamp)> {
    let validity = certificate.validity();
    let begin = Timestamp::from_second(validity.not_before.timestamp()).ok()?;
    let end = Timestamp::from_second(validity.not_after.timestamp()).ok()?;
    Some((begin, end))
}

/// Serial number of the authority with that name.
pub(super) fn serial(name: &X509Name<'_>) -> Option<u64> {
    let name = name.iter_common_name().next()?.as_str().ok()?;
    name.strip_prefix(AUTHORITY_NAME)?.parse().ok()
}
