//! Makes authorities and certificates. Keys are ECDSA P-256, which everything that speaks TLS knows.

use jiff::Timestamp;
use kvasir_operator_core::certificates::{AUTHORITY_LIFE, CLOCK_SKEW};
use kvasir_operator_core::identity::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::OffsetDateTime;

use super::held::HeldAuthority;

/// What an authority's common name begins with; its serial number follows.
pub(super) const AUTHORITY_NAME: &str = "kvasir authority ";

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A new authority of the service called `service` (with its namespace).
pub(super) fn authority(service: &str, serial: u64, now: Timestamp) -> Result<Made, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = authority_params(service, serial);
    params.not_before = moment(now.saturating_sub(CLOCK_SKEW).unwrap_or(now));
    params.not_after = moment(now.saturating_add(AUTHORITY_LIFE).unwrap_or(Timestamp::MAX));
    let certificate = params.self_signed(&key)?;
    Ok(Made {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// What an authority is called and may do.
fn authority_params(service: &str, serial: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = rcgen::DistinguishedName::new();
    let name = &mut params.distinguished_name;
    name.push(DnType::OrganizationName, service);
    name.push(DnType::CommonName, format!("{AUTHORITY_NAME}{serial}"));
    params
}

/// A new certificate for both sides of a connection, that ends at `end` or with its authority, which is one of `service`.
pub(super) fn leaf(
    service: &str,
    identity: &Identity,
    name: &str,
    signer: &HeldAuthority,
    end: Timestamp,
    now: Timestamp,
) -> Result<Made, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    for dns in &identity.dns {
        params
            .subject_alt_names
            .push(SanType::DnsName(dns.as_str().try_into()?));
    }
    for uri in &identity.uris {
        params
            .subject_alt_names
            .push(SanType::URI(uri.as_str().try_into()?));
    }
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    params.not_before = moment(now.saturating_sub(CLOCK_SKEW).unwrap_or(now));
    params.not_after = moment(end.min(signer.authority.not_after));
    let authority = authority_params(service, signer.authority.serial);
    let issuer = Issuer::from_params(&authority, KeyPair::from_pem(&signer.made.key)?);
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Made {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

fn moment(at: Timestamp) -> OffsetDateTime {
    // Every timestamp that jiff has, from year -9999 to 9999, is one of time's too.
    OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
