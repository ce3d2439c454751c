//! This program as files that run in an image without any.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::CopyError;

/// The name of the dynamic loader in the folder, whatever the machine calls it.
pub(crate) const LOADER: &str = "loader";
/// The name of this program in the folder.
pub(crate) const PROGRAM: &str = "kvasir";

/// Puts this program, the loader and the libraries it runs with into `folder`, where `loader --library-path FOLDER FOLDER/kvasir ...` runs
/// it without any other file.
pub(crate) fn install(folder: &Path) -> Result<(), CopyError> {
    let unknown = |what: &str, error: std::io::Error| CopyError::Program(format!("{what}: {error}"));
    let maps = "/proc/self/maps";
    let maps = fs::read_to_string(maps).map_err(|error| unknown(maps, error))?;
    let program = std::env::current_exe().map_err(|error| unknown("its own path", error))?;
    let parts = parts(&maps, &program)?;
    fs::create_dir_all(folder).map_err(|error| CopyError::write(folder, error))?;
    place(&program, &folder.join(PROGRAM))?;
    place(&parts.loader, &folder.join(LOADER))?;
    for library in &parts.libraries {
        place(library, &folder.join(library.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

fn place(from: &Path, to: &Path) -> Result<(), CopyError> {
    let bytes = fs::read(from).map_err(|error| CopyError::read(from, error))?;
    // One that is left of an earlier try may be running or incomplete.
    let fresh = to.with_extension("new");
    fs::write(&fresh, bytes)
        .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&fresh, to))
        .map_err(|error| CopyError::write(to, error))
}

/// What a process runs with besides its program.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    loader: PathBuf,
    libraries: Vec<PathBuf>,
}

/// Reads the files that a process has mapped to run, of the lines of `/proc/PID/maps`: address, rights, offset, device, inode, path.
fn parts(maps: &str, program: &Path) -> Result<Parts, CopyError> {
    let mut libraries: Vec<PathBuf> = maps.lines().filter_map(runnable).map(PathBuf::from).collect();
    libraries.sort();
    libraries.dedup();
    libraries.retain(|path| path != program);
    let is_loader = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("ld-") || name.starts_with("ld.so") || name.starts_with("ld64.so")
    };
    let Some(at) = libraries.iter().position(is_loader) else {
        let found: Vec<_> = libraries.iter().map(|path| path.display().to_string()).collect();
        return Err(CopyError::Program(format!(
            "none of [{}] is a dynamic loader",
            found.join(", ")
        )));
    };
    Ok(Parts {
        loader: libraries.remove(at),
        libraries,
    })
}

/// The file of a mapping whose bytes may be executed.
fn runnable(line: &str) -> Option<&str> {
    let mut fields = line.splitn(6, ' ');
    let rights = fields.nth(1)?;
    let path = fields.nth(3)?.trim_start();
    (rights.contains('x') && path.starts_with('/')).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0100000 r--p 00000000 08:01 131 /usr/bin/kvasir
55d0c0100000-55d0c1f00000 r-xp 00100000 08:01 131 /usr/bin/kvasir
55d0c3000000-55d0c3021000 rw-p 00000000 00:00 0   [heap]
7f0000000000-7f0000020000 r-xp 00026000 08:01 201                        /lib/x86_64-linux-gnu/libc.so.6
7f0000100000-7f0000120000 r--p 00000000 08:01 202                        /usr/lib/locale/C.utf8/LC_CTYPE
7f0000200000-7f0000220000 r-xp 00001000 08:01 203                        /lib64/ld-linux-x86-64.so.2
7f0000220000-7f0000221000 r--p 00021000 08:01 203                        /lib64/ld-linux-x86-64.so.2
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
7ffd000f0000-7ffd000f2000 r-xp 00000000 00:00 0                          [vdso]
";

    #[test]
    fn what_a_process_runs_with_is_its_loader_and_its_libraries() {
        let found = parts(MAPS, Path::new("/usr/bin/kvasir")).unwrap();
        assert_eq!(found.loader, Path::new("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(found.libraries, [Path::new("/lib/x86_64-linux-gnu/libc.so.6")]);
    }

    #[test]
    fn a_program_without_a_loader_is_refused() {
        let maps = "55d0c0100000-55d0c1f00000 r-xp 00100000 08:01 131 /kvasir\nnonsense\n\n- r-xp\n";
        let error = parts(maps, Path::new("/kvasir")).unwrap_err();
        assert!(error.to_string().contains("none of []"), "{error}");
    }
}
