//! How much memory this process may use: the limits of its control groups, v1 and v2, and what the machine has left.
//!
//! A limit of an outer group binds as much as one's own, so all groups from the process's up to the root are read and the
//! smallest limit counts. Inside a container the path in `/proc/self/cgroup` is often that of the host and doesn't exist
//! under `/sys/fs/cgroup`; then only the mount's root is there, and it is the container's own group.

use std::path::{Path, PathBuf};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// v1 writes "no limit" as the largest multiple of the page size; no machine has an exbibyte.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// The memory that a process may use.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct MemoryLimit {
    /// The smallest limit of its control groups, in bytes.
    pub(crate) cgroup_bytes: Option<u64>,
    /// What the machine can give without swapping, in bytes.
    pub(crate) available_bytes: Option<u64>,
}

impl MemoryLimit {
    /// Reads the limits of this process; what can't be read is absent.
    pub(crate) fn of_this_process() -> Self {
        Self::read(&|path| std::fs::read_to_string(path).ok())
    }

    /// Reads the limits through `read`, which gives the text of a file.
    pub(crate) fn read(read: &dyn Fn(&Path) -> Option<String>) -> Self {
        let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        let cgroup_bytes = memory_files(&groups)
            .iter()
            .filter_map(|path| read(path))
            .filter_map(|text| parse_limit(&text))
            .min();
        let available_bytes = read(Path::new("/proc/meminfo")).and_then(|text| parse_available(&text));
        Self {
            cgroup_bytes,
            available_bytes,
        }
    }

    /// The smaller of both, with the words for where it came from.
    pub(crate) fn smallest(self) -> Option<(u64, &'static str)> {
        let cgroup = self
            .cgroup_bytes
            .map(|bytes| (bytes, "the cgroup's memory limit"));
        let available = self
            .available_bytes
            .map(|bytes| (bytes, "the machine's available memory"));
        [cgroup, available]
            .into_iter()
            .flatten()
            .min_by_key(|(bytes, _)| *bytes)
    }
}

/// The limit files of all groups that bind the process. Lines are `hierarchy:controllers:path`; hierarchy 0 is v2.
fn memory_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (root, name) = if hierarchy == "0" && controllers.is_empty() {
            (PathBuf::from(CGROUP_ROOT), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (Path::new(CGROUP_ROOT).join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let group = root.join(path.trim_start_matches('/'));
        files.extend(
            group
                .ancestors()
                .take_while(|folder| folder.starts_with(&root))
                .map(|folder| folder.join(name)),
        );
    }
    files
}

/// `max` or bytes.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < UNLIMITED_BYTES)
}

/// The `MemAvailable` line, which is in kibibytes.
fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(files: &[(&str, &str)]) -> MemoryLimit {
        MemoryLimit::read(&|path| {
            files
                .iter()
                .find(|(name, _)| Path::new(name) == path)
                .map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn smallest_limit_from_own_group_to_root_binds() {
        let found = limit(&[
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "1000\n"),
            ("/sys/fs/cgroup/memory.max", "2000\n"),
        ]);
        assert_eq!(found.cgroup_bytes, Some(1000));
    }

    #[test]
    fn container_whose_group_path_is_the_hosts_uses_the_mounts_root() {
        let found = limit(&[
            ("/proc/self/cgroup", "0::/kubepods/pod1\n"),
            ("/sys/fs/cgroup/memory.max", "4096\n"),
        ]);
        assert_eq!(found.cgroup_bytes, Some(4096));
    }

    #[test]
    fn version_one_limit_is_read_and_its_huge_number_is_no_limit() {
        let groups = ("/proc/self/cgroup", "5:cpu,cpuacct:/x\n7:memory:/docker/c\n");
        let set = limit(&[
            groups,
            ("/sys/fs/cgroup/memory/docker/c/memory.limit_in_bytes", "123\n"),
        ]);
        assert_eq!(set.cgroup_bytes, Some(123));
        let unset = limit(&[
            groups,
            (
                "/sys/fs/cgroup/memory/docker/c/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(unset.cgroup_bytes, None);
    }

    #[test]
    fn available_memory_counts_where_it_is_smaller() {
        let files = [
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/memory.max", "8192"),
            ("/proc/meminfo", "MemTotal:  9 kB\nMemAvailable:       4 kB\n"),
        ];
        assert_eq!(
            limit(&files).smallest(),
            Some((4096, "the machine's available memory"))
        );
        assert_eq!(
            limit(&files[..2]).smallest(),
            Some((8192, "the cgroup's memory limit"))
        );
    }

    #[test]
    fn unreadable_or_broken_files_are_no_limit() {
        assert_eq!(limit(&[]), MemoryLimit::default());
        let broken = limit(&[
            ("/proc/self/cgroup", "nonsense\n0:\n0::/../..\n:::::\n"),
            ("/sys/fs/cgroup/memory.max", "-5"),
            ("/proc/meminfo", "MemAvailable: lots"),
        ]);
        assert_eq!(broken, MemoryLimit::default());
    }
}
