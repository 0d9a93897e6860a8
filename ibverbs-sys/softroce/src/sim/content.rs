use super::random::splitmix;

/// Returns eight bytes of the test message with the ID `id`: the bytes from `8 * index` on. All
/// bytes are derived from the ID and from their position. So a receiver can check every byte, and
/// detects bytes of another message or position.
fn word(id: u64, index: u64) -> [u8; 8] {
    let mut state = (id.wrapping_add(1) << 24) ^ index;
    splitmix(&mut state).to_le_bytes()
}

/// Fills `out` with the first bytes of the message with the ID `id`, which are derived from the ID.
pub(crate) fn fill(id: u64, out: &mut [u8]) {
    for (index, chunk) in out.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(id, index as u64)[..chunk.len()]);
    }
}

/// Returns the first `length` bytes of the test message with the ID `id`. The bytes are derived
/// from the ID, so that a receiver can check them.
pub(crate) fn message(id: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(id, &mut bytes);
    bytes
}

/// Returns the index of the first byte in which `found` and `expected` differ, or `None` if the two
/// are equal.
pub(crate) fn difference(found: &[u8], expected: &[u8]) -> Option<usize> {
    if found == expected {
        return None;
    }
    let place = found.iter().zip(expected).position(|(a, b)| a != b);
    Some(place.unwrap_or(found.len().min(expected.len())))
}

#[cfg(test)]
mod tests {
    use super::{difference, message};

    #[test]
    fn messages_differ_and_the_first_difference_is_found() {
        assert_eq!(message(5, 100), message(5, 200)[..100]);
        assert_eq!(difference(&message(5, 64), &message(6, 64)), Some(0));
        let mut other = message(5, 64);
        other[33] ^= 1;
        assert_eq!(difference(&message(5, 64), &other), Some(33));
        assert_eq!(difference(&other[..9], &message(5, 64)), Some(9));
        assert_eq!(difference(&message(5, 64), &message(5, 64)), None);
    }
}
