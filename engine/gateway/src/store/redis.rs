//! The accounts in a Redis server, version 7 or newer.
//!
//! One connection carries all calls at once. A call that fails or takes too long drops it, and the next one connects again; whether to ask
//! at all is decided by [`Accounts`](super::Accounts). The core says what the scripts do, and writes their arguments and reads their answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use kvasir_config::gateway::LimitStoreConfig;
use kvasir_files::{FileError, Limit, read_text};
use kvasir_gateway_core::limits::store::{
    CHARGE_SCRIPT, MERGE_SCRIPT, RENEW_SCRIPT, SETTLE_SCRIPT, Verdict, keys,
};
use kvasir_gateway_core::limits::{Cost, Ended, Handover, Instance, Limits, RequestId, Told, script};
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
    num_connections: AtomicU64,
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
        let mut store = Self::new(url.trim(), &config.prefix, config.authorities.as_deref())?;
        if let Some(file) = &config.password_file {
            let password = read_text(file, Limit::SMALL)?;
            // Secrets that people write often end with a line's end.
            let password = password.trim_end_matches(['\r', '\n']);
            let redis = store.server.redis_settings().clone().set_password(password);
            store.server = store.server.set_redis_settings(redis);
        }
        Ok(store)
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
            num_connections: AtomicU64::new(0),
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
        self.num_connections.fetch_add(1, Relaxed);
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
        (request, known): (&RequestId, Option<&Instance>),
    ) -> Result<Verdict, StoreError> {
        let arguments = script::charge_arguments(limits, estimate, request, known);
        let keys = keys(&self.prefix, tenant);
        let (answer, instance): (Vec<i64>, String) = self.call(&self.charge, &keys, &arguments).await?;
        let call = "a charge";
        script::charge_answer(&answer, &instance, limits, estimate).ok_or(StoreError::Unexpected { call })
    }

    async fn settle(
        &self,
        tenant: &TenantName,
        instance: &Instance,
        ended: &[Ended],
    ) -> Result<Told, StoreError> {
        let arguments = script::settle_arguments(instance, ended);
        let is_done: bool = self
            .call(&self.settle, &keys(&self.prefix, tenant), &arguments)
            .await?;
        Ok(told(is_done, instance))
    }

    async fn merge(&self, tenant: &TenantName, handover: &Handover) -> Result<Told, StoreError> {
        let arguments = script::merge_arguments(handover);
        let instance: Option<String> = self
            .call(&self.merge, &keys(&self.prefix, tenant), &arguments)
            .await?;
        Ok(instance.map_or(Told::Elsewhere, |name| Told::Done(Instance(name.into()))))
    }

    async fn renew(
        &self,
        tenant: &TenantName,
        instance: &Instance,
        requests: &[RequestId],
    ) -> Result<Told, StoreError> {
        let [window, leases, ..] = keys(&self.prefix, tenant);
        let arguments = script::renew_arguments(instance, requests);
        let is_done: bool = self.call(&self.renew, &[window, leases], &arguments).await?;
        Ok(told(is_done, instance))
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
    fn num_connections(&self) -> u64 {
        self.num_connections.load(Relaxed)
    }
}

fn told(is_done: bool, instance: &Instance) -> Told {
    if is_done {
        Told::Done(instance.clone())
    } else {
        Told::Elsewhere
    }
}
