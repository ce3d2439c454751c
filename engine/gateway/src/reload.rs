//! The configuration file and everything that it names, looked at again and again: a new version is taken over while requests run, one that
//! can't be used changes nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kvasir_config::gateway::{GatewayConfig, GatewayFaults, MAX_GATEWAY_FILE_BYTES, parse_gateway};
use kvasir_files::{FileError, Limit};
use kvasir_tls::{Reload, Reloadable, ServerTls};
use sha2::{Digest, Sha256};

use crate::door::Live;
use crate::fleet::Fleet;
use crate::metrics::GatewayMetrics;
use crate::outside::Outside;
use crate::pools::Pools;
use crate::settings::{Settings, SettingsError, key_files};
use crate::store::Accounts;

/// The configuration among what can be refused, and the certificates that clients are shown; the others are those for engines.
const FILE: &str = "configuration";
const SERVER: &str = "server";

/// How often files are looked at. A cluster swaps links to change them, which some file systems don't announce.
const INTERVAL: Duration = Duration::from_secs(1);

/// Largest configuration file, in bytes; what is larger isn't even read.
const MAX_CONFIG_BYTES: u64 = MAX_GATEWAY_FILE_BYTES as u64;
/// Largest file that it names; a larger one is refused when it is loaded.
const MAX_NAMED_BYTES: u64 = 16 << 20;

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("{} has more than {MAX_CONFIG_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It says something that can't be.
    #[error("{} can't be used:\n{source}", path.display())]
    Faults {
        /// The file.
        path: PathBuf,
        /// What.
        source: GatewayFaults,
    },
    /// A file that it names can't be used.
    #[error("{} can't be used: {source}", path.display())]
    Settings {
        /// The file.
        path: PathBuf,
        /// What.
        source: SettingsError,
    },
}

/// A configuration in effect, and what it was read from.
pub(crate) struct ConfigFile {
    path: PathBuf,
    pub(crate) config: GatewayConfig,
    pub(crate) settings: Settings,
    /// Of all contents.
    digest: [u8; 32],
}

impl ConfigFile {
    /// Reads the file and those that it names.
    ///
    /// # Errors
    /// One of them can't be used.
    pub(crate) fn read(path: &Path) -> Result<Self, LoadError> {
        // The digest first: what changes meanwhile is seen as a change at the next look.
        let (config, digest) = parse(path)?;
        Self::load(path, config, digest)
    }

    fn load(path: &Path, config: GatewayConfig, digest: [u8; 32]) -> Result<Self, LoadError> {
        let settings = Settings::load(&config).map_err(|source| LoadError::Settings {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            config,
            settings,
            digest,
        })
    }

    /// What requests are decided by.
    pub(crate) fn live(&self, outside: &Outside, pools: Pools) -> Live {
        let mut settings = self.settings.clone();
        settings.authenticator = outside.with_keys(&settings.authenticator);
        Live {
            settings,
            pools,
            reviewer: outside.reviewer(&self.config.auth),
            keys: outside.keys.clone(),
        }
    }
}

/// Takes over what changes.
pub(crate) struct Reloader {
    /// What the process began with: a part of it stays until the next start.
    pub(crate) started: GatewayConfig,
    pub(crate) file: ConfigFile,
    pub(crate) live: Arc<ArcSwap<Live>>,
    pub(crate) fleet: Fleet,
    pub(crate) accounts: Accounts,
    pub(crate) metrics: Arc<GatewayMetrics>,
    pub(crate) outside: Outside,
    pub(crate) server_tls: Option<Arc<ServerTls>>,
    /// What can't be used as it is now, and why. What was refused is reported once.
    pub(crate) refused: BTreeMap<String, String>,
}

impl Reloader {
    /// Looks at the files until it's dropped.
    pub(crate) async fn run(mut self) {
        // A version that was refused is reported once.
        let mut last_seen = self.file.digest;
        loop {
            self.follow_models().await;
            self.advance_models();
            self.follow_certificates().await;
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.outside.keys_changed() => {
                    // Tokens of a rotated key are waited for: this can't wait for the next look.
                    let pools = self.fleet.pools(&self.file.config);
                    self.live.store(Arc::new(self.file.live(&self.outside, pools)));
                    continue;
                }
            }
            let path = self.file.path.clone();
            let looked = tokio::task::spawn_blocking(move || look(&path, last_seen)).await;
            let Ok(Some((digest, read))) = looked else {
                continue;
            };
            last_seen = digest;
            match read {
                Ok(file) => self.take_over(file),
                Err(error) => {
                    self.refuse(FILE, error.to_string());
                    tracing::error!(%error, "the changed configuration can't be used; the old one stays");
                }
            }
        }
    }

    fn take_over(&mut self, file: ConfigFile) {
        let waiting = waiting_for_restart(&self.started, &file.config);
        if !waiting.is_empty() {
            tracing::warn!(
                settings = waiting.join(", "),
                "these changes take effect at the next start"
            );
        }
        self.metrics.waiting_for_restart(&waiting);
        let (old, new) = (&self.file.config, &file.config);
        if format!("{:?}", old.auth.jwt) != format!("{:?}", new.auth.jwt)
            && let Err(error) = self.outside.follow_issuers(&new.auth.jwt)
        {
            self.refuse(FILE, error.to_string());
            tracing::error!(%error, "the new issuers' keys can't be followed; the old configuration stays");
            return;
        }
        if let Err(error) = self.outside.follow_reviews(new.auth.token_review.as_ref()) {
            self.refuse(FILE, error.to_string());
            tracing::error!(%error, "tokens can't be reviewed as configured now; the old configuration stays");
            return;
        }
        self.accounts.set_replicas(file.settings.replicas);
        self.fleet.take_over(new);
        let live = file.live(&self.outside, self.fleet.pools(new));
        self.accounts
            .retain(|tenant| live.settings.policy.tenants.contains_key(tenant));
        self.live.store(Arc::new(live));
        self.fleet.dismiss();
        self.file = file;
        let known = self.fleet.which();
        self.refused
            .retain(|which, _| known.contains(which) || which == SERVER);
        self.accept(FILE);
        tracing::info!(path = %self.file.path.display(), tenants = self.file.config.tenants.len(), "a new configuration is in effect");
    }

    /// A model whose certificates or source can't be used isn't served, and keeps nobody else from being served; it's tried at each look.
    async fn follow_models(&mut self) {
        for (which, followed) in self.fleet.start_missing(&mut self.outside).await {
            match followed {
                Ok(()) if self.refused.contains_key(&which) => self.accept(&which),
                Ok(()) => {}
                Err(reason) if self.refused.get(&which) == Some(&reason) => {}
                Err(reason) => {
                    tracing::error!(which, reason, "can't be followed as configured; it's tried again");
                    self.refuse(&which, reason);
                }
            }
        }
    }

    /// Takes over what of the models can be served as configured only now.
    fn advance_models(&mut self) {
        if self.fleet.advance() {
            let pools = self.fleet.pools(&self.file.config);
            self.live.store(Arc::new(self.file.live(&self.outside, pools)));
            self.fleet.dismiss();
        }
    }

    async fn follow_certificates(&mut self) {
        if let Some(tls) = self.server_tls.clone()
            && let Some(end) = self.poll(SERVER, &tls).await
        {
            self.metrics.certificate_end(end);
        }
        for (which, tls, pool) in self.fleet.certificates() {
            if let Some(end) = self.poll(&which, &tls).await {
                pool.metrics.certificate_end(end);
            }
        }
    }

    fn refuse(&mut self, what: &str, why: String) {
        self.refused.insert(what.to_owned(), why);
        self.metrics.reloaded(false, false);
    }

    fn accept(&mut self, what: &str) {
        self.refused.remove(what);
        self.metrics.reloaded(true, self.refused.is_empty());
    }

    /// Takes over new certificates, and answers when those in effect end.
    async fn poll<S>(&mut self, which: &str, tls: &Arc<Reloadable<S>>) -> Option<i64>
    where
        S: kvasir_tls::Source + Send + Sync + 'static,
        S::Config: Send + Sync,
    {
        let polled = Arc::clone(tls);
        match tokio::task::spawn_blocking(move || polled.poll()).await {
            // They are again what they were before something was refused.
            Ok(Reload::Unchanged) if self.refused.contains_key(which) => self.accept(which),
            Ok(Reload::Unchanged) => {}
            Ok(Reload::Reloaded) => {
                self.accept(which);
                tracing::info!(which, "took over new certificates");
            }
            Ok(Reload::Refused(error)) if self.refused.get(which) == Some(&error.to_string()) => {}
            Ok(Reload::Refused(error)) => {
                self.refuse(which, error.to_string());
                tracing::error!(which, %error, "the changed certificates can't be used; the old ones stay");
            }
            Err(error) => tracing::error!(which, %error, "looking at the certificates failed"),
        }
        tls.not_after()
    }
}

/// Settings of a new version that the process can't take over while it runs, by their places in the file.
fn waiting_for_restart(started: &GatewayConfig, new: &GatewayConfig) -> Vec<&'static str> {
    let is_same = |of: fn(&GatewayConfig) -> String| of(started) == of(new);
    let settings: [(&str, bool); 8] = [
        ("listen", is_same(|config| config.listen.to_string())),
        (
            "operationsListen",
            is_same(|config| config.operations_listen.to_string()),
        ),
        ("auditFile", is_same(|config| format!("{:?}", config.audit_file))),
        ("tls", is_same(|config| format!("{:?}", config.tls))),
        ("engines", is_same(|config| format!("{:?}", config.engines))),
        (
            "limits.store",
            is_same(|config| format!("{:?}", config.limits.store)),
        ),
        ("routing", is_same(|config| format!("{:?}", config.routing))),
        (
            "waiting.capacity",
            is_same(|config| config.waiting.capacity.to_string()),
        ),
    ];
    let waiting = settings.into_iter().filter(|(_, is_same)| !is_same);
    waiting.map(|(setting, _)| setting).collect()
}

/// The digest of what is there now and what it means, if it isn't what was seen last.
fn look(path: &Path, last_seen: [u8; 32]) -> Option<([u8; 32], Result<ConfigFile, LoadError>)> {
    let parsed = parse(path);
    let digest = match &parsed {
        Ok((_, digest)) => *digest,
        // What can't be read at all has no content; its text tells one fault from another.
        Err(error) => Sha256::digest(error.to_string().as_bytes()).into(),
    };
    // A hundred thousand keys are only read as such when they have changed.
    (digest != last_seen).then(|| {
        let read = parsed.and_then(|(config, digest)| ConfigFile::load(path, config, digest));
        (digest, read)
    })
}

/// What the file says, and the digest of it and of what it names.
fn parse(path: &Path) -> Result<(GatewayConfig, [u8; 32]), LoadError> {
    let yaml = read(path)?;
    let config = parse_gateway(&yaml).map_err(|source| LoadError::Faults {
        path: path.to_owned(),
        source,
    })?;
    let digest = digest(&yaml, &config);
    Ok((config, digest))
}

fn read(path: &Path) -> Result<String, LoadError> {
    kvasir_files::read_text(path, limit(MAX_CONFIG_BYTES)).map_err(|error| match error {
        FileError::TooLarge { .. } | FileError::Endless { .. } => LoadError::TooLarge {
            path: path.to_owned(),
        },
        other => LoadError::Read {
            path: path.to_owned(),
            source: other.into_io(),
        },
    })
}

const fn limit(max_bytes: u64) -> Limit {
    Limit {
        max_bytes,
        advice: "is it the right file?",
    }
}

/// Over the text and the contents of the files that it names and that requests are decided by.
fn digest(yaml: &str, config: &GatewayConfig) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut put = |content: &[u8]| {
        hash.update((content.len() as u64).to_le_bytes());
        hash.update(content);
    };
    put(yaml.as_bytes());
    let key_sets = config.auth.jwt.iter().filter_map(|jwt| jwt.jwks.file.as_ref());
    let keys = key_files(&config.auth.api_keys.files).unwrap_or_default();
    let files = keys.iter().chain(key_sets);
    for file in files.chain([&config.cache_salt.secret_file]) {
        put(&kvasir_files::read(file, limit(MAX_NAMED_BYTES)).unwrap_or_default());
    }
    hash.finalize().into()
}
