//! What can go wrong before and while an edge serves.

use kvasir_client::types;

/// An edge that can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// The engine doesn't say what it serves.
    #[error("the engine can't be asked for its model: {}", .0.message)]
    ModelInfo(types::Error),
    /// The engine doesn't hand out the files for text.
    #[error("the engine can't be asked for its text assets: {}", .0.message)]
    TextAssets(types::Error),
    /// The engine sent other files than it announced.
    #[error(
        "the engine announced text assets with digest {announced}, but sent files with digest {received}"
    )]
    AssetsDigest {
        /// What the model info says.
        announced: String,
        /// What the files have.
        received: String,
    },
    /// The files for text can't be used.
    #[error("the model's text assets can't be used")]
    Text(#[source] kvasir_text::TextError),
    /// The task that loads the text assets failed.
    #[error("loading the text assets was interrupted")]
    LoadTask(#[source] tokio::task::JoinError),
    /// The listening socket failed.
    #[error("the address of the listening socket can't be read")]
    Listener(#[source] std::io::Error),
}
