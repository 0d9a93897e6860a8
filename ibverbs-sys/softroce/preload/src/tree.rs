//! The private directory of the process, in which the files of the device are.
//!
//! The name of the directory begins with [`PREFIX`], and the process holds a lock on it, which the
//! kernel releases when the process ends in any way. So another process can tell which directories
//! are left over.
//!
//! The functions here make system calls directly (`rustix`), because this library replaces
//! functions of the C library.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use device::sysfs::{self, File, State};
use rustix::fs::{self, Access, Dir, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, geteuid, getpid};

/// Beginning of the names of private directories.
const PREFIX: &str = "softroce-files-";

/// Lowest number for the descriptor that holds the lock. Programs that close or replace descriptors
/// by fixed numbers use lower ones.
const LOCK_DESCRIPTOR: i32 = 3072;

/// Number of names that are tried for a new directory before its creation fails. A name can be
/// taken by a directory that another process has left.
const ATTEMPTS: u32 = 100;

/// The private directory of a process, which contains the files of the device.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The process that has created the directory. A child of `fork` creates its own.
    process: Pid,
    /// Absolute path of the directory, without symbolic links.
    root: PathBuf,
    /// Content of the directory on disk. Only one thread at a time updates the files.
    written: Mutex<DirectoryContent>,
    _lock: OwnedFd,
}

/// The content of a private directory on disk, so that only changed files are written.
#[derive(Debug, Default)]
struct DirectoryContent {
    /// State of the device in the files; `None` before the first is complete.
    state: Option<State>,
    files: BTreeMap<String, File>,
}

/// The directory of this process or, in a child of `fork`, of its parent. Null until the program
/// first uses a path of the device. Trees are never freed, because other threads may use them.
static TREE: AtomicPtr<Tree> = AtomicPtr::new(ptr::null_mut());

/// Set when the process exits and its directory is removed, so that no new directory is created.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Set after a message about a failure was printed, so that the message is printed once.
static HAS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Returns the directory of this process with the present content of all files, and creates it if
/// necessary. Returns `None` if it cannot be created, or the process is exiting.
pub(crate) fn current() -> Option<&'static Tree> {
    updated(Tree::update)
}

/// Returns the same directory as [`current`], with entries for the machine's present devices in the
/// directories that they share with softroce's device.
pub(crate) fn with_devices_of_the_machine() -> Option<&'static Tree> {
    updated(Tree::update_shared)
}

fn updated(update: impl FnOnce(&Tree) -> io::Result<()>) -> Option<&'static Tree> {
    if HAS_ENDED.load(Ordering::Relaxed) {
        return None;
    }
    let tree = match existing() {
        Some(tree) if fs::access(&tree.root, Access::EXISTS).is_ok() => tree,
        _ => create()?,
    };
    if let Err(error) = update(tree) {
        report(&error);
    }
    Some(tree)
}

/// Returns the directory of this process, if it was created.
pub(crate) fn existing() -> Option<&'static Tree> {
    // SAFETY: the pointer is null, or that of a tree that is never freed.
    let tree = unsafe { TREE.load(Ordering::Acquire).as_ref() }?;
    (tree.process == getpid()).then_some(tree)
}

/// Creates the directory of this process. If another thread is faster, returns the directory of
/// that thread.
fn create() -> Option<&'static Tree> {
    let seen = TREE.load(Ordering::Acquire);
    let made = match Tree::create() {
        Ok(made) => Box::into_raw(Box::new(made)),
        Err(error) => {
            report(&error);
            return None;
        }
    };
    let order = Ordering::AcqRel;
    match TREE.compare_exchange(seen, made, order, Ordering::Acquire) {
        // SAFETY: the tree was created above and is never freed.
        Ok(_) => Some(unsafe { &*made }),
        Err(_) => {
            // SAFETY: the tree was created above, and no other thread has a pointer to it.
            let made = unsafe { Box::from_raw(made) };
            made.remove();
            existing()
        }
    }
}

fn report(error: &io::Error) {
    if !HAS_REPORTED.swap(true, Ordering::Relaxed) {
        // Nobody can be told if standard error is closed.
        let _ = writeln!(
            io::stderr(),
            "softroce: programs do not find all files of the device: {error}"
        );
    }
}

impl Tree {
    /// Creates a private directory with all files of the device, after removing those that other
    /// processes have left.
    fn create() -> io::Result<Self> {
        let bases = [PathBuf::from("/dev/shm"), env::temp_dir()];
        let mut failure = None;
        for base in &bases {
            remove_left_over(base);
            match Self::create_in(base) {
                Ok(tree) => return Ok(tree),
                Err(error) => failure = Some((base, error)),
            }
        }
        let (base, error) = failure.unwrap_or((&bases[0], Errno::NOENT.into()));
        let message = format!("creating a directory in {}: {error}", base.display());
        Err(io::Error::new(error.kind(), message))
    }

    fn create_in(base: &Path) -> io::Result<Self> {
        let base = canonical(base)?;
        let process = getpid();
        for attempt in 0..ATTEMPTS {
            let root = base.join(format!("{PREFIX}{process}-{attempt}"));
            match fs::mkdir(&root, Mode::from_raw_mode(0o755)) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error.into()),
            }
            // Another process may have removed the new directory before it was locked.
            let Some(lock) = lock(&root) else {
                continue;
            };
            if fs::access(&root, Access::EXISTS).is_err() {
                continue;
            }
            let tree = Self {
                process,
                root,
                written: Mutex::default(),
                _lock: fcntl_dupfd_cloexec(&lock, LOCK_DESCRIPTOR).unwrap_or(lock),
            };
            if let Err(error) = tree.update() {
                tree.remove();
                return Err(error);
            }
            return Ok(tree);
        }
        Err(Errno::EXIST.into())
    }

    /// Returns the path of the private directory, which precedes the usual path of each file.
    pub(crate) fn root(&self) -> &[u8] {
        self.root.as_os_str().as_bytes()
    }

    /// Writes all files whose content has changed. Does nothing while another thread does that.
    fn update(&self) -> io::Result<()> {
        let Ok(mut written) = self.written.try_lock() else {
            return Ok(());
        };
        let state = State::present();
        if written.state.as_ref() != Some(&state) {
            for (path, file) in state.files() {
                self.write(&mut written.files, path, file)?;
            }
            written.state = Some(state);
        }
        Ok(())
    }

    /// Writes all files whose content has changed, like `update`. In the directories that have
    /// entries for the machine's devices, also adds links to new devices, and removes those to
    /// devices that have disappeared.
    fn update_shared(&self) -> io::Result<()> {
        self.update()?;
        let Ok(mut written) = self.written.try_lock() else {
            return Ok(());
        };
        let files = &mut written.files;
        for directory in sysfs::SHARED {
            let present = devices_of_the_machine(directory);
            let is_old = |(path, file): &(&String, &File)| {
                matches!(file, File::Link(target) if target == *path)
                    && Path::new(path).parent() == Some(Path::new(directory))
                    && !present.contains(*path)
            };
            let old: Vec<String> = files
                .iter()
                .filter(is_old)
                .map(|(path, _)| path.clone())
                .collect();
            for path in old {
                fs::unlink(self.path(&path))?;
                files.remove(&path);
            }
            for path in present {
                if !files.contains_key(&path) {
                    let link = File::Link(path.clone());
                    self.write(files, path, link)?;
                }
            }
        }
        Ok(())
    }

    /// Writes `file` as the file that programs know by `path`, and records it in `written`. Does
    /// nothing if the file has this content already.
    fn write(
        &self,
        written: &mut BTreeMap<String, File>,
        path: String,
        file: File,
    ) -> io::Result<()> {
        let before = written.get(&path);
        if before == Some(&file) {
            return Ok(());
        }
        let place = self.path(&path);
        // A file gets its name when it is complete. An update that failed may have left the other
        // name.
        let new = self.root.join("new");
        match fs::unlink(&new) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        match &file {
            File::Directory => match fs::mkdir(&place, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            },
            File::Link(target) => {
                fs::symlink(target, &new)?;
                fs::rename(&new, &place)?;
            }
            File::Text(text) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let file = fs::open(&new, flags, Mode::from_raw_mode(0o444))?;
                write_all(&file, text.as_bytes())?;
                fs::rename(&new, &place)?;
            }
        }
        written.insert(path, file);
        Ok(())
    }

    /// Returns the path in the private directory of the file that programs know by the absolute
    /// path `path`.
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(&path[1..])
    }

    /// Removes the private directory with all files.
    fn remove(&self) {
        remove(&self.root);
    }
}

/// Writes all of `bytes` to `file`, in several calls if the system writes only a part.
fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the paths of all entries of the machine's directory `directory`, in which the kernel has
/// an entry for each of its devices.
fn devices_of_the_machine(directory: &str) -> BTreeSet<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = fs::open(directory, flags, Mode::empty()).and_then(Dir::new);
    let names = entries.into_iter().flatten().flatten().map(|entry| {
        let name = entry.file_name().to_string_lossy();
        name.into_owned()
    });
    names
        .filter(|name| name != "." && name != "..")
        .map(|name| format!("{directory}/{name}"))
        .collect()
}

/// Locks the private directory `root`. Returns `None` if another process has locked it, or if it
/// does not belong to this user.
fn lock(root: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = fs::open(root, flags, Mode::empty()).ok()?;
    let is_own = fs::fstat(&lock).ok()?.st_uid == geteuid().as_raw();
    fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    is_own.then_some(lock)
}

/// Removes the private directories in `base` of processes that have ended without removing them.
/// The directory of a process that has ended is not locked.
fn remove_left_over(base: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = fs::open(base, flags, Mode::empty()).and_then(Dir::new);
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy();
        if name.starts_with(PREFIX)
            && let root = base.join(&*name)
            && let Some(_lock) = lock(&root)
        {
            remove(&root);
        }
    }
}

/// Removes a directory and its content. Entries that cannot be removed stay.
fn remove(root: &Path) {
    // The standard library calls functions of the C library that this library replaces. The paths
    // in these calls are not those of the device.
    let _ = std::fs::remove_dir_all(root);
}

/// Returns the path of the directory `base` without symbolic links, so that the results of
/// `realpath` begin with the path.
fn canonical(base: &Path) -> io::Result<PathBuf> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = fs::open(base, flags, Mode::empty())?;
    let name = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let path = fs::readlink(name, Vec::new())?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}

/// Removes the directory of this process when the process exits, or this library is unloaded.
#[used]
#[unsafe(link_section = ".fini_array")]
static REMOVE: extern "C" fn() = {
    extern "C" fn remove_at_exit() {
        HAS_ENDED.store(true, Ordering::Relaxed);
        if let Some(tree) = existing() {
            tree.remove();
        }
    }
    remove_at_exit
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_a_failed_update_has_left_keeps_no_other_from_being_replaced() {
        let tree = Tree::create_in(&env::temp_dir()).unwrap();
        let place = tree.root.join("value");
        let mut files = BTreeMap::new();
        for text in ["one", "2"] {
            std::fs::write(tree.root.join("new"), "a text that is longer").unwrap();
            let file = File::Text(text.to_owned());
            tree.write(&mut files, "/value".to_owned(), file).unwrap();
            assert_eq!(std::fs::read_to_string(&place).unwrap(), text);
        }
        std::fs::write(tree.root.join("new"), "").unwrap();
        let link = File::Link("/dev/null".to_owned());
        tree.write(&mut files, "/value".to_owned(), link).unwrap();
        assert_eq!(std::fs::read_link(&place).unwrap(), Path::new("/dev/null"));
        tree.remove();
    }
}
