//! [`Metadata`]: named byte strings that are sent with a request, or at the beginning of a
//! connection, for example as a client's credentials.

use std::fmt;
use std::sync::Arc;

/// Maximum length of encoded metadata in bytes. Less than half of the maximum length of a message
/// with several frames ([`MAX_BATCH_LEN`](crate::wire::MAX_BATCH_LEN)), so that requests with
/// metadata can still share messages.
pub(crate) const MAX_LEN: usize = 2048;

/// Named values that a caller sends with its requests, such as a trace ID or the name of a tenant.
///
/// A name has at most 255 bytes. All names and values together have at most about 2 KiB.
///
/// ```
/// use rdma_rpc::Metadata;
///
/// let metadata = Metadata::default().with("tenant", "blue").with("trace", [1, 2, 3]);
/// assert_eq!(metadata.get("tenant"), Some(&b"blue"[..]));
/// assert_eq!(metadata.get_str("tenant"), Some("blue"));
/// assert_eq!(metadata.iter().count(), 2);
/// ```
#[derive(Clone, Default)]
pub struct Metadata {
    /// Encoded pairs: length of the name, name, length of the value, value. `None` if there are no
    /// pairs.
    encoded: Option<Arc<[u8]>>,
}

impl Metadata {
    /// Empty metadata, without names and values.
    pub(crate) const EMPTY: Self = Self { encoded: None };

    /// Adds a value with a name to this metadata, and returns the metadata. Names need not be
    /// unique: an earlier value with the same name is not replaced.
    ///
    /// # Panics
    ///
    /// If the name has more than 255 bytes, or the metadata more than 2 KiB.
    #[must_use]
    pub fn with(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        let name_len = u8::try_from(name.len()).expect("a name has at most 255 bytes");
        let mut bytes = self.encoded().to_vec();
        bytes.push(name_len);
        bytes.extend_from_slice(name.as_bytes());
        // The assertion below refuses longer values.
        let value_len = value.len().min(usize::from(u16::MAX)) as u16;
        bytes.extend_from_slice(&value_len.to_be_bytes());
        bytes.extend_from_slice(value);
        assert!(
            bytes.len() <= MAX_LEN,
            "metadata has at most {MAX_LEN} bytes"
        );
        Self {
            encoded: Some(bytes.into()),
        }
    }

    /// Returns a copy of this metadata with an additional value, like [`Self::with`]. Returns
    /// `None` instead of panicking if the metadata would exceed [`MAX_LEN`].
    pub(crate) fn try_with(&self, name: &str, value: &[u8]) -> Option<Self> {
        let len = self.encoded().len() + 3 + name.len() + value.len();
        (len <= MAX_LEN).then(|| self.clone().with(name, value))
    }

    /// Returns the first value with this name; `None` if no value has this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find_map(|(known, value)| (known == name).then_some(value))
    }

    /// Returns the first value with this name as text; `None` if no value has this name or the
    /// value is not UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// Returns the names and values in this metadata, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = self.encoded();
        std::iter::from_fn(move || {
            let (name, value, after) = split_pair(rest)?;
            rest = after;
            Some((name, value))
        })
    }

    /// Returns the names and values of this metadata in the encoding in which a frame contains
    /// them.
    pub(crate) fn encoded(&self) -> &[u8] {
        self.encoded.as_deref().unwrap_or_default()
    }

    /// Decodes metadata from the received `bytes`, which may be arbitrary. Returns `None` if the
    /// bytes are not encoded metadata, or are longer than [`MAX_LEN`].
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            (_, _, rest) = split_pair(rest)?;
        }
        (bytes.len() <= MAX_LEN).then(|| Self {
            encoded: Some(bytes.into()),
        })
    }
}

/// Splits the first name and value off `bytes`, encoded metadata that may come from the peer.
/// Returns the name, the value and the remaining bytes. Returns `None` if `bytes` is empty or does
/// not begin with a valid name and value.
fn split_pair(bytes: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(len.into())?;
    let (&len, rest) = rest.split_first_chunk::<2>()?;
    let (value, rest) = rest.split_at_checked(u16::from_be_bytes(len).into())?;
    Some((std::str::from_utf8(name).ok()?, value, rest))
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_without_panicking(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(metadata) = Metadata::decode(&bytes) {
                metadata.iter().for_each(drop);
            }
        }

        #[test]
        fn values_round_trip(name in "[a-z]{0,20}", value in prop::collection::vec(any::<u8>(), 0..64)) {
            let sent = Metadata::default().with(&name, &value).with("last", "x");
            let received = Metadata::decode(sent.encoded()).unwrap();
            prop_assert_eq!(received.get(&name), Some(&value[..]));
            prop_assert_eq!(received.get_str("last"), Some("x"));
        }
    }
}
