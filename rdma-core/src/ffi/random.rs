/// Returns a random number that cannot be predicted, from the operating system's generator.
pub(crate) fn random_word() -> u32 {
    let mut bytes = [0; size_of::<u32>()];
    loop {
        // SAFETY: `bytes` has room for `bytes.len()` bytes.
        let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if count == bytes.len() as isize {
            return u32::from_ne_bytes(bytes);
        }
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            // `getrandom` fails on systems before Linux 3.17 or if a system call filter forbids it.
            // The standard library then uses other sources of randomness.
            use std::hash::{BuildHasher, RandomState};
            return RandomState::new().hash_one(0_u8) as u32;
        }
    }
}
