//! Peers that don't behave: raw bytes, and a connection that can be cut.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::{Buf, BufMut, Bytes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Sends and receives messages as bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Asks the standard health service.
pub async fn check_health(target: &str, service: &str) -> Result<ServingStatus, Code> {
    let channel = Channel::from_shared(target.to_owned())
        .unwrap()
        .connect()
        .await
        .unwrap();
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = HealthClient::new(channel)
        .check(request)
        .await
        .map_err(|status| status.code())?;
    Ok(answer.into_inner().status())
}

/// Passes bytes between a client and a server, until it is cut.
pub struct Proxy {
    address: SocketAddr,
    open: watch::Sender<bool>,
    tasks: Arc<Mutex<Vec<JoinHandle<()>>>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(target: &str) -> Self {
        let server = target.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let open = watch::Sender::new(true);
        let tasks = Arc::new(Mutex::new(Vec::new()));
        let accepting = tokio::spawn(pass(listener, server, open.subscribe(), Arc::clone(&tasks)));
        Self {
            address,
            open,
            tasks,
            accepting,
        }
    }

    pub fn target(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Closes all connections, and new ones at once.
    pub async fn cut(&self) {
        self.open.send_replace(false);
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        for task in tasks {
            task.abort();
            drop(task.await);
        }
    }

    pub fn mend(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(
    listener: TcpListener,
    server: String,
    open: watch::Receiver<bool>,
    tasks: Arc<Mutex<Vec<JoinHandle<()>>>>,
) {
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let (server, open, tasks) = (server.clone(), open.clone(), Arc::clone(&tasks));
        let mut kept = tasks.lock().unwrap();
        if *open.borrow() {
            kept.push(tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                // Ends with an error when it is cut.
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            }));
        }
    }
}
