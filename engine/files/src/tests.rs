use std::path::PathBuf;

use super::*;

const TEN: Limit = Limit {
    max_bytes: 10,
    advice: "write less",
};

fn file(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

#[test]
fn a_file_is_read_up_to_its_limit() {
    let (_folder, path) = file(b"0123456789");
    assert_eq!(read(&path, TEN).unwrap(), b"0123456789");
    let (_folder, path) = file(b"0123456789a");
    let text = read(&path, TEN).unwrap_err().to_string();
    assert!(
        text.ends_with("file has 11 bytes, more than the limit of 10; write less"),
        "{text}"
    );
}

#[test]
fn what_has_no_end_is_not_read() {
    let text = read(Path::new("/dev/zero"), TEN).unwrap_err().to_string();
    assert_eq!(text, "/dev/zero is a device, not a regular file; give a file");
    let text = read_or_stdin(Path::new("/dev/zero"), TEN)
        .unwrap_err()
        .to_string();
    assert!(text.contains("give - and pipe it in"), "{text}");
}

#[test]
fn a_pipe_without_a_writer_holds_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
    let text = read(&path, TEN).unwrap_err().to_string();
    assert!(text.contains("is a pipe, not a regular file"), "{text}");
}

#[test]
fn a_folder_is_called_one() {
    let folder = tempfile::tempdir().unwrap();
    let text = read_or_stdin(folder.path(), TEN).unwrap_err().to_string();
    assert!(
        text.ends_with("is a folder, not a regular file; give a file"),
        "{text}"
    );
}

#[test]
fn a_file_whose_size_the_kernel_does_not_tell_is_bounded_too() {
    let path = Path::new("/proc/self/status");
    assert!(matches!(read(path, TEN), Err(FileError::Endless { .. })));
    let all = read_text(path, Limit::SMALL).unwrap();
    assert!(all.starts_with("Name:"));
}

#[test]
fn text_must_be_text() {
    let (_folder, path) = file(b"ab\xff");
    let text = read_text(&path, TEN).unwrap_err().to_string();
    assert!(text.ends_with("isn't text: byte 2 is no UTF-8"), "{text}");
}
