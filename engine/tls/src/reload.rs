//! Configurations that follow their files.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::error::TlsError;
use crate::files::Contents;

/// What a look at the files found.
#[derive(Debug)]
pub enum Reload {
    /// They are as they were.
    Unchanged,
    /// New connections use new ones.
    Reloaded,
    /// They changed and can't be used; new connections still use the old ones.
    Refused(TlsError),
}

/// A configuration made from files.
#[derive(Debug)]
pub struct Reloadable<S: Source> {
    source: S,
    current: ArcSwap<Loaded<S::Config>>,
    /// Held while files are read, so that two polls don't overtake each other.
    poll: Mutex<()>,
}

#[derive(Debug)]
struct Loaded<C> {
    config: Arc<C>,
    digest: [u8; 32],
    not_after: Option<i64>,
}

/// Files that make a configuration. Only this crate has any.
pub trait Source {
    /// The configuration.
    type Config;

    /// Reads the files.
    ///
    /// # Errors
    /// One of them can't be read.
    fn read(&self) -> Result<ReadFiles, TlsError>;

    /// Makes the configuration, and says until when our own certificate is valid.
    ///
    /// # Errors
    /// The files can't be used.
    fn make(&self, files: &ReadFiles) -> Result<(Self::Config, Option<i64>), TlsError>;
}

/// Contents of files, opaque outside of this crate.
#[derive(Debug)]
pub struct ReadFiles(pub(crate) Contents);

impl<S: Source> Reloadable<S> {
    /// Reads the files and makes the first configuration.
    ///
    /// # Errors
    /// They can't be read or used.
    pub fn load(source: S) -> Result<Self, TlsError> {
        let files = source.read()?;
        let loaded = Self::make(&source, &files)?;
        Ok(Self {
            current: ArcSwap::from_pointee(loaded),
            source,
            poll: Mutex::new(()),
        })
    }

    /// The configuration for a new connection.
    pub fn config(&self) -> Arc<S::Config> {
        self.current.load().config.clone()
    }

    /// The last second in which our own certificate is valid; `None` without one. For a metric.
    pub fn not_after(&self) -> Option<i64> {
        self.current.load().not_after
    }

    /// Looks at the files and takes over what has changed. Call it every few seconds: a cluster renews files by swapping a link, which
    /// some file systems don't announce.
    pub fn poll(&self) -> Reload {
        let _polling = self.poll.lock().unwrap_or_else(PoisonError::into_inner);
        let made = self.source.read().and_then(|files| {
            let is_known = files.0.digest() == self.current.load().digest;
            if is_known {
                Ok(None)
            } else {
                Self::make(&self.source, &files).map(Some)
            }
        });
        match made {
            Ok(None) => Reload::Unchanged,
            Ok(Some(loaded)) => {
                self.current.store(Arc::new(loaded));
                Reload::Reloaded
            }
            Err(error) => Reload::Refused(error),
        }
    }

    pub(crate) fn source(&self) -> &S {
        &self.source
    }

    fn make(source: &S, files: &ReadFiles) -> Result<Loaded<S::Config>, TlsError> {
        let (config, not_after) = source.make(files)?;
        Ok(Loaded {
            config: Arc::new(config),
            digest: files.0.digest(),
            not_after,
        })
    }
}
