/// Returns a random number that another process cannot foresee: from the system's generator.
pub(crate) fn random_word() -> u32 {
    let mut bytes = [0; size_of::<u32>()];
    loop {
        // SAFETY: there is room for that many bytes.
        let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if count == bytes.len() as isize {
            return u32::from_ne_bytes(bytes);
        }
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            // A system before Linux 3.17, or a filter for system calls, refuses the call: the
            // standard library has other sources.
            use std::hash::{BuildHasher, RandomState};
            return RandomState::new().hash_one(0_u8) as u32;
        }
    }
}
