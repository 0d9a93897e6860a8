//! [`Metadata`]: named byte strings that travel with a request.

use std::fmt;
use std::sync::Arc;

/// Maximum length of encoded metadata in bytes.
pub(crate) const LIMIT: usize = 2048;

/// Named values that a caller sends with its requests, such as a trace ID or a tenant.
///
/// A name has at most 255 bytes, and all names and values together at most about 2 KiB.
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
    /// Pairs, each of the length of the name, the name, the length of the value, and the value;
    /// `None` without pairs.
    encoded: Option<Arc<[u8]>>,
}

impl Metadata {
    pub(crate) const EMPTY: Self = Self { encoded: None };

    /// Adds a value. A later value of the same name does not replace an earlier one.
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
        // The limit is below the maximum of the length's type.
        let value_len = value.len().min(usize::from(u16::MAX)) as u16;
        bytes.extend_from_slice(&value_len.to_be_bytes());
        bytes.extend_from_slice(value);
        assert!(bytes.len() <= LIMIT, "metadata has at most {LIMIT} bytes");
        Self {
            encoded: Some(bytes.into()),
        }
    }

    /// Adds a value like [`Self::with`]; `None` if the metadata would be too long.
    pub(crate) fn checked_with(&self, name: &str, value: &[u8]) -> Option<Self> {
        let len = self.encoded().len() + 3 + name.len() + value.len();
        (len <= LIMIT).then(|| self.clone().with(name, value))
    }

    /// Returns the first value of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find_map(|(known, value)| (known == name).then_some(value))
    }

    /// Returns the first value of this name, if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// Returns the names and values, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = self.encoded();
        std::iter::from_fn(move || {
            let (name, value, after) = pair(rest)?;
            rest = after;
            Some((name, value))
        })
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        self.encoded.as_deref().unwrap_or_default()
    }

    /// Takes over received metadata, which may hold any bytes; `None` if it is malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            (_, _, rest) = pair(rest)?;
        }
        (bytes.len() <= LIMIT).then(|| Self {
            encoded: Some(bytes.into()),
        })
    }
}

/// Splits a name and a value off the front of `bytes`; `None` if they are malformed.
fn pair(bytes: &[u8]) -> Option<(&str, &[u8], &[u8])> {
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
        fn anything_is_read_without_panicking(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
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
