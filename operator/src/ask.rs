//! Asks an operator how it does: for the chart's test, whose image has no other program that speaks HTTP.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use clap::Args;

/// Longest wait for a connection's next step.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer that is read, in bytes.
const LONGEST: u64 = 64 * 1024;

/// Options of `ask`.
#[derive(Debug, Args)]
pub(crate) struct AskArguments {
    /// Address, for example `http://kvasir-operator.kvasir-system.svc:8080/readyz`
    url: String,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// It is no address.
    #[error("{0:?} isn't an address like http://HOST:PORT/PATH")]
    Address(String),
    /// Nobody answered.
    #[error("{address} doesn't answer: {source}")]
    Connection {
        /// Host and port.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The answer isn't a good one.
    #[error("{url} answered {status:?}")]
    Status {
        /// What was asked.
        url: String,
        /// The first line of the answer.
        status: String,
    },
}

/// Prints the answer.
pub(crate) fn run(arguments: &AskArguments) -> Result<(), AskError> {
    let answer = ask(arguments)?;
    // Whoever closed standard output doesn't want it.
    drop(writeln!(std::io::stdout(), "{}", answer.trim_end()));
    Ok(())
}

/// What was answered with 200.
fn ask(arguments: &AskArguments) -> Result<String, AskError> {
    let url = &arguments.url;
    let rest = url.strip_prefix("http://").filter(|rest| !rest.starts_with('/'));
    let rest = rest.ok_or_else(|| AskError::Address(url.clone()))?;
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    let answer = exchange(address, path).map_err(|source| AskError::Connection {
        address: address.to_owned(),
        source,
    })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(AskError::Status {
            url: url.clone(),
            status: status.to_owned(),
        })
    }
}

/// HTTP 1.0: one request, one answer that ends with the connection.
fn exchange(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::BufRead as _;
    use std::net::TcpListener;

    use super::*;

    /// A server that gives one answer.
    fn answering(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            stream.write_all(answer.as_bytes()).unwrap();
        });
        format!("http://{address}/readyz")
    }

    #[test]
    fn a_good_answer_is_returned_and_a_bad_one_named() {
        let url = answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(ask(&AskArguments { url }).unwrap(), "ok");
        let url = answering("HTTP/1.1 503 Service Unavailable\r\n\r\n");
        let error = ask(&AskArguments { url }).unwrap_err();
        assert!(error.to_string().contains("503"), "{error}");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for url in ["https://a", "http:///x", "a:1"] {
            let error = ask(&AskArguments { url: url.to_owned() }).unwrap_err();
            assert!(matches!(error, AskError::Address(_)), "{url}");
        }
    }
}
