//! Writes msgpack: the few forms that vLLM's events need, each in its shortest encoding, as msgspec does.

/// A message in the making.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(super) fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    pub(super) fn uint(&mut self, value: u64) {
        if value < 0x80 {
            self.bytes.push(value as u8);
        } else if let Ok(value) = u8::try_from(value) {
            self.bytes.extend([0xcc, value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.put(0xcd, &value.to_be_bytes());
        } else if let Ok(value) = u32::try_from(value) {
            self.put(0xce, &value.to_be_bytes());
        } else {
            self.put(0xcf, &value.to_be_bytes());
        }
    }

    pub(super) fn float(&mut self, value: f64) {
        self.put(0xcb, &value.to_be_bytes());
    }

    pub(super) fn str(&mut self, text: &str) {
        match text.len() {
            len @ 0..32 => self.bytes.push(0xa0 | len as u8),
            len => self.len(len, Some(0xd9), 0xda, 0xdb),
        }
        self.bytes.extend(text.as_bytes());
    }

    pub(super) fn bin(&mut self, bytes: &[u8]) {
        self.len(bytes.len(), Some(0xc4), 0xc5, 0xc6);
        self.bytes.extend(bytes);
    }

    /// The head of an array; its items follow.
    pub(super) fn array(&mut self, len: usize) {
        match len {
            0..16 => self.bytes.push(0x90 | len as u8),
            _ => self.len(len, None, 0xdc, 0xdd),
        }
    }

    /// The head of a map of at most 15 entries; keys and values follow in turn.
    pub(super) fn small_map(&mut self, len: u8) {
        debug_assert!(len < 16, "a map of {len} entries is no small one");
        self.bytes.push(0x80 | len);
    }

    fn len(&mut self, len: usize, one: Option<u8>, two: u8, four: u8) {
        match (one, len) {
            (Some(tag), 0..=0xff) => self.bytes.extend([tag, len as u8]),
            (_, 0..=0xffff) => self.put(two, &(len as u16).to_be_bytes()),
            // Nothing here reaches four gibibytes: a batch is one step of one engine.
            _ => self.put(four, &(len as u32).to_be_bytes()),
        }
    }

    fn put(&mut self, tag: u8, bytes: &[u8]) {
        self.bytes.push(tag);
        self.bytes.extend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        write(&mut writer);
        writer.into_bytes()
    }

    /// Vectors of the msgpack specification's formats at their limits.
    #[test]
    fn each_form_is_the_shortest_that_holds_the_value() {
        for (value, bytes) in [
            (0, &[0][..]),
            (127, &[0x7f]),
            (128, &[0xcc, 0x80]),
            (255, &[0xcc, 0xff]),
            (256, &[0xcd, 1, 0]),
            (65_536, &[0xce, 0, 1, 0, 0]),
            (1 << 32, &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0]),
            (u64::MAX, &[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]),
        ] {
            assert_eq!(written(|writer| writer.uint(value)), bytes, "{value}");
        }
        assert_eq!(
            written(|writer| writer.float(1.5)),
            [0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]
        );
        for (len, head) in [
            (31, &[0xbf][..]),
            (32, &[0xd9, 32]),
            (255, &[0xd9, 255]),
            (256, &[0xda, 1, 0]),
            (65_536, &[0xdb, 0, 1, 0, 0]),
        ] {
            let text = "x".repeat(len);
            assert!(written(|writer| writer.str(&text)).starts_with(head), "{len}");
        }
        for (len, head) in [
            (15, &[0x9f][..]),
            (16, &[0xdc, 0, 16]),
            (65_536, &[0xdd, 0, 1, 0, 0]),
        ] {
            assert_eq!(written(|writer| writer.array(len)), head, "{len}");
        }
        assert_eq!(written(|writer| writer.bin(&[7; 32]))[..2], [0xc4, 32]);
    }
}
