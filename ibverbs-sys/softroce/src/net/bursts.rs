//! Selection of datagrams that are passed to the kernel together, as one burst (a message that the
//! kernel splits into datagrams, `UDP_SEGMENT`).

#![forbid(unsafe_code)]

use super::socket::{MAX_BURST_BYTES, MAX_BURST_DATAGRAMS};

/// Returns the number of datagrams at the beginning of a list that can be sent as one burst. A
/// burst is a message that the kernel splits into datagrams. `sizes` has the sizes of the datagrams
/// in bytes. All datagrams of a burst have the size of the first datagram, except that the last
/// datagram may be shorter. The result is at least 1 unless `sizes` is empty.
pub(super) fn burst_length(sizes: impl IntoIterator<Item = usize>) -> usize {
    let mut sizes = sizes.into_iter();
    let Some(segment) = sizes.next() else {
        return 0;
    };
    let (mut count, mut total) = (1, segment);
    // An empty datagram cannot be a part of a burst.
    for size in sizes.take_while(|&size| size > 0) {
        total += size;
        if size > segment || total > MAX_BURST_BYTES || count == MAX_BURST_DATAGRAMS {
            break;
        }
        count += 1;
        if size < segment {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packets_of_equal_length_form_a_burst_that_a_shorter_packet_ends() {
        assert_eq!(burst_length([]), 0);
        assert_eq!(burst_length([100]), 1);
        assert_eq!(burst_length([100, 100, 100]), 3);
        assert_eq!(burst_length([100, 100, 40, 40]), 3);
        assert_eq!(burst_length([100, 100, 101]), 2);
        assert_eq!(burst_length([100, 0, 100]), 1);
        assert_eq!(burst_length([0, 0]), 1);
    }

    #[test]
    fn the_longer_first_packet_of_a_write_forms_a_burst_of_two() {
        // RETH has 16 bytes; the last packet has immediate data.
        let write = [4128, 4112, 4112, 4112, 4112, 4116];
        assert_eq!(burst_length(write), 2);
        assert_eq!(burst_length(write[2..].iter().copied()), 3);
        assert_eq!(burst_length(write[5..].iter().copied()), 1);
    }

    #[test]
    fn a_burst_has_at_most_the_kernels_limits() {
        assert_eq!(burst_length([64; 200]), MAX_BURST_DATAGRAMS);
        assert_eq!(burst_length([4112; 64]), MAX_BURST_BYTES / 4112);
        assert_eq!(burst_length([MAX_BURST_BYTES, 1]), 1);
        assert_eq!(burst_length([MAX_BURST_BYTES + 10, 1]), 1);
    }

    proptest! {
        #[test]
        fn the_kernel_splits_a_burst_into_its_packets(
            sizes in proptest::collection::vec(prop_oneof![Just(1060_usize), Just(1044), 0_usize..2000], 1..200),
        ) {
            let mut rest = &sizes[..];
            while !rest.is_empty() {
                let count = burst_length(rest.iter().copied());
                prop_assert!(count >= 1 && count <= rest.len().min(MAX_BURST_DATAGRAMS));
                let (burst, others) = rest.split_at(count);
                let total: usize = burst.iter().sum();
                prop_assert!(count == 1 || total <= MAX_BURST_BYTES);
                // Splits the bytes as the system does: by the size of the first datagram.
                let bytes = vec![0_u8; total];
                let apart: Vec<usize> = match burst[0] {
                    0 => vec![0],
                    segment => bytes.chunks(segment).map(<[u8]>::len).collect(),
                };
                prop_assert_eq!(&apart[..], burst);
                rest = others;
            }
        }
    }
}
