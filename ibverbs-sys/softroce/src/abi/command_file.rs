//! The command descriptor of a context, and the objects that contexts share by it.
//!
//! A kernel device has a file for each context. A program duplicates the file's descriptor
//! (`cmd_fd`) and makes another context of the duplicate by `ibv_import_device`. Both contexts then
//! have the same objects, which the program names by the handles in their C structures
//! (`ibv_import_pd`, `ibv_import_mr`, `ibv_import_dm`). Here the file is an empty file in memory,
//! which only identifies the context, and only this process knows the file.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::MemfdFlags;

use super::memory::Region;
use crate::context::{ProtectionDomain, Refusal};
use crate::descriptor::Descriptor;
use crate::memory::DeviceMemory;

/// File by which a program imports a context (`ibv_import_device(3)`). The program gets a
/// descriptor of the file as `cmd_fd`, and passes a duplicate of the descriptor to
/// `ibv_import_device` in the same process. The imported context shares this file, and the objects
/// that are stored here.
pub(super) struct CommandFile {
    file: Descriptor,
    identity: Identity,
    pub(super) domains: Objects<ProtectionDomain>,
    pub(super) regions: Objects<Region>,
    pub(super) device_memory: Objects<DeviceMemory>,
}

/// Identity of a file in this process: its device number and its inode number.
type Identity = (u64, u64);

impl CommandFile {
    /// Creates the command file of a new context: an empty file in memory. A program passes the
    /// file's descriptor to `ibv_import_device`, which finds the context by the identity of the
    /// file. Fails if the process cannot open another file.
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let file = Descriptor::open(|| {
            let create = |flags| rustix::fs::memfd_create("softroce", flags);
            // Kernels before 6.3 do not support the second flag; newer kernels may require it.
            create(MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
                .or_else(|_| create(MemfdFlags::CLOEXEC))
        })?;
        Ok(Arc::new(Self {
            identity: identity(file.as_fd())?,
            file,
            domains: Objects::default(),
            regions: Objects::default(),
            device_memory: Objects::default(),
        }))
    }

    /// Returns whether `descriptor` refers to this file, for example because it is a duplicate of
    /// `cmd_fd`.
    pub(super) fn is_file_of(&self, descriptor: BorrowedFd<'_>) -> bool {
        identity(descriptor).is_ok_and(|identity| identity == self.identity)
    }
}

impl AsFd for CommandFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn identity(descriptor: BorrowedFd<'_>) -> io::Result<Identity> {
    let status = rustix::fs::fstat(descriptor)?;
    Ok((status.st_dev, status.st_ino))
}

/// Table of the objects of one type, by handle: a number by which a program can import the object
/// into another context. Contexts that were imported from each other share this table.
pub(super) struct Objects<T>(Mutex<HashMap<u32, Arc<T>>>);

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Objects<T> {
    /// Adds the object `object` with the handle `handle` to this table, so that the program can
    /// import the object by this handle.
    pub(super) fn insert(&self, handle: u32, object: &Arc<T>) {
        self.0.lock().insert(handle, Arc::clone(object));
    }

    /// Returns the object with the handle `handle`. Fails if no object has this handle, or if the
    /// object was destroyed.
    pub(super) fn find(&self, handle: u32) -> Result<Arc<T>, Refusal> {
        self.0.lock().get(&handle).cloned().ok_or(Refusal::Absent)
    }

    /// Removes the object with the handle `handle`, which is being destroyed, so that it can no
    /// longer be imported.
    pub(super) fn remove(&self, handle: u32) {
        let removed = self.0.lock().remove(&handle);
        // The object is dropped after the lock is released.
        drop(removed);
    }
}
