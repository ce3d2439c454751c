//! Where models are kept and how the hub is reached.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use kvasir_files::Limit;

use super::FetchError;

/// The hub when `HF_ENDPOINT` says nothing else.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Where models are kept and how they are fetched.
#[derive(Clone, Debug)]
pub struct FetchOptions {
    /// Directory of the default model's file.
    pub cache_dir: PathBuf,
    /// Root of the hub's cache, which other tools share: `models--org--name` directories.
    pub hub_cache: PathBuf,
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// Sent to the hub, and only there.
    pub token: Option<Token>,
    /// Never ask the hub.
    pub offline: bool,
    /// How pip is called, in the order of trying; each a program and its first arguments.
    pub pip_commands: Vec<Vec<OsString>>,
    /// Limits of time.
    pub timing: Timing,
}

/// Limits of time for transfers.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// For name resolution and for the connection. Short, because without network there is another way to go.
    pub connect: Duration,
    /// From the request to the head of the answer.
    pub answer: Duration,
    /// A body is read for this long before the transfer is taken up anew; without a byte in it, the try has failed.
    pub body: Duration,
    /// Wait before the second try without progress; doubled for each further one.
    pub retry_delay: Duration,
    /// Tries without progress before giving up.
    pub max_tries: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            body: Duration::from_mins(1),
            retry_delay: Duration::from_millis(500),
            max_tries: 4,
        }
    }
}

impl FetchOptions {
    /// The options of this process's environment. `model_cache` (from `--model-cache`) wins over `KVASIR_CACHE`.
    ///
    /// # Errors
    /// [`FetchError::NoCacheDirectory`] or [`FetchError::InvalidEndpoint`].
    pub fn from_env(model_cache: Option<PathBuf>) -> Result<Self, FetchError> {
        Self::from_lookup(model_cache, |name| std::env::var_os(name))
    }

    /// The options of an environment. With a directory of its own (argument or `KVASIR_CACHE`), Kvasir keeps everything
    /// in there, the hub's cache as `hub` below it; else the hub's cache is where all its tools have it (`HF_HUB_CACHE`,
    /// `HF_HOME`).
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn from_lookup(
        model_cache: Option<PathBuf>,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, FetchError> {
        let get = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let path = |name: &str| get(name).map(PathBuf::from);
        let text = |name: &str| get(name).map(|value| value.to_string_lossy().trim().to_owned());
        let user_cache = path("XDG_CACHE_HOME")
            .or_else(|| Some(path("HOME").or_else(|| path("USERPROFILE"))?.join(".cache")));
        let hf_home = path("HF_HOME").or_else(|| Some(user_cache.clone()?.join("huggingface")));
        let own_dir = model_cache.or_else(|| path("KVASIR_CACHE"));
        let (cache_dir, hub_cache) = if let Some(dir) = own_dir {
            (Some(dir.clone()), Some(dir.join("hub")))
        } else {
            let hub_cache = path("HF_HUB_CACHE").or_else(|| Some(hf_home.clone()?.join("hub")));
            (user_cache.map(|dir| dir.join("kvasir/models")), hub_cache)
        };
        let token_file = path("HF_TOKEN_PATH").or_else(|| Some(hf_home?.join("token")));
        let token = text("HF_TOKEN").or_else(|| kvasir_files::read_text(&token_file?, Limit::SMALL).ok());
        Ok(Self {
            cache_dir: cache_dir.ok_or(FetchError::NoCacheDirectory)?,
            hub_cache: hub_cache.ok_or(FetchError::NoCacheDirectory)?,
            endpoint: endpoint(text("HF_ENDPOINT"))?,
            token: token.and_then(|token| Token::new(&token)),
            offline: text("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
            pip_commands: default_pip_commands(),
            timing: Timing::default(),
        })
    }
}

/// A secret that doesn't appear in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, unless the text is empty or can't stand in an HTTP header.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_valid = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_valid.then(|| Self(text.to_owned()))
    }

    pub(super) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

fn endpoint(value: Option<String>) -> Result<String, FetchError> {
    let endpoint = value.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    let endpoint = endpoint.trim_end_matches('/').to_owned();
    let is_http = endpoint.starts_with("http://") || endpoint.starts_with("https://");
    let has_host = endpoint
        .parse::<ureq::http::Uri>()
        .is_ok_and(|uri| uri.host().is_some_and(|host| !host.is_empty()));
    if is_http && has_host {
        Ok(endpoint)
    } else {
        Err(FetchError::InvalidEndpoint { endpoint })
    }
}

/// The spellings that the hub's own tools take for true.
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

fn default_pip_commands() -> Vec<Vec<OsString>> {
    let commands: [&[&str]; 4] = [
        &["python3", "-m", "pip"],
        &["python", "-m", "pip"],
        &["pip3"],
        &["pip"],
    ];
    commands
        .iter()
        .map(|words| words.iter().map(OsString::from).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{FetchOptions, Token};
    use crate::fetch::FetchError;

    fn options(env: &[(&str, &str)]) -> Result<FetchOptions, FetchError> {
        FetchOptions::from_lookup(None, |name| {
            env.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.into())
        })
    }

    #[test]
    fn caches_lie_in_the_home_directory_by_default() {
        let options = options(&[("HOME", "/h")]).unwrap();
        assert_eq!(options.cache_dir, Path::new("/h/.cache/kvasir/models"));
        assert_eq!(options.hub_cache, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(options.endpoint, "https://huggingface.co");
        assert!(!options.offline && options.token.is_none());
    }

    #[test]
    fn own_cache_directory_holds_everything() {
        let env = [("HOME", "/h"), ("HF_HOME", "/hf"), ("KVASIR_CACHE", "/k")];
        let from_env = options(&env).unwrap();
        assert_eq!(
            (from_env.cache_dir.as_path(), from_env.hub_cache.as_path()),
            (Path::new("/k"), Path::new("/k/hub"))
        );
        let from_flag = FetchOptions::from_lookup(Some("/f".into()), |_| None).unwrap();
        assert_eq!(from_flag.cache_dir, Path::new("/f"));
    }

    #[test]
    fn hub_variables_are_honoured() {
        let env = [
            ("HOME", "/h"),
            ("HF_HOME", "/hf"),
            ("HF_HUB_OFFLINE", "True"),
            ("HF_ENDPOINT", "http://m:8/"),
        ];
        let with_home = options(&env).unwrap();
        assert_eq!(with_home.hub_cache, Path::new("/hf/hub"));
        assert_eq!(with_home.endpoint, "http://m:8");
        assert!(with_home.offline);
        let with_cache = options(&[("HOME", "/h"), ("HF_HUB_CACHE", "/c"), ("HF_HUB_OFFLINE", "0")]).unwrap();
        assert_eq!(with_cache.hub_cache, Path::new("/c"));
        assert!(!with_cache.offline);
    }

    #[test]
    fn token_comes_from_the_variable_or_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "from-file\n").unwrap();
        let home = ("HF_HOME", dir.path().to_str().unwrap());
        let from_file = options(&[("HOME", "/h"), home]).unwrap();
        assert_eq!(from_file.token, Token::new("from-file"));
        let from_variable = options(&[("HOME", "/h"), home, ("HF_TOKEN", " t ")]).unwrap();
        assert_eq!(from_variable.token, Token::new("t"));
        assert_eq!(format!("{:?}", from_variable.token), "Some(Token(..))");
    }

    #[test]
    fn unusable_environment_is_an_error() {
        assert!(matches!(options(&[]), Err(FetchError::NoCacheDirectory)));
        for endpoint in ["ftp://x", "hub", "https://"] {
            let result = options(&[("HOME", "/h"), ("HF_ENDPOINT", endpoint)]);
            assert!(
                matches!(result, Err(FetchError::InvalidEndpoint { .. })),
                "{endpoint}"
            );
        }
        assert_eq!(Token::new("a\r\nb"), None);
    }
}
