//! What the types can't say.

use std::collections::BTreeSet;

use super::auth::{AuthConfig, JwtConfig, ReviewRuleConfig, TokenReviewConfig};
use super::fault::{Fault, quoted};
use super::file::{GatewayConfig, TenantConfig};
use super::numbers;

/// Tenants of one gateway.
const MAX_TENANTS: usize = 10_000;

/// Models or adapters that a tenant names.
const MAX_NAMES: usize = 1000;

/// Everything that is wrong.
pub(super) fn faults(config: &GatewayConfig) -> Vec<Fault> {
    let mut checker = Checker {
        tenants: config.tenants.iter().map(|tenant| tenant.name.as_str()).collect(),
        faults: numbers::faults(config),
    };
    checker.doors(config);
    checker.tenants(&config.tenants);
    checker.auth(
        &config.auth,
        config
            .tls
            .as_ref()
            .is_some_and(|tls| tls.client_authorities.is_some()),
    );
    checker.models(config);
    if let Some(store) = &config.limits.store {
        let is_plain = store
            .prefix
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"-_.:".contains(&c));
        checker.require(
            is_plain && !store.prefix.is_empty(),
            "limits.store.prefix",
            || "use letters, digits and - _ . : only".to_owned(),
        );
    }
    checker.faults
}

/// Collects what is wrong.
pub(super) struct Checker<'a> {
    tenants: BTreeSet<&'a str>,
    faults: Vec<Fault>,
}

impl<'a> Checker<'a> {
    /// A fault at the path unless it holds.
    pub(super) fn require(&mut self, holds: bool, path: &str, message: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(Fault::new(path, message()));
        }
    }

    /// The tenant must be one of the file's.
    fn tenant(&mut self, path: &str, name: &str) {
        let is_known = self.tenants.contains(name);
        self.require(is_known, path, || {
            format!("there is no tenant {} under tenants", quoted(name))
        });
    }

    /// A text that must not be empty.
    pub(super) fn present(&mut self, path: &str, text: &str) {
        self.require(!text.is_empty(), path, || "must not be empty".to_owned());
    }

    fn doors(&mut self, config: &GatewayConfig) {
        let is_closed = config.tls.is_some() || config.listen.ip().is_loopback();
        self.require(is_closed, "tls", || {
            format!(
                "is needed to listen on {}: credentials would cross the network in clear text",
                config.listen
            )
        });
        self.require(
            config.listen != config.operations_listen,
            "operationsListen",
            || "must differ from listen: probes and metrics are not for clients".to_owned(),
        );
        if let Some(tracing) = &config.tracing {
            let is_url = ["http://", "https://"]
                .iter()
                .any(|scheme| tracing.endpoint.starts_with(scheme));
            self.require(is_url, "tracing.endpoint", || {
                "must begin with http:// or https://, for example http://otel:4317".to_owned()
            });
        }
    }

    fn tenants(&mut self, tenants: &'a [TenantConfig]) {
        self.require(!tenants.is_empty(), "tenants", || {
            "at least one tenant is needed, or nobody can be served".to_owned()
        });
        self.require(tenants.len() <= MAX_TENANTS, "tenants", || {
            format!(
                "{} are more than {MAX_TENANTS}; each has figures of its own, so run several gateways",
                tenants.len()
            )
        });
        let mut seen = BTreeSet::new();
        for (place, tenant) in tenants.iter().enumerate() {
            let path = |field: &str| format!("tenants[{place}].{field}");
            self.require(is_tenant_name(&tenant.name), &path("name"), || {
                format!(
                    "{} must be 1 to 63 of a-z, 0-9, - and ., with a letter or digit first and last",
                    quoted(&tenant.name)
                )
            });
            self.require(seen.insert(&tenant.name), &path("name"), || {
                format!("{} is taken", quoted(&tenant.name))
            });
            for (field, names) in [("models", &tenant.models), ("adapters", &tenant.adapters)] {
                let num_names = names.len();
                self.require(num_names <= MAX_NAMES, &path(field), || {
                    format!("{num_names} names are more than {MAX_NAMES}; write '*' for all")
                });
            }
        }
    }

    fn auth(&mut self, auth: &AuthConfig, has_client_authorities: bool) {
        self.require(!auth.is_empty(), "auth", || {
            "name at least one kind of credential, or let everybody in with auth.anonymous.serveEverybodyAs"
                .to_owned()
        });
        let mut ids = BTreeSet::new();
        for (place, key) in auth.api_keys.keys.iter().enumerate() {
            let path = |field: &str| format!("auth.apiKeys.keys[{place}].{field}");
            let is_id = !key.id.is_empty()
                && key.id.len() <= 64
                && key
                    .id
                    .bytes()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
            self.require(is_id, &path("id"), || {
                "must be 1 to 64 of a-z, 0-9 and -".to_owned()
            });
            self.require(ids.insert(&key.id), &path("id"), || {
                format!("{} is taken", quoted(&key.id))
            });
            let is_digest = key.sha256.len() == 64 && key.sha256.bytes().all(|c| c.is_ascii_hexdigit());
            // The value isn't repeated: someone may have put the key itself here.
            self.require(is_digest, &path("sha256"), || {
                "must be the 64 hexadecimal digits of the key's SHA-256".to_owned()
            });
            self.tenant(&path("tenant"), &key.tenant);
        }
        let mut issuers = BTreeSet::new();
        for (place, jwt) in auth.jwt.iter().enumerate() {
            let is_new = issuers.insert(&jwt.issuer);
            self.require(is_new, &format!("auth.jwt[{place}].issuer"), || {
                format!("{} is taken", quoted(&jwt.issuer))
            });
            self.jwt(place, jwt);
        }
        if let Some(review) = &auth.token_review {
            self.review(review);
        }
        self.require(
            auth.certificates.is_empty() || has_client_authorities,
            "tls.clientAuthorities",
            || "is needed for auth.certificates".to_owned(),
        );
        let mut names = BTreeSet::new();
        for (place, certificate) in auth.certificates.iter().enumerate() {
            let path = |field: &str| format!("auth.certificates[{place}].{field}");
            self.require(names.insert(&certificate.name), &path("name"), || {
                "is taken".to_owned()
            });
            self.tenant(&path("tenant"), &certificate.tenant);
        }
        if let Some(anonymous) = &auth.anonymous {
            self.tenant("auth.anonymous.serveEverybodyAs", &anonymous.serve_everybody_as);
        }
    }

    fn jwt(&mut self, place: usize, jwt: &JwtConfig) {
        let path = |field: &str| format!("auth.jwt[{place}].{field}");
        self.present(&path("issuer"), &jwt.issuer);
        let has_audience =
            !jwt.audiences.is_empty() && jwt.audiences.iter().all(|audience| !audience.is_empty());
        self.require(has_audience, &path("audiences"), || {
            "at least one is needed and none may be empty, or tokens for other services would do".to_owned()
        });
        self.require(
            jwt.jwks.url.is_some() != jwt.jwks.file.is_some(),
            &path("jwks"),
            || "give either url or file".to_owned(),
        );
        if let Some(url) = &jwt.jwks.url {
            let is_plain_on_purpose = jwt.jwks.allow_plain_http && url.starts_with("http://");
            self.require(
                url.starts_with("https://") || is_plain_on_purpose,
                &path("jwks.url"),
                || "must begin with https://, or anybody on the way could make keys".to_owned(),
            );
        }
        self.require(
            jwt.tenant.is_some() != jwt.claim.is_some(),
            &path("tenant"),
            || "give either tenant or claim".to_owned(),
        );
        if let Some(tenant) = &jwt.tenant {
            self.tenant(&path("tenant"), tenant);
        }
        if let Some(claim) = &jwt.claim {
            self.present(&path("claim.name"), &claim.name);
            for (value, tenant) in &claim.tenants {
                self.tenant(&path(&format!("claim.tenants.{value}")), tenant);
            }
        }
    }

    fn review(&mut self, review: &TokenReviewConfig) {
        self.present("auth.tokenReview.audience", &review.audience);
        self.require(!review.rules.is_empty(), "auth.tokenReview.rules", || {
            "at least one rule is needed".to_owned()
        });
        if let Some(server) = &review.api_server {
            let is_secure = server.url.starts_with("https://");
            self.require(is_secure, "auth.tokenReview.apiServer.url", || {
                "must begin with https://: tokens are sent there".to_owned()
            });
        }
        for (place, rule) in review.rules.iter().enumerate() {
            let ReviewRuleConfig {
                namespace,
                service_account,
                group,
                username,
                tenant,
            } = rule;
            let path = format!("auth.tokenReview.rules[{place}]");
            let num_kinds = [namespace, group, username]
                .into_iter()
                .filter(|kind| kind.is_some())
                .count();
            let holds = num_kinds == 1 && (service_account.is_none() || namespace.is_some());
            self.require(holds, &path, || {
                "give one of namespace (with or without serviceAccount), group and username".to_owned()
            });
            self.tenant(&format!("{path}.tenant"), tenant);
        }
    }
}

/// The rule of the gateway's core for tenants' names.
fn is_tenant_name(name: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.into_iter().all(|end| end.is_some_and(|c| is_plain(*c)))
        && bytes.len() <= 63
        && bytes.iter().all(|c| is_plain(*c) || matches!(c, b'-' | b'.'))
}
