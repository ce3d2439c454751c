//! Transfers that are cut, stall, lie, or are killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kvasir::fetch::{FetchError, FetchEvent, FetchOptions, resolve};

use crate::stub::{Gate, Reply, Repo, Request, Stub, content, etag, file_reply};
use crate::{options, pull, repo_dir};

const FILE: &str = "m.gguf";
const LEN: usize = 700_000;

/// A hub whose answers to requests for the one file's content are changed.
fn faulty(change: impl Fn(Reply, &Request) -> Reply + Send + Sync + 'static) -> Stub {
    let repo = Repo(vec![(FILE, content(LEN))]);
    Stub::start(move |request| {
        let reply = repo.answer(request);
        if request.is_get(FILE) {
            change(reply, request)
        } else {
            reply
        }
    })
}

fn incomplete(options: &FetchOptions) -> PathBuf {
    let blob = repo_dir(options).join("blobs").join(etag(FILE, &content(LEN)));
    blob.with_added_extension("incomplete")
}

fn put_incomplete(options: &FetchOptions, bytes: &[u8]) {
    let path = incomplete(options);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn assert_fetched(result: Result<kvasir::fetch::LocalModel, FetchError>) {
    let path = result.unwrap().path;
    assert!(
        fs::read(path).unwrap() == content(LEN),
        "the file differs from the hub's"
    );
}

#[test]
fn cut_transfer_goes_on_where_it_stopped() {
    let stub = faulty(|reply, _| reply.cut_after(300_000));
    let dir = tempfile::tempdir().unwrap();
    assert_fetched(pull("o/n", &options(dir.path(), &stub.endpoint)));
    let ranges = stub.ranges(FILE);
    assert_eq!(ranges, [None, Some(300_000), Some(600_000)]);
}

#[test]
fn transfer_that_never_gets_further_ends_with_what_it_has() {
    let stub = faulty(|reply, request| reply.cut_after(if request.range.is_none() { 1000 } else { 0 }));
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    let error = pull("o/n", &options).unwrap_err();
    let FetchError::Truncated {
        received, expected, ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!((received, expected), (1000, LEN as u64));
    assert_eq!(fs::read(incomplete(&options)).unwrap(), &content(LEN)[..1000]);
}

#[test]
fn next_run_resumes_what_an_earlier_one_left() {
    let stub = faulty(|reply, _| reply);
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    put_incomplete(&options, &content(LEN)[..12_345]);
    assert_fetched(pull("o/n", &options));
    assert_eq!(stub.ranges(FILE), [Some(12_345)]);
    assert!(!incomplete(&options).exists());
}

#[test]
fn server_that_ignores_ranges_is_read_from_the_start() {
    let stub = faulty(|_, _| file_reply(FILE, &content(LEN), None));
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    put_incomplete(&options, &content(LEN)[..12_345]);
    assert_fetched(pull("o/n", &options));
}

#[test]
fn partial_answer_from_another_place_is_refused() {
    let stub = faulty(|_, _| file_reply(FILE, &content(LEN), Some(5)));
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    put_incomplete(&options, &content(LEN)[..10]);
    let error = pull("o/n", &options).unwrap_err();
    assert!(matches!(error, FetchError::BadAnswer { .. }), "{error}");
}

#[test]
fn corrupted_file_is_removed_and_reported_with_both_digests() {
    let stub = faulty(|mut reply, _| {
        reply.body[1234] ^= 1;
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    let error = pull("o/n", &options).unwrap_err();
    let FetchError::Corrupted { expected, found, .. } = &error else {
        panic!("{error}")
    };
    let mut changed = content(LEN);
    changed[1234] ^= 1;
    assert_eq!(
        (expected.to_string(), found.to_string()),
        (etag(FILE, &content(LEN)), etag(FILE, &changed))
    );
    assert!(
        error.to_string().contains(&expected.to_string()) && error.to_string().contains(&found.to_string())
    );
    assert!(!incomplete(&options).exists() && !incomplete(&options).with_extension("").exists());
}

#[test]
fn damaged_remains_of_an_earlier_run_do_not_get_into_the_file() {
    let stub = faulty(|reply, _| reply);
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    put_incomplete(&options, &[7; 5000]);
    assert!(matches!(pull("o/n", &options), Err(FetchError::Corrupted { .. })));
    assert_fetched(pull("o/n", &options));
}

#[test]
fn remains_longer_than_the_file_are_thrown_away() {
    let stub = faulty(|reply, _| reply);
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    put_incomplete(&options, &vec![7; LEN + 1]);
    assert_fetched(pull("o/n", &options));
    assert_eq!(stub.ranges(FILE), [None]);
}

#[test]
fn refused_range_starts_over() {
    let stub = faulty(|reply, request| {
        if request.range.is_some() {
            Reply::status(416)
        } else {
            reply
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    put_incomplete(&options, &content(LEN)[..10]);
    assert_fetched(pull("o/n", &options));
    assert_eq!(stub.ranges(FILE), [Some(10), None]);
}

#[test]
fn file_that_is_refused_whole_is_an_error() {
    let stub = faulty(|_, _| Reply::status(416));
    let dir = tempfile::tempdir().unwrap();
    let error = pull("o/n", &options(dir.path(), &stub.endpoint)).unwrap_err();
    assert!(matches!(error, FetchError::RangeRefused { .. }), "{error}");
}

#[test]
fn other_size_than_announced_is_an_error() {
    let stub = faulty(|_, _| file_reply(FILE, &content(LEN + 1), None));
    let dir = tempfile::tempdir().unwrap();
    let error = pull("o/n", &options(dir.path(), &stub.endpoint)).unwrap_err();
    let FetchError::WrongSize { expected, found, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((expected, found), (LEN as u64, LEN as u64 + 1));
}

#[test]
fn stalled_transfer_ends_in_bounded_time() {
    let gate = Gate::default();
    let held = gate.clone();
    let stub = faulty(move |mut reply, request| {
        reply.hold = Some((if request.range.is_none() { 1000 } else { 0 }, held.clone()));
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &stub.endpoint);
    options.timing.body = Duration::from_millis(200);
    let error = pull("o/n", &options).unwrap_err();
    gate.open();
    let FetchError::Stalled { received, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(received, 1000);
}

#[test]
fn slow_transfer_succeeds_in_as_many_windows_as_it_takes() {
    let gate = Gate::default();
    let held = gate.clone();
    // Each connection brings some bytes and then nothing, as a line does whose window is too short for the rest.
    let stub = faulty(move |mut reply, _| {
        if reply.body.len() > 200_000 {
            reply.hold = Some((200_000, held.clone()));
        }
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &stub.endpoint);
    options.timing.body = Duration::from_millis(300);
    assert_fetched(pull("o/n", &options));
    gate.open();
    assert_eq!(
        stub.ranges(FILE),
        [None, Some(200_000), Some(400_000), Some(600_000)]
    );
}

#[test]
fn passing_server_error_is_tried_again() {
    let count = AtomicUsize::new(0);
    let stub = faulty(move |reply, _| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::status(503),
        1 => Reply::status(429),
        _ => reply,
    });
    let dir = tempfile::tempdir().unwrap();
    assert_fetched(pull("o/n", &options(dir.path(), &stub.endpoint)));
}

#[test]
fn progress_tells_resumed_bytes_and_ends_at_the_total() {
    let stub = faulty(|reply, _| reply);
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    put_incomplete(&options, &content(LEN)[..10]);
    let log = Mutex::new(Vec::new());
    let watch = |event: &FetchEvent<'_>| {
        log.lock().unwrap().push(match event {
            FetchEvent::Started {
                total_bytes,
                resumed_bytes,
                ..
            } => ("started", *resumed_bytes, *total_bytes),
            FetchEvent::Advanced {
                done_bytes,
                total_bytes,
                ..
            } => ("advanced", *done_bytes, *total_bytes),
            FetchEvent::Finished { .. } => ("finished", 0, 0),
            _ => ("other", 0, 0),
        });
    };
    resolve(Some("o/n"), &options, &watch).unwrap();
    let log = log.into_inner().unwrap();
    let total = LEN as u64;
    assert_eq!(log[0], ("started", 10, total));
    assert_eq!(
        log[log.len() - 2..],
        [("advanced", total, total), ("finished", 0, 0)]
    );
    assert!(
        log[..log.len() - 1].is_sorted_by_key(|(_, done, _)| *done),
        "{log:?}"
    );
}

#[test]
fn second_fetch_of_the_same_file_waits_for_the_first() {
    let gate = Gate::default();
    let held = gate.clone();
    let stub = faulty(move |mut reply, _| {
        reply.hold = Some((1000, held.clone()));
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| pull("o/n", &options));
        wait_for("the first transfer", || len_of(&incomplete(&options)) >= 1000);
        // The first one can only end after the second has said that it waits.
        let open = |event: &FetchEvent<'_>| {
            if matches!(event, FetchEvent::Waiting { .. }) {
                gate.open();
            }
        };
        assert_fetched(resolve(Some("o/n"), &options, &open));
        assert_fetched(first.join().unwrap());
    });
    assert_eq!(stub.ranges(FILE), [None]);
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_reported_with_the_missing_bytes() {
    let stub = faulty(|reply, _| reply);
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    let path = incomplete(&options);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let error = pull("o/n", &options).unwrap_err();
    let FetchError::NoSpace { needed, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*needed, LEN as u64);
    assert!(error.to_string().contains("--model-cache"), "{error}");
}

/// The environment variables of the child that is killed: the hub's address and the cache.
const CHILD_ENDPOINT: &str = "KVASIR_TEST_CHILD_ENDPOINT";
const CHILD_CACHE: &str = "KVASIR_TEST_CHILD_CACHE";

#[test]
fn killed_process_is_resumed_by_the_next() {
    let gate = Gate::default();
    let held = gate.clone();
    let stub = faulty(move |mut reply, request| {
        if request.range.is_none() {
            reply.hold = Some((400_000, held.clone()));
        }
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &stub.endpoint);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "transfer::child_that_is_killed", "--ignored"])
        .env(CHILD_ENDPOINT, &stub.endpoint)
        .env(CHILD_CACHE, dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the child's bytes", || len_of(&incomplete(&options)) == 400_000);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_fetched(pull("o/n", &options));
    gate.open();
    assert_eq!(stub.ranges(FILE), [None, Some(400_000)]);
}

#[test]
#[ignore = "runs as the child process of killed_process_is_resumed_by_the_next"]
fn child_that_is_killed() {
    let endpoint = std::env::var(CHILD_ENDPOINT).expect("set by the parent");
    let cache = std::env::var_os(CHILD_CACHE).expect("set by the parent");
    assert_fetched(pull("o/n", &options(Path::new(&cache), &endpoint)));
}

fn len_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Polls for a state that another thread or process brings about.
fn wait_for(what: &str, is_reached: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_reached() {
        assert!(
            start.elapsed() < Duration::from_mins(1),
            "waited {:?} for {what}",
            start.elapsed()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}
