//! Authorities as they lie in bundles, and which of them signed what.

use std::collections::{BTreeMap, BTreeSet};

use kvasir_operator_core::handover::AuthorityId;
use ring::digest;
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer;

use super::held::{KeyId, own_key, signing_key};

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Who signed a certificate, by name and key.
pub(super) struct Link {
    pub(super) issuer: Vec<u8>,
    signing_key: KeyId,
    pub(super) subject: Vec<u8>,
    own_key: KeyId,
}

impl Link {
    fn of(certificate: &X509Certificate<'_>) -> Self {
        Self {
            issuer: certificate.issuer().as_raw().to_vec(),
            signing_key: signing_key(certificate),
            subject: certificate.subject().as_raw().to_vec(),
            own_key: own_key(certificate),
        }
    }

    /// Keys count where both certificates name them: two authorities may have one name.
    pub(super) fn has_signed(&self, other: &Self) -> bool {
        let same_key = match (&self.own_key, &other.signing_key) {
            (Some(own), Some(signing)) => own == signing,
            _ => true,
        };
        self.subject == other.issuer && same_key
    }
}

/// An authority that somebody trusts.
pub(super) struct Anchor {
    /// Its certificate, as PEM that ends with its line.
    pub(super) pem: String,
    link: Link,
}

/// Authorities by their certificates.
#[derive(Default)]
pub(super) struct Anchors(BTreeMap<AuthorityId, Anchor>);

impl Anchors {
    /// Takes in the certificates of a bundle, as far as they can be read, and says which they are, in its order.
    pub(super) fn add(&mut self, bundle: &str) -> Vec<AuthorityId> {
        let read: Vec<(AuthorityId, Anchor)> = blocks(bundle).filter_map(read).collect();
        let ids = read.iter().map(|(id, _)| id.clone()).collect();
        for (id, anchor) in read {
            self.0.entry(id).or_insert(anchor);
        }
        ids
    }

    /// Which of them signed a certificate or what lies with it, up to the authority.
    pub(super) fn signers(&self, chain: &str) -> BTreeSet<AuthorityId> {
        let chain = links(chain);
        let has_signed = |anchor: &Anchor| chain.iter().any(|link| anchor.link.has_signed(link));
        let signers = self.0.iter().filter(|(_, anchor)| has_signed(anchor));
        signers.map(|(id, _)| id.clone()).collect()
    }

    /// The certificate of one.
    pub(super) fn pem(&self, id: &AuthorityId) -> Option<&str> {
        Some(&self.0.get(id)?.pem)
    }
}

/// The certificates of a text, as far as they can be read.
pub(super) fn links(pem: &str) -> Vec<Link> {
    let blocks = Pem::iter_from_buffer(pem.as_bytes()).filter_map(Result::ok);
    let read = |block: Pem| Some(Link::of(&block.parse_x509().ok()?));
    blocks.filter_map(read).collect()
}

/// The certificates of a text, each as it is written, with the line ends of this system.
fn blocks(bundle: &str) -> impl Iterator<Item = String> {
    bundle.split_inclusive(END).filter_map(|text| {
        let begin = text.rfind(BEGIN)?;
        let lines: Vec<&str> = text[begin..].lines().map(str::trim).collect();
        Some(lines.join("\n") + "\n")
    })
}

fn read(pem: String) -> Option<(AuthorityId, Anchor)> {
    let (_, block) = parse_x509_pem(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&block.contents).ok()?;
    let link = Link::of(&certificate);
    let digest = digest::digest(&digest::SHA256, &block.contents);
    let digits = digest.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    let id = digits
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect();
    Some((id, Anchor { pem, link }))
}
