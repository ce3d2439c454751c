#![allow(
    clippy::unwrap_used,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

use tokio::io::DuplexStream;

use super::*;

/// The other side of a connection, as ZeroMQ's library behaves.
struct Remote {
    io: DuplexStream,
    bytes: Vec<u8>,
}

impl Remote {
    async fn new(mut io: DuplexStream, socket_type: &str) -> Self {
        io.write_all(&zmtp::greeting()).await.unwrap();
        io.write_all(&zmtp::ready(socket_type)).await.unwrap();
        let mut greeting = [0; GREETING_BYTES];
        io.read_exact(&mut greeting).await.unwrap();
        zmtp::check_greeting(&greeting).unwrap();
        let mut remote = Self {
            io,
            bytes: Vec::new(),
        };
        let (flags, ready) = remote.frame().await;
        assert_eq!(flags, 4);
        assert!(ready.starts_with(b"\x05READY\x0bSocket-Type"));
        remote
    }

    async fn send(&mut self, frames: &[&[u8]]) {
        for (index, frame) in frames.iter().enumerate() {
            let head = zmtp::frame_head(frame.len(), index + 1 < frames.len());
            self.io.write_all(&[&head, *frame].concat()).await.unwrap();
        }
    }

    async fn frame(&mut self) -> (u8, Vec<u8>) {
        let flags = self.io.read_u8().await.unwrap();
        let len = if flags & 2 == 0 {
            u64::from(self.io.read_u8().await.unwrap())
        } else {
            self.io.read_u64().await.unwrap()
        };
        self.bytes.resize(len as usize, 0);
        self.io.read_exact(&mut self.bytes).await.unwrap();
        (flags, self.bytes.clone())
    }

    async fn message(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let (flags, frame) = self.frame().await;
            frames.push(frame);
            if flags & 1 == 0 {
                return frames;
            }
        }
    }
}

fn publication(hwm: usize) -> Publication {
    Publication {
        hub: Arc::new(Mutex::new(Hub::new(100))),
        topic: Bytes::from_static(b"kv"),
        hwm,
        patience: PATIENCE,
    }
}

/// Sends silent peers away at once.
fn hasty() -> Publication {
    Publication {
        patience: Duration::from_millis(50),
        ..publication(1)
    }
}

fn batch(sequence: u64, len: usize) -> Numbered {
    Numbered {
        sequence,
        payload: Bytes::from(vec![sequence as u8; len]),
    }
}

fn sequence(message: &[Vec<u8>], index: usize) -> u64 {
    u64::from_be_bytes(message[index].clone().try_into().unwrap())
}

/// A subscriber whose subscription is in place: its PING was answered after it.
async fn subscriber(publication: &Publication, room: usize) -> Remote {
    let (near, far) = tokio::io::duplex(room);
    let publication = publication.clone();
    tokio::spawn(async move { drop(serve_subscriber(near, &publication).await) });
    let mut remote = Remote::new(far, "SUB").await;
    remote.send(&[b"\x01kv"]).await;
    remote.io.write_all(b"\x04\x08\x04PING\x00\x00c").await.unwrap();
    let (flags, pong) = remote.frame().await;
    assert_eq!((flags, &pong[..]), (4, &b"\x04PONGc"[..]));
    remote
}

#[tokio::test]
async fn a_subscriber_gets_topic_number_and_payload() {
    let publication = publication(10);
    let mut remote = subscriber(&publication, 1 << 16).await;
    publication.publish(batch(7, 300));
    let message = remote.message().await;
    assert_eq!(
        (&message[0][..], sequence(&message, 1), message[2].len()),
        (&b"kv"[..], 7, 300)
    );
}

#[tokio::test]
async fn a_subscriber_that_falls_behind_loses_batches_and_sees_the_gap() {
    let publication = publication(2);
    let mut remote = subscriber(&publication, 64).await;
    for number in 0..50 {
        publication.publish(batch(number, 1000));
        tokio::task::yield_now().await;
    }
    let first = remote.message().await;
    assert_eq!(sequence(&first, 1), 0);
    // One was on its way and two were queued.
    let mut read = vec![0];
    for _ in 0..2 {
        read.push(sequence(&remote.message().await, 1));
    }
    publication.publish(batch(50, 1000));
    read.push(sequence(&remote.message().await, 1));
    assert!(read.is_sorted() && read.last() == Some(&50), "{read:?}");
}

#[tokio::test]
async fn a_replay_sends_what_is_kept_and_ends() {
    let publication = publication(1);
    for number in 0..150 {
        publication.publish(batch(number, 10));
    }
    let (near, far) = tokio::io::duplex(256);
    let server = publication.clone();
    tokio::spawn(async move { drop(serve_replays(near, &server).await) });
    let mut remote = Remote::new(far, "REQ").await;
    for (wanted, first) in [(0, 50), (147, 147), (u64::MAX, 150)] {
        // Not a request.
        remote.send(&[b"", b"short"]).await;
        remote.send(&[b"", &u64::to_be_bytes(wanted)]).await;
        for number in first..150 {
            let message = remote.message().await;
            assert_eq!((&message[0][..], &message[1][..]), (&b""[..], &b"kv"[..]));
            assert_eq!(sequence(&message, 2), number);
        }
        let end = remote.message().await;
        assert_eq!(end, [&b""[..], b"", &[0xff; 8], b""]);
    }
}

#[tokio::test]
async fn a_socket_that_doesnt_fit_is_turned_away() {
    let (near, far) = tokio::io::duplex(1 << 10);
    let publication = publication(1);
    let served = tokio::spawn(async move { serve_subscriber(near, &publication).await });
    let _remote = Remote::new(far, "PULL").await;
    let refused = served.await.unwrap();
    assert!(matches!(refused, Err(PeerError::Zmtp(ZmtpError::SocketType(found))) if found == "PULL"));
}

#[tokio::test]
async fn a_peer_with_endless_subscriptions_is_turned_away() {
    let (near, far) = tokio::io::duplex(1 << 16);
    let publication = publication(1);
    let served = tokio::spawn(async move { serve_subscriber(near, &publication).await });
    let mut remote = Remote::new(far, "SUB").await;
    for _ in 0..=MAX_SUBSCRIPTIONS {
        remote.send(&[b"\x01x"]).await;
    }
    let refused = served.await.unwrap();
    assert!(matches!(
        refused,
        Err(PeerError::Zmtp(ZmtpError::NumSubscriptions(_)))
    ));
}

#[tokio::test]
async fn who_asks_for_nothing_gives_its_place_back() {
    for role in ["SUB", "REQ"] {
        let (near, far) = tokio::io::duplex(1 << 10);
        let publication = hasty();
        let served = tokio::spawn(async move {
            match role {
                "SUB" => serve_subscriber(near, &publication).await,
                _ => serve_replays(near, &publication).await,
            }
        });
        let mut remote = Remote::new(far, role).await;
        // A heartbeat asks for nothing.
        remote.io.write_all(b"\x04\x08\x04PING\x00\x00c").await.unwrap();
        assert!(matches!(served.await.unwrap(), Err(PeerError::Idle)), "{role}");
    }
}

#[tokio::test]
async fn a_replay_that_nobody_reads_gives_its_place_back() {
    let publication = hasty();
    for number in 0..50 {
        publication.publish(batch(number, 1000));
    }
    let (near, far) = tokio::io::duplex(256);
    let served = tokio::spawn(async move { serve_replays(near, &publication).await });
    let mut remote = Remote::new(far, "REQ").await;
    remote.send(&[b"", &[0; 8]]).await;
    assert!(matches!(served.await.unwrap(), Err(PeerError::Stuck)));
}
