//! What an error of writing says about the disk.

use std::io;

/// Whether there is no room for what was written: the disk is full, somebody's share of it is, or it takes no file so large. Another try
/// would end the same way until somebody makes room.
pub(crate) fn has_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_no_room_is_one_and_nothing_else_is() {
        for (code, no_room) in [
            (rustix::io::Errno::NOSPC, true),
            (rustix::io::Errno::DQUOT, true),
            (rustix::io::Errno::FBIG, true),
            (rustix::io::Errno::IO, false),
            (rustix::io::Errno::ROFS, false),
        ] {
            assert_eq!(has_no_room(&code.into()), no_room, "{code}");
        }
    }
}
