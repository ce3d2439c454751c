//! ZMTP 3.0, the wire of ZeroMQ, as far as a publisher needs it: greeting, the NULL handshake, frames. No I/O.
//!
//! Source: RFC 23 of the ZeroMQ project. Written here and not taken from the crate `zeromq` 0.7, because that one reserves whatever size a peer
//! announces for a frame, so that nine bytes from anybody end the process, and its queues have a fixed length.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes of the greeting.
pub(super) const GREETING_BYTES: usize = 64;

/// Largest frame that a peer may send: subscriptions, replay requests and handshakes are tiny.
const MAX_FRAME_BYTES: usize = 1024;

/// Frames of one message of a peer.
const MAX_FRAMES: usize = 8;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why a peer isn't talked to any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum ZmtpError {
    /// It isn't ZeroMQ, or an older one.
    #[error("the peer doesn't speak ZMTP 3")]
    Greeting,
    /// It wants a password or encryption.
    #[error("the peer asks for the security mechanism {0:?}, this publisher only has NULL")]
    Mechanism(String),
    /// It isn't ready.
    #[error("the peer sent no READY with its socket's type")]
    Ready,
    /// Its socket can't read what this one sends.
    #[error("the peer's socket is {0:?}, which doesn't fit")]
    SocketType(String),
    /// It sends large things.
    #[error("the peer sent a frame of {0} bytes, the limit is {MAX_FRAME_BYTES}")]
    FrameSize(u64),
    /// It sends long messages.
    #[error("the peer sent more than {MAX_FRAMES} frames in a message")]
    NumFrames,
    /// It subscribes to a great many things.
    #[error("the peer has more than {0} subscriptions")]
    NumSubscriptions(usize),
}

/// What a peer sent.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Incoming {
    /// A command: its name and what follows.
    Command(Bytes, Bytes),
    /// A whole message.
    Message(Vec<Bytes>),
}

/// Our greeting: version 3.0, NULL, not a server.
pub(super) fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Checks a peer's greeting.
///
/// # Errors
/// If it can't be talked to.
pub(super) fn check_greeting(bytes: &[u8; GREETING_BYTES]) -> Result<(), ZmtpError> {
    if (bytes[0], bytes[9]) != (0xff, 0x7f) || bytes[10] < 3 {
        return Err(ZmtpError::Greeting);
    }
    let mechanism = &bytes[12..32];
    let end = mechanism
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(mechanism.len());
    if &mechanism[..end] == b"NULL" {
        Ok(())
    } else {
        Err(ZmtpError::Mechanism(
            String::from_utf8_lossy(&mechanism[..end]).into_owned(),
        ))
    }
}

/// Our READY.
pub(super) fn ready(socket_type: &str) -> Bytes {
    let mut body = BytesMut::new();
    put_name(&mut body, b"READY");
    put_name(&mut body, b"Socket-Type");
    body.put_u32(socket_type.len() as u32);
    body.extend_from_slice(socket_type.as_bytes());
    command(&body)
}

/// The answer to a PING with this context.
pub(super) fn pong(context: &[u8]) -> Bytes {
    let mut body = BytesMut::new();
    put_name(&mut body, b"PONG");
    body.extend_from_slice(context);
    command(&body)
}

/// The type of the socket that a READY announces.
///
/// # Errors
/// If it is none, or announces none.
pub(super) fn socket_type(incoming: &Incoming) -> Result<String, ZmtpError> {
    let Incoming::Command(name, properties) = incoming else {
        return Err(ZmtpError::Ready);
    };
    if &name[..] != b"READY" {
        return Err(ZmtpError::Ready);
    }
    let mut rest = properties.clone();
    while let Some(name) = take_name(&mut rest) {
        let Ok(len) = rest.try_get_u32() else { break };
        if rest.len() < len as usize {
            break;
        }
        let value = rest.split_to(len as usize);
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Ok(String::from_utf8_lossy(&value).into_owned());
        }
    }
    Err(ZmtpError::Ready)
}

/// The head of a frame of this length.
pub(super) fn frame_head(len: usize, more: bool) -> Bytes {
    let mut head = BytesMut::with_capacity(9);
    let more = if more { MORE } else { 0 };
    if let Ok(len) = u8::try_from(len) {
        head.extend_from_slice(&[more, len]);
    } else {
        head.put_u8(more | LONG);
        head.put_u64(len as u64);
    }
    head.freeze()
}

/// Puts a peer's bytes together to messages.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    bytes: BytesMut,
    frames: Vec<Bytes>,
}

impl Decoder {
    /// Where the next bytes go.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        self.bytes.reserve(MAX_FRAME_BYTES);
        &mut self.bytes
    }

    /// The next message or command, if it is there in whole.
    ///
    /// # Errors
    /// If the peer goes over a limit.
    pub(super) fn next(&mut self) -> Result<Option<Incoming>, ZmtpError> {
        while let Some((flags, mut body)) = self.frame()? {
            if flags & COMMAND != 0 {
                let name = take_name(&mut body).unwrap_or_default();
                return Ok(Some(Incoming::Command(name, body)));
            }
            if self.frames.len() == MAX_FRAMES {
                return Err(ZmtpError::NumFrames);
            }
            self.frames.push(body);
            if flags & MORE == 0 {
                return Ok(Some(Incoming::Message(std::mem::take(&mut self.frames))));
            }
        }
        Ok(None)
    }

    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, ZmtpError> {
        let mut head = &self.bytes[..];
        let Ok(flags) = head.try_get_u8() else {
            return Ok(None);
        };
        let len = if flags & LONG == 0 {
            head.try_get_u8().map(u64::from)
        } else {
            head.try_get_u64()
        };
        let Ok(len) = len else { return Ok(None) };
        if len > MAX_FRAME_BYTES as u64 {
            return Err(ZmtpError::FrameSize(len));
        }
        if (head.len() as u64) < len {
            return Ok(None);
        }
        let num_head = self.bytes.len() - head.len();
        self.bytes.advance(num_head);
        Ok(Some((flags, self.bytes.split_to(len as usize).freeze())))
    }
}

fn command(body: &[u8]) -> Bytes {
    let mut frame = BytesMut::from(&frame_head(body.len(), false)[..]);
    frame[0] |= COMMAND;
    frame.extend_from_slice(body);
    frame.freeze()
}

fn put_name(body: &mut BytesMut, name: &[u8]) {
    body.put_u8(name.len() as u8);
    body.extend_from_slice(name);
}

fn take_name(rest: &mut Bytes) -> Option<Bytes> {
    let len = usize::from(*rest.first()?);
    if rest.len() <= len {
        return None;
    }
    rest.advance(1);
    Some(rest.split_to(len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(bytes: &[u8]) -> Result<Vec<Incoming>, ZmtpError> {
        let mut decoder = Decoder::default();
        let mut all = Vec::new();
        for byte in bytes {
            decoder.buffer().put_u8(*byte);
            while let Some(incoming) = decoder.next()? {
                all.push(incoming);
            }
        }
        Ok(all)
    }

    #[test]
    fn our_own_handshake_is_understood() {
        check_greeting(&greeting()).unwrap();
        let ready = decode(&ready("PUB")).unwrap();
        assert_eq!(socket_type(&ready[0]).unwrap(), "PUB");
    }

    #[test]
    fn a_message_is_read_from_single_bytes() {
        let bytes = [
            &frame_head(0, true)[..],
            &frame_head(2, false),
            b"ab",
            &pong(b"c"),
        ]
        .concat();
        assert_eq!(
            decode(&bytes).unwrap(),
            [
                Incoming::Message(vec![Bytes::new(), Bytes::from_static(b"ab")]),
                Incoming::Command(Bytes::from_static(b"PONG"), Bytes::from_static(b"c")),
            ]
        );
    }

    #[test]
    fn a_frame_of_any_announced_size_reserves_nothing() {
        for len in [1025, 1 << 40, u64::MAX] {
            let bytes = [&[LONG][..], &len.to_be_bytes()].concat();
            assert!(matches!(decode(&bytes), Err(ZmtpError::FrameSize(found)) if found == len));
        }
        let endless = [&frame_head(0, true)[..]; 9].concat();
        assert!(matches!(decode(&endless), Err(ZmtpError::NumFrames)));
    }

    #[test]
    fn peers_of_another_kind_are_refused() {
        let mut old = greeting();
        old[10] = 1;
        assert!(matches!(check_greeting(&old), Err(ZmtpError::Greeting)));
        assert!(matches!(check_greeting(&[b'G'; 64]), Err(ZmtpError::Greeting)));
        let mut curve = greeting();
        curve[12..17].copy_from_slice(b"CURVE");
        assert!(matches!(check_greeting(&curve), Err(ZmtpError::Mechanism(name)) if name == "CURVE"));
    }

    #[test]
    fn a_long_frame_says_its_length_in_eight_bytes() {
        assert_eq!(frame_head(255, true)[..], [MORE, 255]);
        assert_eq!(frame_head(256, false)[..], [LONG, 0, 0, 0, 0, 0, 0, 1, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for incoming in decode(&bytes).into_iter().flatten() {
                drop(socket_type(&incoming));
            }
        }
    }
}
