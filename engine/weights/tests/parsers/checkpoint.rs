//! Files and directories as models.

use std::fs;
use std::path::Path;

use kvasir_weights::safetensors::SafetensorsError;
use kvasir_weights::{Checkpoint, DType, WeightsError};

use crate::writer::{GgufFile, safetensors_of};

fn gguf_bytes() -> Vec<u8> {
    GgufFile::default()
        .tensor("b", &[64, 2], DType::Q8_0)
        .tensor("a", &[2], DType::F32)
        .bytes()
}

fn weight(name: &str) -> Vec<u8> {
    safetensors_of(&[(name, "F16", &[2], &[1, 2, 3, 4])])
}

fn open_error(path: &Path) -> WeightsError {
    Checkpoint::open(path).unwrap_err()
}

#[test]
fn sums_cover_all_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, gguf_bytes()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        (checkpoint.num_parameters(), checkpoint.total_bytes()),
        (130, 2 * 68 + 8)
    );
    assert_eq!(checkpoint.main_dtype(), DType::Q8_0);
    assert!(checkpoint.contains("a") && !checkpoint.contains("c"));
    assert!(matches!(checkpoint.tensor("c"), Err(WeightsError::MissingTensor { name }) if name == "c"));
}

#[test]
fn directory_is_opened_by_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(open_error(dir.path()), WeightsError::NotAModel { .. }));
    fs::write(dir.path().join("m.gguf"), gguf_bytes()).unwrap();
    assert!(matches!(
        Checkpoint::open(dir.path()).unwrap(),
        Checkpoint::Gguf(_)
    ));
    fs::write(dir.path().join("n.gguf"), gguf_bytes()).unwrap();
    assert!(matches!(
        open_error(dir.path()),
        WeightsError::SeveralGguf { count: 2, .. }
    ));
    fs::write(dir.path().join("model.safetensors"), weight("w")).unwrap();
    let Checkpoint::Safetensors(safetensors) = Checkpoint::open(dir.path()).unwrap() else {
        unreachable!()
    };
    assert_eq!(safetensors.dir(), dir.path());
}

#[test]
fn content_decides_before_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0123abcd");
    fs::write(&path, gguf_bytes()).unwrap();
    assert!(matches!(Checkpoint::open(&path).unwrap(), Checkpoint::Gguf(_)));
    fs::write(&path, weight("w")).unwrap();
    assert!(matches!(
        Checkpoint::open(&path).unwrap(),
        Checkpoint::Safetensors(_)
    ));
}

#[test]
fn pickles_and_other_files_are_refused_with_an_explanation() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, &[u8], &str); 5] = [
        ("pytorch_model.bin", b"PK\x03\x04rest of an archive", "run code"),
        ("m.pt", b"\x80\x02}q\x00.", "run code"),
        ("model.safetensors", b"\x80\x02}q\x00.", "run code"),
        ("notes.txt", b"some words", "neither"),
        ("empty.gguf", b"", "empty"),
    ];
    for (name, bytes, expected) in cases {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let error = open_error(&path).to_string();
        assert!(error.contains(expected) && error.contains(name), "{error}");
    }
    assert!(matches!(
        open_error(&dir.path().join("none")),
        WeightsError::Open { .. }
    ));
}

#[test]
fn shards_are_one_model() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("m-1.safetensors"), weight("a")).unwrap();
    fs::write(dir.path().join("m-2.safetensors"), weight("b")).unwrap();
    let index = r#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(checkpoint.tensor("b").unwrap().data, [1, 2, 3, 4]);
    let by_index = Checkpoint::open(&dir.path().join("model.safetensors.index.json")).unwrap();
    assert_eq!(by_index.digest(), checkpoint.digest());
}

#[test]
fn index_that_promises_too_much_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("m-1.safetensors"), weight("a")).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    fs::write(
        &index,
        r#"{"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors"}}"#,
    )
    .unwrap();
    let error = open_error(dir.path());
    let WeightsError::Safetensors {
        source: SafetensorsError::NotInShard { name, .. },
        ..
    } = error
    else {
        unreachable!("{error}")
    };
    assert_eq!(name, "b");
    fs::write(&index, r#"{"weight_map":{"a":"m-9.safetensors"}}"#).unwrap();
    assert!(open_error(dir.path()).to_string().contains("m-9.safetensors"));
    fs::write(&index, r#"{"weight_map":{"a":"../m-1.safetensors"}}"#).unwrap();
    assert!(
        open_error(dir.path())
            .to_string()
            .contains("plain .safetensors file name")
    );
}

#[test]
fn digest_depends_on_content_and_not_on_the_place() {
    let digest_of = |bytes: &[u8]| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        Checkpoint::open(file.path()).unwrap().digest()
    };
    let bytes = gguf_bytes();
    assert_eq!(digest_of(&bytes), digest_of(&bytes));
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert_ne!(digest_of(&bytes), digest_of(&changed));
}

#[test]
fn views_stay_valid_after_the_pages_were_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::write(&path, weight("w")).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let view = checkpoint.tensor("w").unwrap();
    checkpoint.advise_done();
    assert_eq!(view.data, [1, 2, 3, 4]);
}
