//! Running the real binary.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Generous: a test waits for a state, it doesn't measure.
const DEADLINE: Duration = Duration::from_mins(2);

/// The binary, in an environment that holds nothing of the caller's configuration.
pub(crate) fn kvasir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("KVASIR_") || name.starts_with("VLLM_") || name.starts_with("HF_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A command, started by another program that becomes it.
fn through(starter: &[&str], command: &Command) -> Command {
    let mut through = Command::new(starter[0]);
    through
        .args(&starter[1..])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => through.env(name, value),
            None => through.env_remove(name),
        };
    }
    through
}

/// What a finished command did.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs to the end.
pub(crate) fn run(command: &mut Command) -> Ran {
    command.output().unwrap().into()
}

/// Runs with a pipe that holds `input`.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

/// The model that the end-to-end script provides, or the default one if it was fetched before.
///
/// A test that needs it passes without it, with a line that says so: building and unit tests need no network.
pub(crate) fn model() -> Option<String> {
    if let Some(path) = std::env::var_os("KVASIR_TEST_MODEL") {
        let path = PathBuf::from(path);
        assert!(
            path.exists(),
            "KVASIR_TEST_MODEL is {}, which doesn't exist",
            path.display()
        );
        return Some(path.to_str().unwrap().to_owned());
    }
    let cached = etcetera::BaseStrategy::cache_dir(&etcetera::choose_base_strategy().ok()?)
        .join("kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if cached.exists() {
        return Some(cached.to_str().unwrap().to_owned());
    }
    eprintln!("skipped: no model; set KVASIR_TEST_MODEL or run `kvasir models pull`");
    None
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    stderr: Option<BufReader<ChildStderr>>,
    /// Everything it said until it was ready.
    pub(crate) banner: String,
    /// `http://127.0.0.1:PORT`, `unix:PATH`, or what `kvasir engine` listens on.
    pub(crate) target: String,
}

impl Server {
    /// Starts a server and waits until it says that it serves.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        // Tests that `nohup` itself started would have it stay.
        if cfg!(target_os = "linux") {
            Self::of(through(&["env", "--default-signal=HUP"], &kvasir(arguments)))
        } else {
            Self::of(kvasir(arguments))
        }
    }

    /// The same of a server that shall outlive its terminal, as `nohup` starts it.
    pub(crate) fn start_to_stay(arguments: &[&str]) -> Self {
        let ignoring = "trap '' HUP; exec \"$0\" \"$@\"";
        Self::of(through(&["sh", "-c", ignoring], &kvasir(arguments)))
    }

    fn of(mut command: Command) -> Self {
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            stderr: None,
            banner: String::new(),
            target: String::new(),
        };
        let mut stderr = BufReader::new(server.child.stderr.take().unwrap());
        loop {
            let mut line = String::new();
            let count = stderr.read_line(&mut line).unwrap();
            assert_ne!(count, 0, "it ended before it served:\n{}", server.banner);
            server.banner.push_str(&line);
            if let Some((_, target)) = line
                .trim()
                .split_once(" on ")
                .filter(|_| line.starts_with("Serving "))
            {
                target.clone_into(&mut server.target);
            }
            // The last line of the command to paste; there is none for a port that only gateways can use.
            let is_for_gateways = server.target.starts_with("https://");
            if line.starts_with("  -d ") || line.starts_with("kvasir serve --engine") || is_for_gateways {
                server.stderr = Some(stderr);
                return server;
            }
        }
    }

    /// Sends a signal, by the name that `kill` knows.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits for its end; returns the status and what it said since it served.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                begin.elapsed() <= DEADLINE,
                "it still runs after {} s",
                DEADLINE.as_secs()
            );
            // The process can't be waited for with a deadline otherwise.
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut rest = String::new();
        self.stderr.take().unwrap().read_to_string(&mut rest).unwrap();
        (status, rest)
    }

    /// An HTTP/1 request; returns status and body.
    pub(crate) fn request(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> (u16, String) {
        let mut stream = self.send(method, path, key, body);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0);
        let body = answer
            .split_once("\r\n\r\n")
            .map_or("", |(_, body)| body)
            .to_owned();
        (status, body)
    }

    /// Sends a request and returns the connection.
    pub(crate) fn send(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.target.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let key = key.map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream
    }

    /// Starts a stream of `max_tokens` tokens and waits for its first event.
    pub(crate) fn begin_stream(&self, max_tokens: u32) -> (BufReader<TcpStream>, String) {
        let body = format!(
            r#"{{"prompt": "Once upon a time", "max_tokens": {max_tokens}, "ignore_eos": true, "stream": true, "temperature": 0}}"#
        );
        let mut stream = BufReader::new(self.send("POST", "/v1/completions", None, &body));
        let mut text = String::new();
        while !text.contains("data: {") {
            assert_ne!(
                stream.read_line(&mut text).unwrap(),
                0,
                "the stream ended early: {text}"
            );
        }
        (stream, text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that failed must leave no process behind; one that ended can't be killed again.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
