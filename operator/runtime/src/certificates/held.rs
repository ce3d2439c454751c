//! Authorities and certificates as they lie in Secrets. What can't be read isn't there, and is made anew.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use kvasir_operator_core::Validated;
use kvasir_operator_core::certificates::{Authority, CLOCK_SKEW, Leaf, Subject};
use kvasir_operator_core::identity::{self, CERTIFICATE_KEY, Identity, PRIVATE_KEY_KEY, TRUST_KEY};
use rcgen::{KeyPair, PublicKeyData};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::issue::{AUTHORITY_NAME, Made};

/// Data of a Secret.
pub(crate) type Data = BTreeMap<String, ByteString>;

/// An authority with its key.
#[derive(Clone)]
pub(crate) struct HeldAuthority {
    pub(crate) authority: Authority,
    pub(crate) made: Made,
}

/// A certificate with its key.
#[derive(Clone)]
pub(crate) struct HeldLeaf {
    pub(crate) leaf: Leaf,
    pub(crate) made: Made,
    /// The authorities that lie beside it.
    pub(crate) trust: String,
}

/// Key of an authority's certificate in the Secret.
pub(super) fn certificate_key(serial: u64) -> String {
    format!("{serial}.crt")
}

/// Key of an authority's private key in the Secret.
pub(super) fn private_key_key(serial: u64) -> String {
    format!("{serial}.key")
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
    let (_, pem) = parse_x509_pem(made.certificate.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    if !certificate.is_ca() || !belongs(&made.key, &certificate) {
        return None;
    }
    let (begin, end) = validity(&certificate)?;
    Some(HeldAuthority {
        authority: Authority {
            serial,
            not_before: begin.saturating_add(CLOCK_SKEW).ok()?,
            not_after: end,
        },
        made,
    })
}

/// The certificate in the Secret of `subject`, if it is for exactly that subject and its names.
pub(super) fn leaf(
    data: &Data,
    service: &Validated,
    subject: &Subject,
    names: &Identity,
) -> Option<HeldLeaf> {
    let made = Made {
        certificate: text(data, CERTIFICATE_KEY)?,
        key: text(data, PRIVATE_KEY_KEY)?,
    };
    let (_, pem) = parse_x509_pem(made.certificate.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    if !belongs(&made.key, &certificate) {
        return None;
    }
    let (not_before, not_after) = validity(&certificate)?;
    let found = names_of(&certificate);
    let found_subject = match subject {
        Subject::Gateway => subject.clone(),
        Subject::Group { id, uid } => {
            let expected = identity::group(service, *id, uid);
            if found.uris.contains(&expected) {
                subject.clone()
            } else {
                // Of an earlier group of this id.
                return None;
            }
        }
    };
    if found != *names {
        return None;
    }
    let leaf = Leaf {
        subject: found_subject,
        authority: issuer(&certificate)?,
        not_before: not_before.saturating_add(CLOCK_SKEW).ok()?,
        not_after,
    };
    let trust = text(data, TRUST_KEY).unwrap_or_default();
    Some(HeldLeaf { leaf, made, trust })
}

pub(super) fn text(data: &Data, key: &str) -> Option<String> {
    String::from_utf8(data.get(key)?.0.clone()).ok()
}

/// Whether the private key is that of the certificate.
fn belongs(key: &str, certificate: &X509Certificate<'_>) -> bool {
    KeyPair::from_pem(key).is_ok_and(|key| key.subject_public_key_info() == certificate.public_key().raw)
}

pub(super) fn validity(certificate: &X509Certificate<'_>) -> Option<(Timestamp, Timestamp)> {
    let validity = certificate.validity();
    let begin = Timestamp::from_second(validity.not_before.timestamp()).ok()?;
    let end = Timestamp::from_second(validity.not_after.timestamp()).ok()?;
    Some((begin, end))
}

/// Serial number of the authority that signed.
fn issuer(certificate: &X509Certificate<'_>) -> Option<u64> {
    let name = certificate.issuer().iter_common_name().next()?.as_str().ok()?;
    name.strip_prefix(AUTHORITY_NAME)?.parse().ok()
}

pub(super) fn names_of(certificate: &X509Certificate<'_>) -> Identity {
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
