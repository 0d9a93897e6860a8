//! Buckets: groups of entries of a hash table. Each bucket is one published value.
//!
//! An entry consists of the length of the key and the length of the value, two bytes each, followed
//! by the key and the value.

/// Number of buckets of the hash table. More buckets hold more keys, but each client gets the
/// tokens of all buckets when it connects.
pub(crate) const BUCKETS: usize = 256;
/// Maximum length of all entries of a bucket together, in bytes. Short, because a client reads a
/// whole bucket to find a value.
pub(crate) const CAPACITY: usize = 240;

/// Returns the index of the bucket that contains a key.
pub(crate) fn bucket_of(key: &[u8]) -> usize {
    crc32fast::hash(key) as usize % BUCKETS
}

/// Returns the value of a key in the encoded `bucket`, if there is one.
pub(crate) fn find<'b>(bucket: &'b [u8], key: &[u8]) -> Option<&'b [u8]> {
    entries(bucket)
        .find(|(found, _)| *found == key)
        .map(|(_, value)| value)
}

/// Returns a copy of the encoded `bucket` in which `key` has the value `value`, or `None` if the
/// copy would exceed [`CAPACITY`].
pub(crate) fn with_entry(bucket: &[u8], key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
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

/// Returns the keys and values of an encoded bucket.
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
