//! What a configuration means: the values that the core decides by, with the files read that it names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvasir_config::gateway::{
    ApiKeyConfig, AuthConfig, CertificateName, GatewayConfig, JwtConfig, Names, ReviewRuleConfig,
    ScopeConfig, TenantConfig, TokenReviewConfig,
};
use kvasir_files::{FileError, Limit};
use kvasir_gateway_core::auth::{
    Anonymous, Authenticator, CertificateRules, Jwks, JwksError, JwtIssuer, JwtIssuerError, KeyDigest, KeyId,
    KeyRecord, KeyTable, KeyTableError, ReviewRule, ReviewRules, San, TenantFromClaims,
};
use kvasir_gateway_core::limits::Limits;
use kvasir_gateway_core::names::{BadTenantName, TenantName};
use kvasir_gateway_core::policy::{Allowed, Policy, Scope, Tenant};
use kvasir_gateway_core::salt::{SaltError, SaltSecret};
use kvasir_gateway_core::time::UnixSeconds;

use crate::keys::{KeyFileError, parse_key_file};

/// For key files and key sets: a hundred thousand keys take this much.
const LIMIT: Limit = Limit {
    max_bytes: 16 << 20,
    advice: "is it the right file?",
};

/// Everything that the core decides by for all models; [`ModelSettings`](crate::ModelSettings) are for one.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who asks.
    pub authenticator: Authenticator,
    /// What they may do.
    pub policy: Policy,
    /// The secret of the cache salts.
    pub salt: SaltSecret,
    /// Gateways that share the limits.
    pub replicas: u32,
    /// Issuers whose keys come from a URL and aren't known yet: their place in `authenticator.issuers`, and the URL.
    pub jwks_urls: Vec<(usize, String)>,
}

/// Why a configuration can't be put into effect.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A folder of keys can't be read.
    #[error("{} can't be read: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file can't be read, or is too large.
    #[error(transparent)]
    File(#[from] FileError),
    /// A key file isn't a list of keys.
    #[error("{}: {source}", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: KeyFileError,
    },
    /// A key's id or digest has the wrong form. The digest isn't repeated, because it may be the key itself.
    #[error(
        "the key with the id {id:?} has an id that isn't 1 to 64 of a-z, 0-9 and -, or a sha256 that isn't 64 hexadecimal digits"
    )]
    Key {
        /// The id.
        id: String,
    },
    /// A key belongs to nobody.
    #[error("the key with the id {id:?} is for the tenant {tenant:?}, which isn't under tenants")]
    UnknownTenant {
        /// The key's id.
        id: String,
        /// The tenant.
        tenant: String,
    },
    /// Keys make no table.
    #[error(transparent)]
    Keys(KeyTableError),
    /// A key set can't be used.
    #[error("{}: {source}", path.display())]
    Jwks {
        /// The file.
        path: PathBuf,
        /// Why.
        source: JwksError,
    },
    /// An issuer can't be used.
    #[error(transparent)]
    Issuer(JwtIssuerError),
    /// A tenant's name can't be used.
    #[error(transparent)]
    TenantName(BadTenantName),
    /// The salt's secret can't be used.
    #[error("{}: {source}", path.display())]
    Salt {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SaltError,
    },
}

impl Settings {
    /// Reads the files that a checked configuration names, except those of TLS.
    ///
    /// # Errors
    /// A file can't be read, or what it says can't be used.
    pub fn load(config: &GatewayConfig) -> Result<Self, SettingsError> {
        let tenants = config
            .tenants
            .iter()
            .map(|tenant| Ok((name(&tenant.name)?, rules(tenant))));
        let policy = Policy {
            tenants: tenants.collect::<Result<_, SettingsError>>()?,
        };
        let secret_file = &config.cache_salt.secret_file;
        let salt = SaltSecret::new(&read(secret_file)?).map_err(|source| SettingsError::Salt {
            path: secret_file.clone(),
            source,
        })?;
        Ok(Self {
            authenticator: authenticator(&config.auth, &policy)?,
            policy,
            salt,
            replicas: config.limits.replicas.get(),
            jwks_urls: jwks_urls(&config.auth.jwt),
        })
    }
}

fn rules(tenant: &TenantConfig) -> Tenant {
    let allowed = |names: &Names| match names {
        Names::All => Allowed::All,
        Names::Only(names) => Allowed::Only(names.clone()),
    };
    let scope = |scope: &ScopeConfig| match scope {
        ScopeConfig::Inference => Scope::Inference,
        ScopeConfig::Operations => Scope::Operations,
        ScopeConfig::Admin => Scope::Admin,
    };
    let limits = &tenant.limits;
    Tenant {
        scopes: tenant.scopes.iter().map(scope).collect(),
        models: allowed(&tenant.models),
        adapters: allowed(&tenant.adapters),
        priority: tenant.priority,
        weight: tenant.weight.get(),
        max_tokens: tenant.max_tokens.map(Into::into),
        limits: Limits {
            requests_per_minute: limits.requests_per_minute.map(Into::into),
            tokens_per_minute: limits.tokens_per_minute.map(Into::into),
            input_tokens_per_minute: limits.input_tokens_per_minute.map(Into::into),
            output_tokens_per_minute: limits.output_tokens_per_minute.map(Into::into),
            concurrency: limits.concurrency.map(Into::into),
        },
        queue_share_percent: limits.queue_share_percent,
    }
}

fn authenticator(auth: &AuthConfig, policy: &Policy) -> Result<Authenticator, SettingsError> {
    let mut records = Vec::new();
    for key in &auth.api_keys.keys {
        records.push(record(key, policy)?);
    }
    for path in key_files(&auth.api_keys.files)? {
        let text = String::from_utf8_lossy(&read(&path)?).into_owned();
        let keys = parse_key_file(&text).map_err(|source| SettingsError::KeyFile { path, source })?;
        for key in &keys {
            records.push(record(key, policy)?);
        }
    }
    let mut certificates = BTreeMap::new();
    for certificate in &auth.certificates {
        let san = match &certificate.name {
            CertificateName::Dns(name) => San::Dns(name.clone()),
            CertificateName::Uri(uri) => San::Uri(uri.clone()),
        };
        certificates.insert(san, name(&certificate.tenant)?);
    }
    Ok(Authenticator {
        keys: KeyTable::new(records).map_err(SettingsError::Keys)?,
        issuers: auth.jwt.iter().map(issuer).collect::<Result<_, _>>()?,
        review: auth.token_review.as_ref().map(review).transpose()?,
        certificates: CertificateRules(certificates),
        anonymous: match &auth.anonymous {
            None => Anonymous::Refused,
            Some(anonymous) => Anonymous::ServedAs(name(&anonymous.serve_everybody_as)?),
        },
    })
}

/// The files themselves, and the `.yaml` files of folders in the order of their names. Kubernetes keeps the versions of a mounted Secret
/// in folders whose names begin with a dot.
pub(crate) fn key_files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, SettingsError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let unreadable = |source| SettingsError::Folder {
            path: path.clone(),
            source,
        };
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            let file = entry.map_err(unreadable)?.path();
            let is_hidden = file
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if !is_hidden && file.extension().is_some_and(|extension| extension == "yaml") {
                inside.push(file);
            }
        }
        inside.sort();
        files.append(&mut inside);
    }
    Ok(files)
}

fn record(key: &ApiKeyConfig, policy: &Policy) -> Result<KeyRecord, SettingsError> {
    let tenant = name(&key.tenant)?;
    if !policy.tenants.contains_key(&tenant) {
        return Err(SettingsError::UnknownTenant {
            id: key.id.clone(),
            tenant: key.tenant.clone(),
        });
    }
    let malformed = || SettingsError::Key { id: key.id.clone() };
    Ok(KeyRecord {
        id: KeyId::new(&key.id).ok_or_else(malformed)?,
        digest: KeyDigest::from_hex(&key.sha256).ok_or_else(malformed)?,
        tenant,
        expires: key.expires_unix_seconds.map(UnixSeconds),
    })
}

/// An issuer, with its keys if they come from a file.
fn issuer(jwt: &JwtConfig) -> Result<JwtIssuer, SettingsError> {
    let keys = match &jwt.jwks.file {
        None => Jwks::default(),
        Some(path) => Jwks::parse(&read(path)?).map_err(|source| SettingsError::Jwks {
            path: path.clone(),
            source,
        })?,
    };
    let tenant = match (&jwt.tenant, &jwt.claim) {
        (Some(tenant), _) => TenantFromClaims::Fixed(name(tenant)?),
        (None, claim) => {
            let tenants = claim.iter().flat_map(|claim| &claim.tenants);
            TenantFromClaims::Claim {
                claim: claim.as_ref().map(|claim| claim.name.clone()).unwrap_or_default(),
                tenants: tenants
                    .map(|(value, tenant)| Ok((value.clone(), name(tenant)?)))
                    .collect::<Result<_, SettingsError>>()?,
            }
        }
    };
    JwtIssuer::new(
        jwt.issuer.clone(),
        jwt.audiences.clone(),
        jwt.skew_seconds,
        keys,
        tenant,
    )
    .map_err(SettingsError::Issuer)
}

fn jwks_urls(issuers: &[JwtConfig]) -> Vec<(usize, String)> {
    let urls = issuers.iter().enumerate();
    urls.filter_map(|(place, jwt)| Some((place, jwt.jwks.url.clone()?)))
        .collect()
}

fn review(review: &TokenReviewConfig) -> Result<ReviewRules, SettingsError> {
    let rule = |of: &ReviewRuleConfig| {
        let rule = match (&of.namespace, &of.service_account, &of.group) {
            (Some(namespace), Some(name), _) => ReviewRule::ServiceAccount {
                namespace: namespace.clone(),
                name: name.clone(),
            },
            (Some(namespace), None, _) => ReviewRule::Namespace(namespace.clone()),
            (None, _, Some(group)) => ReviewRule::Group(group.clone()),
            (None, _, None) => ReviewRule::Username(of.username.clone().unwrap_or_default()),
        };
        Ok((rule, name(&of.tenant)?))
    };
    Ok(ReviewRules {
        audience: review.audience.clone(),
        rules: review
            .rules
            .iter()
            .map(rule)
            .collect::<Result<_, SettingsError>>()?,
    })
}

fn name(name: &str) -> Result<TenantName, SettingsError> {
    TenantName::new(name).map_err(SettingsError::TenantName)
}

fn read(path: &Path) -> Result<Vec<u8>, SettingsError> {
    Ok(kvasir_files::read(path, LIMIT)?)
}
