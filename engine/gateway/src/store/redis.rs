//! The accounts in a Redis server, version 7 or newer.
//!
//! One connection carries all calls at once. A call that fails or takes too long drops it, and the next one connects again; whether to ask
//! at all is decided by [`Accounts`](super::Accounts). The core says what the scripts do, and writes their arguments and reads their answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kvasir_config::gateway::LimitStoreConfig;
use kvasir_files::{FileError, Limit, read_text};
use kvasir_gateway_core::limits::store::{
    Admission, CHARGE_SCRIPT, MERGE_SCRIPT, RENEW_SCRIPT, SETTLE_SCRIPT, keys,
};
use kvasir_gateway_core::limits::{Cost, Exhausted, Limits, MergeItem, StoreAdjustment, script};
use kvasir_gateway_core::names::TenantName;
use kvasir_tls::{TlsError, web_client};
use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo, RedisError,
    Script,
};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::{LimitStore, StoreError};

/// Longest call, a new connection included: every request of every client waits for one.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest URL.
const MAX_URL_BYTES: usize = 4096;

/// Accounts in a Redis server.
#[derive(Debug)]
pub struct RedisStore {
    server: ConnectionInfo,
    /// Whose certificates are believed; `None` without TLS.
    tls: Option<Trust>,
    prefix: String,
    connection: Mutex<Option<Open>>,
    charge: Script,
    settle: Script,
    merge: Script,
    renew: Script,
}

#[derive(Debug)]
struct Trust {
    authorities: Option<PathBuf>,
}

#[derive(Clone)]
struct Open {
    connection: MultiplexedConnection,
    /// Drives it.
    driver: Arc<AbortOnDropHandle<()>>,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").finish_non_exhaustive()
    }
}

/// Why a store can't be configured so. The URL isn't repeated: it may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum RedisStoreError {
    /// The file can't be read.
    #[error(transparent)]
    Read(#[from] FileError),
    /// It's no URL of a Redis server.
    #[error(
        "not the URL of a Redis server: write redis://HOST:PORT/, rediss://HOST:PORT/ or unix:PATH, with USER:PASSWORD@ before the host if it needs one"
    )]
    Url,
    /// The authorities can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl RedisStore {
    /// The store of a configuration, with the file read that holds its URL.
    ///
    /// # Errors
    /// The file can't be read, or holds no URL.
    pub fn of_config(config: &LimitStoreConfig) -> Result<Self, RedisStoreError> {
        let url = read_text(&config.redis_url_file, Limit::SMALL)?;
        Self::new(url.trim(), &config.prefix, config.authorities.as_deref())
    }

    /// A server at a URL. Keys begin with the prefix. Nothing is connected yet.
    ///
    /// # Errors
    /// It's no URL of a Redis server, or the authorities can't be used.
    pub fn new(url: &str, prefix: &str, authorities: Option<&Path>) -> Result<Self, RedisStoreError> {
        if url.len() > MAX_URL_BYTES {
            return Err(RedisStoreError::Url);
        }
        // TLS is ours: for the library it's a stream like another.
        let (plain, tls) = match url.strip_prefix("rediss://") {
            None => (url.to_owned(), None),
            Some(rest) => {
                web_client(authorities)?;
                let authorities = authorities.map(Path::to_owned);
                (format!("redis://{rest}"), Some(Trust { authorities }))
            }
        };
        let server = plain.into_connection_info().map_err(|_| RedisStoreError::Url)?;
        Ok(Self {
            server,
            tls,
            prefix: prefix.to_owned(),
            connection: Mutex::default(),
            charge: Script::new(CHARGE_SCRIPT),
            settle: Script::new(SETTLE_SCRIPT),
            merge: Script::new(MERGE_SCRIPT),
            renew: Script::new(RENEW_SCRIPT),
        })
    }

    async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[String],
    ) -> Result<T, StoreError> {
        let mut invocation = script.prepare_invoke();
        for key in keys {
            invocation.key(key);
        }
        for argument in arguments {
            invocation.arg(argument);
        }
        self.within(async |mut open: Open| {
            let answer: Result<T, RedisError> = invocation.invoke_async(&mut open.connection).await;
            answer
        })
        .await
    }

    /// Makes a call within its time; a connection that failed isn't used again.
    async fn within<T>(
        &self,
        call: impl AsyncFnOnce(Open) -> Result<T, RedisError>,
    ) -> Result<T, StoreError> {
        let called = async {
            let open = self.open().await?;
            call(open).await.map_err(|error| StoreError::Unavailable {
                reason: error.to_string(),
            })
        };
        let result = match tokio::time::timeout(CALL_TIMEOUT, called).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::TimedOut { after: CALL_TIMEOUT }),
        };
        if result.is_err() {
            *self.connection.lock().await = None;
        }
        result
    }

    async fn open(&self) -> Result<Open, StoreError> {
        let mut slot = self.connection.lock().await;
        if let Some(open) = &*slot
            && !open.driver.is_finished()
        {
            return Ok(open.clone());
        }
        let unavailable = |reason: String| StoreError::Unavailable { reason };
        let stream = self
            .connect()
            .await
            .map_err(|error| unavailable(error.to_string()))?;
        let opened = MultiplexedConnection::new_with_config(
            self.server.redis_settings(),
            stream,
            AsyncConnectionConfig::new(),
        )
        .await;
        let (connection, driver) = opened.map_err(|error| unavailable(error.to_string()))?;
        let open = Open {
            connection,
            driver: Arc::new(AbortOnDropHandle::new(tokio::spawn(driver))),
        };
        *slot = Some(open.clone());
        Ok(open)
    }

    async fn connect(&self) -> std::io::Result<std::pin::Pin<Box<dyn AsyncStream + Send + Sync>>> {
        let (host, port) = match self.server.addr() {
            ConnectionAddr::Tcp(host, port) => (host.as_str(), *port),
            ConnectionAddr::Unix(path) => return Ok(Box::pin(UnixStream::connect(path).await?)),
            other => return Err(std::io::Error::other(format!("{other} isn't supported"))),
        };
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let Some(trust) = &self.tls else {
            return Ok(Box::pin(stream));
        };
        let config = web_client(trust.authorities.as_deref()).map_err(std::io::Error::other)?;
        let name = host.to_owned().try_into().map_err(std::io::Error::other)?;
        Ok(Box::pin(TlsConnector::from(config).connect(name, stream).await?))
    }
}

#[async_trait]
impl LimitStore for RedisStore {
    async fn charge(
        &self,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
        (request, lease): (&str, Duration),
    ) -> Result<Result<Admission, Exhausted>, StoreError> {
        let arguments = script::charge_arguments(limits, estimate, request, lease);
        let answer: Vec<i64> = self
            .call(&self.charge, &keys(&self.prefix, tenant), &arguments)
            .await?;
        let call = "a charge";
        script::charge_answer(&answer, limits, estimate).ok_or(StoreError::Unexpected { call })
    }

    async fn settle(&self, adjustment: &StoreAdjustment, request: &str) -> Result<(), StoreError> {
        let arguments = script::settle_arguments(adjustment, request);
        let keys = keys(&self.prefix, &adjustment.tenant);
        let _: i64 = self.call(&self.settle, &keys, &arguments).await?;
        Ok(())
    }

    async fn merge(&self, tenant: &TenantName, items: &[MergeItem]) -> Result<u64, StoreError> {
        let [window, _] = keys(&self.prefix, tenant);
        let arguments = script::merge_arguments(items);
        self.call(&self.merge, &[window], &arguments).await
    }

    async fn renew(
        &self,
        tenant: &TenantName,
        requests: &[String],
        lease: Duration,
    ) -> Result<(), StoreError> {
        let [_, leases] = keys(&self.prefix, tenant);
        let arguments = script::renew_arguments(lease, requests.iter().map(String::as_str));
        let _: i64 = self.call(&self.renew, &[leases], &arguments).await?;
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.within(async |mut open: Open| {
            redis::cmd("PING")
                .query_async::<String>(&mut open.connection)
                .await
                .map(drop)
        })
        .await
    }
}
