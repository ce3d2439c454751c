//! Looks whether Secrets are still what rounds saw. No watch shows them: whoever may watch Secrets may read all of them, and the operator
//! reads by name alone.
//!
//! Only the metadata of each is asked for, from the API server's own cache, at most [`BETWEEN`] apart: a deleted or edited Secret is
//! noticed within ten seconds where there are up to 500 of them, and after a time that grows with their number where there are more.
//! This finds what was done while another replica led, too: the first round reads what is there, and every look compares with that.

use std::time::Duration;

use kube::api::{Api, DynamicObject, GetParams};
use kvasir_operator_core::child::{Kind, ObjectRef};
use tokio::time::{Instant, sleep_until};

use crate::cache::{ServiceKey, version};
use crate::kinds;
use crate::watch::{Watcher, chain};

/// Shortest time between two looks at one Secret.
const PAUSE: Duration = Duration::from_secs(10);
/// Shortest time between two requests: 50 in a second.
const BETWEEN: Duration = Duration::from_millis(20);

impl Watcher {
    /// Looks at all Secrets of all services until it is dropped.
    pub(crate) async fn secrets(self) {
        let mut begin = Instant::now();
        loop {
            begin += PAUSE;
            sleep_until(begin).await;
            begin = Instant::now();
            let mut trouble = None;
            for (key, secret) in self.cache.secrets() {
                let next = Instant::now() + BETWEEN;
                match self.has_changed(&key, &secret).await {
                    Ok(true) => self.news(&key),
                    Ok(false) => {}
                    Err(error) => trouble = Some((secret, error)),
                }
                sleep_until(next).await;
            }
            if let Some((secret, error)) = trouble {
                self.metrics.watch_failed("Secret");
                tracing::warn!(%secret, error = %chain(&error), "Secrets can't be looked at");
            }
        }
    }

    /// Whether a Secret is gone, or newer than what a round saw of it.
    async fn has_changed(&self, key: &ServiceKey, secret: &ObjectRef) -> Result<bool, kube::Error> {
        let resource = kinds::resource(Kind::Secret);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let Some(seen) = self.cache.uid(key, secret) else {
            return Ok(false);
        };
        let found = api.get_metadata_opt_with(&secret.name, &GetParams::any()).await?;
        Ok(match found {
            Some(found) => {
                let version = version(found.metadata.resource_version.as_deref());
                self.cache.is_news(key, secret, version)
            }
            None => self.cache.remove(key, secret, &seen),
        })
    }
}
