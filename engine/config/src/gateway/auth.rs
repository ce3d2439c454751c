//! How clients prove who they are.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::CertificateName;

/// All ways. At least one must be configured.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthConfig {
    /// API keys.
    #[serde(default)]
    pub api_keys: ApiKeysConfig,
    /// Issuers of JSON Web Tokens.
    #[serde(default)]
    pub jwt: Vec<JwtConfig>,
    /// Tokens of the cluster, reviewed by its API server.
    pub token_review: Option<TokenReviewConfig>,
    /// Client certificates.
    #[serde(default)]
    pub certificates: Vec<CertificateConfig>,
    /// Requests without any of these.
    pub anonymous: Option<AnonymousConfig>,
}

/// API keys.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeysConfig {
    /// YAML files that hold a list like `keys`, and folders of such files whose names end in .yaml, for example mounted Secrets. An
    /// empty folder is a way in that nobody can take.
    #[serde(default)]
    pub files: Vec<PathBuf>,
    /// Keys by their digests, which are no secrets.
    #[serde(default)]
    pub keys: Vec<ApiKeyConfig>,
}

/// One key.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeyConfig {
    /// The part between the underscores.
    pub id: String,
    /// SHA-256 of the whole key, 64 hexadecimal digits.
    #[schemars(regex(pattern = "^[0-9a-fA-F]{64}$"))]
    pub sha256: String,
    /// Whose key it is.
    pub tenant: String,
    /// The first second in which it's no longer valid, since 1970-01-01 UTC.
    pub expires_unix_seconds: Option<i64>,
}

/// An issuer of tokens.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtConfig {
    /// The exact `iss`.
    pub issuer: String,
    /// Values of `aud` of which a token must have one.
    pub audiences: Vec<String>,
    /// The issuer's keys.
    pub jwks: JwksConfig,
    /// Tolerated difference between clocks, in seconds.
    #[serde(default = "default_skew")]
    #[schemars(range(max = 300))]
    pub skew_seconds: u32,
    /// The tenant of all of the issuer's tokens.
    pub tenant: Option<String>,
    /// The claim that names the tenant.
    pub claim: Option<ClaimConfig>,
}

/// Where an issuer's keys are: one of the two.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwksConfig {
    /// An https URL. Redirects aren't followed.
    pub url: Option<String>,
    /// PEM file of the authorities of the URL's certificate; left out, those that the system trusts.
    pub authorities: Option<PathBuf>,
    /// Allows an http URL: whoever is on the way could make keys.
    #[serde(default)]
    pub allow_plain_http: bool,
    /// A file; it's read again when it changes.
    pub file: Option<PathBuf>,
    /// How often the URL is asked again, in seconds.
    #[serde(default = "default_refresh")]
    #[schemars(range(min = 10, max = 86400))]
    pub refresh_seconds: u32,
}

/// A claim and the tenants that its values stand for.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimConfig {
    /// The claim, a string or a list of strings in the token.
    pub name: String,
    /// Tenants by value.
    pub tenants: BTreeMap<String, String>,
}

/// Tokens of the cluster.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenReviewConfig {
    /// The audience that tokens must be made for; never the API server's own.
    pub audience: String,
    /// The first rule that fits names the tenant.
    pub rules: Vec<ReviewRuleConfig>,
    /// The API server that reviews; left out: that of the cluster in which the gateway is a pod.
    pub api_server: Option<ApiServerConfig>,
}

/// An API server of a cluster in which the gateway isn't a pod.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiServerConfig {
    /// Its `https` URL.
    pub url: String,
    /// PEM file of the authorities of its certificate; left out: those of the system.
    pub authorities: Option<PathBuf>,
    /// File of the token by which the gateway is known there.
    pub token_file: PathBuf,
}

/// Which users a rule stands for: exactly one of namespace (with or without a service account), group and username.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReviewRuleConfig {
    /// Service accounts of a namespace.
    pub namespace: Option<String>,
    /// One service account of the namespace.
    pub service_account: Option<String>,
    /// Members of a group.
    pub group: Option<String>,
    /// One user.
    pub username: Option<String>,
    /// Whose requests theirs are.
    pub tenant: String,
}

/// A name in client certificates and its tenant.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CertificateConfig {
    /// The name.
    pub name: CertificateName,
    /// Whose requests its holder's are.
    pub tenant: String,
}

/// What becomes of requests without a credential.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnonymousConfig {
    /// Everybody who can reach the gateway is served as this tenant.
    pub serve_everybody_as: String,
}

impl JwksConfig {
    /// Keys at an https URL.
    pub fn at(url: String) -> Self {
        Self {
            url: Some(url),
            authorities: None,
            allow_plain_http: false,
            file: None,
            refresh_seconds: default_refresh(),
        }
    }
}

impl AuthConfig {
    /// Whether nobody could ever be let in.
    pub(super) fn is_empty(&self) -> bool {
        let has_keys = !self.api_keys.keys.is_empty() || !self.api_keys.files.is_empty();
        let has_tokens = !self.jwt.is_empty() || self.token_review.is_some();
        !has_keys && !has_tokens && self.certificates.is_empty() && self.anonymous.is_none()
    }
}

fn default_skew() -> u32 {
    30
}

fn default_refresh() -> u32 {
    300
}
