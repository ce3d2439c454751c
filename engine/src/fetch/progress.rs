//! What a caller learns while it waits.

/// Something happened that a person who waits wants to see.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum FetchEvent<'a> {
    /// A file's transfer begins.
    Started {
        /// The file's name.
        file: &'a str,
        /// Its size in bytes.
        total_bytes: u64,
        /// Bytes that an earlier try has left.
        resumed_bytes: u64,
    },
    /// More of a file has arrived.
    Advanced {
        /// The file's name.
        file: &'a str,
        /// Bytes that are here, those of earlier tries included.
        done_bytes: u64,
        /// The file's size in bytes.
        total_bytes: u64,
        /// Mean speed of this try.
        bytes_per_second: f64,
    },
    /// A file is whole, verified and in place.
    Finished {
        /// The file's name.
        file: &'a str,
    },
    /// Another process is fetching the same file; this one waits for it.
    Waiting {
        /// The file's name.
        file: &'a str,
    },
    /// A step in words, for sources that report no bytes.
    Note(&'a str),
}

/// Receives events; called from the thread that fetches.
pub trait Progress {
    /// Takes one event. Many come in a second; throttling is the receiver's business.
    fn on_event(&self, event: &FetchEvent<'_>);
}

impl<F: Fn(&FetchEvent<'_>)> Progress for F {
    fn on_event(&self, event: &FetchEvent<'_>) {
        self(event);
    }
}

/// For callers that show nothing.
impl Progress for () {
    fn on_event(&self, _: &FetchEvent<'_>) {}
}
