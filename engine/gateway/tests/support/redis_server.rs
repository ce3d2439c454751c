//! A Redis server of one's own.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvasir_gateway::store::{LimitStore, RedisStore};
use tempfile::TempDir;

/// Longest time until it answers.
const DEADLINE: Duration = Duration::from_mins(1);

/// A server on a Unix socket in a folder of its own.
pub struct Server {
    process: Option<Child>,
    folder: TempDir,
}

impl Server {
    pub async fn start() -> Self {
        let mut server = Self {
            process: None,
            folder: TempDir::new().unwrap(),
        };
        server.run().await;
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    pub fn url(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    pub fn store(&self, prefix: &str) -> RedisStore {
        RedisStore::new(&self.url(), prefix, None).unwrap()
    }

    pub async fn run(&mut self) {
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is needed: apt-get install redis-server");
        self.process = Some(process);
        let store = self.store("ping");
        let start = Instant::now();
        while store.ping().await.is_err() {
            assert!(start.elapsed() < DEADLINE, "the server doesn't answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Only who knows this password is answered from now on.
    #[allow(dead_code, reason = "one of the two test binaries with this file uses it")]
    pub fn require(&self, password: &str) {
        let status = Command::new("redis-cli")
            .arg("-s")
            .arg(self.socket())
            .args(["config", "set", "requirepass", password])
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
            std::fs::remove_file(self.socket()).ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
