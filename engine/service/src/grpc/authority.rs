//! Makes the `:authority` of requests over Unix sockets one that the HTTP/2 library takes.
//!
//! gRPC's C core, and with it Python, Ruby and PHP, names a Unix socket by its percent-encoded path: `tmp%2Fengine.sock`. RFC 3986 allows
//! that in a registered name, but the `http` crate takes no percent sign there, so that `h2` resets the stream with a protocol error
//! before any of our code sees it. Nobody decides anything by the authority of a Unix socket. So the percent signs become hyphens on
//! their way in: the length stays, and with it everything that HTTP/2 and HPACK (RFC 7541) say about lengths and tables.
//!
//! Only plain literals are changed. C core sends these; what is Huffman-coded or comes from the dynamic table passes as it is, and was
//! changed when it entered the table.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// The connection preface of clients, RFC 9113 section 3.4.
const PREFACE_BYTES: u32 = 24;
const FRAME_HEADER_BYTES: u32 = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const FLAG_PADDED: u8 = 0x8;
const FLAG_PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: u32 = 5;
const AUTHORITY: &[u8] = b":authority";
/// The place of `:authority` in HPACK's static table.
const AUTHORITY_INDEX: u64 = 1;

/// A connection whose peer's authorities are changed so.
#[derive(Debug)]
pub(super) struct PlainAuthority<IO> {
    io: IO,
    frames: Frames,
}

impl<IO> PlainAuthority<IO> {
    pub(super) fn new(io: IO) -> Self {
        Self {
            io,
            frames: Frames::default(),
        }
    }
}

/// Where in the stream of frames the next byte is.
#[derive(Debug)]
struct Frames {
    at: Place,
    block: Block,
}

#[derive(Debug)]
enum Place {
    Preface {
        left: u32,
    },
    Header {
        bytes: [u8; FRAME_HEADER_BYTES as usize],
        num_read: usize,
    },
    /// The length of the padding, which comes before everything else.
    PadLength {
        left: u32,
        priority: u32,
    },
    /// A part of a header block, after `skip` bytes of priority and before `padding`.
    Fragment {
        skip: u32,
        left: u32,
        padding: u32,
    },
    Other {
        left: u32,
    },
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            at: Place::Preface { left: PREFACE_BYTES },
            block: Block::default(),
        }
    }
}

impl Frames {
    fn pass(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.pass_byte(byte);
        }
    }

    fn pass_byte(&mut self, byte: &mut u8) {
        match &mut self.at {
            Place::Preface { left } | Place::Other { left } => {
                *left -= 1;
                if *left == 0 {
                    self.at = Place::next_frame();
                }
            }
            Place::Header { bytes, num_read } => {
                bytes[*num_read] = *byte;
                *num_read += 1;
                if *num_read == bytes.len() {
                    let header = *bytes;
                    self.begin(header);
                }
            }
            Place::PadLength { left, priority } => {
                let padding = u32::from(*byte);
                let left = left.saturating_sub(1 + padding);
                self.at = Place::fragment(*priority, left, padding);
            }
            Place::Fragment { skip, left, padding } => {
                *left -= 1;
                if *skip > 0 {
                    *skip -= 1;
                } else {
                    self.block.pass(byte);
                }
                if *left == 0 {
                    self.at = Place::other(*padding);
                }
            }
        }
    }

    fn begin(&mut self, header: [u8; FRAME_HEADER_BYTES as usize]) {
        let [high, middle, low, kind, flags, ..] = header;
        let length = u32::from_be_bytes([0, high, middle, low]);
        let priority = if flags & FLAG_PRIORITY != 0 {
            PRIORITY_BYTES
        } else {
            0
        };
        self.at = match kind {
            HEADERS => {
                self.block = Block::default();
                if flags & FLAG_PADDED != 0 && length > 0 {
                    Place::PadLength {
                        left: length,
                        priority,
                    }
                } else {
                    Place::fragment(priority, length, 0)
                }
            }
            CONTINUATION => Place::fragment(0, length, 0),
            _ => Place::other(length),
        };
    }
}

impl Place {
    fn next_frame() -> Self {
        Self::Header {
            bytes: [0; FRAME_HEADER_BYTES as usize],
            num_read: 0,
        }
    }

    fn other(left: u32) -> Self {
        if left == 0 {
            Self::next_frame()
        } else {
            Self::Other { left }
        }
    }

    fn fragment(skip: u32, left: u32, padding: u32) -> Self {
        if left == 0 {
            return Self::other(padding);
        }
        Self::Fragment { skip, left, padding }
    }
}

/// Where in a header block the next byte is, RFC 7541 section 6.
#[derive(Debug)]
struct Block {
    at: Part,
    /// Whether the value that comes belongs to `:authority`.
    is_authority: bool,
}

#[derive(Debug)]
enum Part {
    /// The first byte of a field.
    Field,
    /// The rest of a number; what comes after it is known already.
    Number { value: u64, shift: u32, then: Then },
    /// The first byte of a text's length.
    Length { is_name: bool },
    /// A text.
    Text {
        left: u64,
        num_read: usize,
        is_name: bool,
        is_huffman: bool,
    },
    /// Not HPACK: the library will say so, and nothing is changed any more.
    Lost,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    /// An indexed field or a new size of the table: the next field.
    Field,
    /// The index of a literal's name: its value.
    Value,
    /// A text of this length.
    Text { is_name: bool, is_huffman: bool },
}

impl Default for Block {
    fn default() -> Self {
        Self {
            at: Part::Field,
            is_authority: false,
        }
    }
}

impl Block {
    fn pass(&mut self, byte: &mut u8) {
        match &mut self.at {
            Part::Field => self.field(*byte),
            Part::Number { value, shift, then } => {
                if *shift > 28 {
                    self.at = Part::Lost;
                    return;
                }
                *value += u64::from(*byte & 0x7f) << *shift;
                *shift += 7;
                if *byte & 0x80 == 0 {
                    let (value, then) = (*value, *then);
                    self.number(value, then);
                }
            }
            Part::Length { is_name } => {
                let then = Then::Text {
                    is_name: *is_name,
                    is_huffman: *byte & 0x80 != 0,
                };
                self.begin_number(*byte, 7, then);
            }
            Part::Text {
                left,
                num_read,
                is_name,
                is_huffman,
            } => {
                if *is_name {
                    self.is_authority &= AUTHORITY.get(*num_read) == Some(byte);
                } else if self.is_authority && !*is_huffman && *byte == b'%' {
                    *byte = b'-';
                }
                *num_read += 1;
                *left -= 1;
                if *left == 0 {
                    let is_name = *is_name;
                    let is_whole = *num_read == AUTHORITY.len();
                    self.end_text(is_name, is_whole);
                }
            }
            Part::Lost => {}
        }
    }

    fn field(&mut self, byte: u8) {
        match byte {
            // Indexed.
            0x80.. => self.begin_number(byte, 7, Then::Field),
            // A literal that enters the table.
            0x40..=0x7f => self.begin_number(byte, 6, Then::Value),
            // A new size of the table.
            0x20..=0x3f => self.begin_number(byte, 5, Then::Field),
            // A literal that doesn't enter it.
            0x00..=0x1f => self.begin_number(byte, 4, Then::Value),
        }
    }

    fn begin_number(&mut self, byte: u8, prefix_bits: u32, then: Then) {
        let mask = (1_u8 << prefix_bits) - 1;
        let value = u64::from(byte & mask);
        if value < u64::from(mask) {
            self.number(value, then);
        } else {
            self.at = Part::Number {
                value,
                shift: 0,
                then,
            };
        }
    }

    fn number(&mut self, value: u64, then: Then) {
        self.at = match then {
            Then::Field => Part::Field,
            Then::Value => {
                // Without an index the name follows; `:authority` is assumed until it differs.
                self.is_authority = value == AUTHORITY_INDEX || value == 0;
                Part::Length { is_name: value == 0 }
            }
            Then::Text { is_name, .. } if value == 0 => {
                self.end_text(is_name, false);
                return;
            }
            Then::Text { is_name, is_huffman } => {
                if is_name && is_huffman {
                    self.is_authority = false;
                }
                Part::Text {
                    left: value,
                    num_read: 0,
                    is_name,
                    is_huffman,
                }
            }
        };
    }

    fn end_text(&mut self, is_name: bool, is_whole: bool) {
        self.at = if is_name {
            self.is_authority &= is_whole;
            Part::Length { is_name: false }
        } else {
            Part::Field
        };
    }
}

impl<IO: Connected> Connected for PlainAuthority<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for PlainAuthority<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let num_before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if matches!(read, Poll::Ready(Ok(()))) {
            self.frames.pass(&mut buffer.filled_mut()[num_before..]);
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for PlainAuthority<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
