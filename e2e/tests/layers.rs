//! Holds the dependency table of ARCHITECTURE.md: who may depend on whom, and what a pure crate may not gain.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::Command;

use serde_json::Value;

/// Our crates and the ones of ours that each may name in `[dependencies]`. `e2e` may name anything.
const ALLOWED: &[(&str, &[&str])] = &[
    ("kvasir-proto", &[]),
    ("kvasir-kernels-cpu", &[]),
    ("kvasir-cache-key", &[]),
    ("kvasir-sampling", &[]),
    ("kvasir-files", &[]),
    ("kvasir-weights", &["kvasir-files"]),
    ("kvasir-text", &[]),
    ("kvasir-api", &[]),
    ("kvasir-config", &[]),
    ("kvasir-engine-core", &["kvasir-cache-key"]),
    ("kvasir-gateway-core", &["kvasir-cache-key"]),
    ("kvasir-tls", &["kvasir-files"]),
    (
        "kvasir-gateway",
        &[
            "kvasir-api",
            "kvasir-cache-key",
            "kvasir-client",
            "kvasir-config",
            "kvasir-edge",
            "kvasir-files",
            "kvasir-gateway-core",
            "kvasir-tls",
        ],
    ),
    (
        "kvasir-backend",
        &["kvasir-engine-core", "kvasir-sampling", "kvasir-weights"],
    ),
    ("kvasir-backend-cpu", &["kvasir-backend", "kvasir-kernels-cpu"]),
    (
        "kvasir-model",
        &[
            "kvasir-backend",
            "kvasir-engine-core",
            "kvasir-files",
            "kvasir-sampling",
            "kvasir-weights",
        ],
    ),
    ("kvasir-sim", &["kvasir-cache-key", "kvasir-engine-core"]),
    ("kvasir-client", &["kvasir-proto"]),
    ("kvasir-operator-api", &[]),
    ("kvasir-operator-core", &["kvasir-config", "kvasir-operator-api"]),
    ("kvasir-fake-kubelet", &[]),
    (
        "kvasir-operator-runtime",
        &[
            "kvasir-operator-api",
            "kvasir-operator-core",
            "kvasir-proto",
            "kvasir-tls",
        ],
    ),
    (
        "kvasir-operator",
        &[
            "kvasir-operator-api",
            "kvasir-operator-core",
            "kvasir-operator-runtime",
        ],
    ),
    ("kvasir-edge", &["kvasir-api", "kvasir-client", "kvasir-text"]),
    (
        "kvasir-service",
        &[
            "kvasir-backend",
            "kvasir-cache-key",
            "kvasir-client",
            "kvasir-config",
            "kvasir-engine-core",
            "kvasir-proto",
            "kvasir-sampling",
            "kvasir-tls",
        ],
    ),
    (
        "kvasir",
        &[
            "kvasir-api",
            "kvasir-backend",
            "kvasir-backend-cpu",
            "kvasir-cache-key",
            "kvasir-client",
            "kvasir-config",
            "kvasir-edge",
            "kvasir-engine-core",
            "kvasir-files",
            "kvasir-gateway",
            "kvasir-gateway-core",
            "kvasir-model",
            "kvasir-sampling",
            "kvasir-service",
            "kvasir-sim",
            "kvasir-text",
            "kvasir-tls",
            "kvasir-weights",
        ],
    ),
];

/// Crates that decide: no runtime, socket, clock, random source or logger may enter them, not even through others.
const PURE: &[&str] = &[
    "kvasir-cache-key",
    "kvasir-engine-core",
    "kvasir-gateway-core",
    "kvasir-sampling",
    "kvasir-api",
    "kvasir-sim",
    "kvasir-operator-core",
];

/// What would make a crate impure.
const IMPURE: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "mio",
    "socket2",
    "hyper",
    "reqwest",
    "ureq",
    "tonic",
    "axum",
    "rand",
    "getrandom",
    "fastrand",
    "log",
    "tracing",
    "chrono",
    "time",
    "jiff",
    "memmap2",
    "rayon",
];

/// Impure crates that a pure one may reach as types only. Kubernetes' objects hold jiff's timestamps; the crate's
/// `.clippy.toml` bans jiff's clock. `log` is there only where another crate of the workspace switches on jiff's messages.
const TYPES_ONLY: &[(&str, &str)] = &[("kvasir-operator-core", "jiff"), ("kvasir-operator-core", "log")];

/// Crates that may contain `unsafe`: kernels, the CPU backend, and the one memory-map module.
const UNSAFE: &[&str] = &["kvasir-kernels-cpu", "kvasir-backend-cpu", "kvasir-weights"];

#[test]
fn each_crate_depends_only_on_the_crates_the_table_allows() {
    let metadata = Metadata::read();
    let table: BTreeMap<&str, BTreeSet<&str>> = ALLOWED
        .iter()
        .map(|(name, deps)| (*name, deps.iter().copied().collect()))
        .collect();
    for name in metadata.members() {
        if name == "e2e" {
            continue;
        }
        let allowed = table
            .get(name)
            .unwrap_or_else(|| panic!("{name} isn't in the dependency table"));
        for dependency in metadata.direct_dependencies(name) {
            assert!(
                !metadata.is_member(&dependency) || allowed.contains(dependency.as_str()),
                "{name} depends on {dependency}, which the table doesn't allow"
            );
        }
    }
}

#[test]
fn the_table_names_only_crates_that_exist() {
    let metadata = Metadata::read();
    for (name, _) in ALLOWED {
        assert!(
            metadata.is_member(name),
            "the dependency table names {name}, which isn't in the workspace"
        );
    }
}

#[test]
fn pure_crates_gain_no_runtime_clock_randomness_socket_or_logger() {
    let metadata = Metadata::read();
    for name in PURE {
        for dependency in metadata.transitive_dependencies(name) {
            if TYPES_ONLY.contains(&(name, dependency.as_str())) {
                continue;
            }
            assert!(
                !IMPURE.contains(&dependency.as_str()),
                "{name} is pure but reaches {dependency}"
            );
        }
    }
}

#[test]
fn one_crypto_provider_is_linked() {
    let metadata = Metadata::read();
    for banned in ["aws-lc-rs", "aws-lc-sys", "openssl", "openssl-sys", "native-tls"] {
        assert!(
            !metadata.transitive_dependencies("kvasir").contains(banned),
            "{banned} is linked: two crypto providers make rustls panic at the first connection"
        );
    }
}

#[test]
fn every_dependency_comes_from_the_registry_or_the_workspace() {
    let metadata = Metadata::read();
    for package in metadata.packages() {
        let source = package["source"].as_str();
        assert!(
            source.is_none_or(|source| source.starts_with("registry+") || source.starts_with("sparse+")),
            "{} comes from {source:?}",
            package["name"]
        );
    }
}

#[test]
fn every_linked_dependency_has_a_permissive_license() {
    const ACCEPTED: &[&str] = &[
        "Apache-2.0",
        "MIT",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "Zlib",
        "Unicode-3.0",
        "Unlicense",
        "0BSD",
        "CC0-1.0",
        "CDLA-Permissive-2.0",
        "MIT-0",
        "BSL-1.0",
    ];
    let metadata = Metadata::read();
    let linked = metadata.transitive_dependencies("kvasir");
    for package in metadata.packages() {
        let name = package["name"].as_str().unwrap_or_default();
        if !linked.contains(name) {
            continue;
        }
        let license = package["license"].as_str().unwrap_or_default();
        let choices = license.replace(" OR ", "/");
        let accepted = choices.split('/').any(|choice| {
            choice.split(" AND ").all(|term| {
                let term = term
                    .trim_matches(['(', ')', ' '])
                    .split(" WITH ")
                    .next()
                    .unwrap_or_default();
                ACCEPTED.contains(&term)
            })
        });
        assert!(accepted, "{name} is licensed {license:?}");
    }
}

#[test]
fn unsafe_code_stays_in_the_crates_that_declare_it() {
    let metadata = Metadata::read();
    for package in metadata.packages().filter(|package| package["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        if UNSAFE.contains(&name) {
            continue;
        }
        let manifest = std::path::Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let sources = manifest
            .parent()
            .map(|folder| folder.join("src"))
            .unwrap_or_default();
        for file in rust_files(&sources) {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(
                !text.contains("unsafe {") && !text.contains("unsafe fn"),
                "{} has unsafe code, but {name} isn't among the crates that may",
                file.display()
            );
        }
    }
}

fn rust_files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// What `cargo metadata` says, with the look-ups the tests need.
struct Metadata {
    json: Value,
    name_of: BTreeMap<String, String>,
}

impl Metadata {
    fn read() -> Self {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs the test, so it can be started");
        assert!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let json: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
        let name_of = json["packages"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|package| (text(&package["id"]), text(&package["name"])))
            .collect();
        Self { json, name_of }
    }

    fn packages(&self) -> impl Iterator<Item = &Value> {
        self.json["packages"].as_array().into_iter().flatten()
    }

    fn members(&self) -> impl Iterator<Item = &str> {
        self.packages()
            .filter(|package| package["source"].is_null())
            .filter_map(|package| package["name"].as_str())
    }

    fn is_member(&self, name: &str) -> bool {
        self.members().any(|member| member == name)
    }

    /// Dependencies that are linked into the crate: not those of tests or build scripts.
    fn direct_dependencies(&self, name: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for node in self.json["resolve"]["nodes"].as_array().into_iter().flatten() {
            if self
                .name_of
                .get(node["id"].as_str().unwrap_or_default())
                .map(String::as_str)
                != Some(name)
            {
                continue;
            }
            for dependency in node["deps"].as_array().into_iter().flatten() {
                let linked = dependency["dep_kinds"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|kind| kind["kind"].is_null());
                if let (true, Some(name)) = (
                    linked,
                    self.name_of.get(dependency["pkg"].as_str().unwrap_or_default()),
                ) {
                    names.insert(name.clone());
                }
            }
        }
        names
    }

    fn transitive_dependencies(&self, name: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut queue = VecDeque::from([name.to_owned()]);
        while let Some(next) = queue.pop_front() {
            for dependency in self.direct_dependencies(&next) {
                if seen.insert(dependency.clone()) {
                    queue.push_back(dependency);
                }
            }
        }
        seen
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
