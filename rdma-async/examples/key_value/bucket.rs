//! Buckets: the entries of a hash table that share a published value.
//!
//! An entry is the length of the key, the length of the value, two bytes each, the key and the
//! value.

/// Number of buckets.
pub(crate) const BUCKETS: usize = 256;
/// Maximum number of bytes of the entries of a bucket. A reader reads such a bucket at once.
pub(crate) const CAPACITY: usize = 240;

/// Returns the number of the bucket of a key.
pub(crate) fn bucket_of(key: &[u8]) -> usize {
    crc32fast::hash(key) as usize % BUCKETS
}

/// Returns the value of a key in the bytes of a bucket.
pub(crate) fn find<'b>(bucket: &'b [u8], key: &[u8]) -> Option<&'b [u8]> {
    entries(bucket)
        .find(|(found, _)| *found == key)
        .map(|(_, value)| value)
}

/// Returns the bytes of a bucket in which `key` has the value `value`, or `None` if they are too
/// long.
pub(crate) fn with(bucket: &[u8], key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let mut changed = Vec::new();
    let others = entries(bucket).filter(|(other, _)| *other != key);
    for (key, value) in others.chain([(key, value)]) {
        changed.extend_from_slice(&u16::try_from(key.len()).ok()?.to_be_bytes());
        changed.extend_from_slice(&u16::try_from(value.len()).ok()?.to_be_bytes());
        changed.extend_from_slice(key);
        changed.extend_from_slice(value);
    }
    (changed.len() <= CAPACITY).then_some(changed)
}

fn entries(mut bucket: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (lengths, rest) = bucket.split_first_chunk::<4>()?;
        let length = |at: usize| usize::from(u16::from_be_bytes([lengths[at], lengths[at + 1]]));
        let (key, rest) = rest.split_at_checked(length(0))?;
        let (value, rest) = rest.split_at_checked(length(2))?;
        bucket = rest;
        Some((key, value))
    })
}
