//! Looks whether objects that no watch shows are still what rounds saw of them.
//!
//! These are Secrets, because whoever may watch Secrets may read all of them, and the operator reads by name alone; and objects without our
//! label that have a name which a service needs. Only the metadata of each is asked for, from the API server's own cache, at most
//! [`BETWEEN`] apart: that one is gone or was edited is noticed within ten seconds where there are up to 500, and after a time that grows
//! with their number where there are more. What was done while another replica led is found too: the first round reads what is there.

use std::time::Duration;

use kube::api::{Api, DynamicObject, GetParams};
use kvasir_operator_core::child::ObjectRef;
use tokio::time::{Instant, sleep_until};

use crate::cache::{ServiceKey, version};
use crate::kinds;
use crate::watch::{Watcher, chain};

/// Shortest time between two looks at one object.
const PAUSE: Duration = Duration::from_secs(10);
/// Shortest time between two requests: 50 in a second.
const BETWEEN: Duration = Duration::from_millis(20);

impl Watcher {
    /// Looks at all such objects of all services until it is dropped.
    pub(crate) async fn unwatched(self) {
        let mut begin = Instant::now();
        loop {
            sleep_until(begin + PAUSE).await;
            begin = Instant::now();
            let mut trouble = None;
            for (key, object) in self.cache.unwatched() {
                let next = Instant::now() + BETWEEN;
                match self.has_changed(&key, &object).await {
                    Ok(true) => self.news(&key),
                    Ok(false) => {}
                    Err(error) => trouble = Some((object, error)),
                }
                sleep_until(next).await;
            }
            if let Some((object, error)) = trouble {
                self.metrics.watch_failed(&object.kind.to_string());
                tracing::warn!(%object, error = %chain(&error), "what isn't watched can't be looked at");
            }
        }
    }

    /// Whether an object is gone, or newer than what a round saw of it.
    async fn has_changed(&self, key: &ServiceKey, object: &ObjectRef) -> Result<bool, kube::Error> {
        let resource = kinds::resource(object.kind);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let Some(seen) = self.cache.uid(key, object) else {
            return Ok(false);
        };
        let found = api.get_metadata_opt_with(&object.name, &GetParams::any()).await?;
        Ok(match found {
            Some(found) => {
                let version = version(found.metadata.resource_version.as_deref());
                self.cache.is_news(key, object, version)
            }
            None => self.cache.remove(key, object, &seen),
        })
    }
}
