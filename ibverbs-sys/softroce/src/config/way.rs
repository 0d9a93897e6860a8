/// Path that messages of a queue pair take to the peer: UDP packets, a copy within the process, or
/// memory that two processes share. The variable `SOFTROCE_PATH` can restrict the device to one
/// path, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// As packets in UDP datagrams.
    Udp,
    /// Within the process: the sender's thread copies the bytes to the peer's memory.
    Direct,
    /// Between processes of the host: through shared memory, or by copying from or to the memory of
    /// the peer process.
    Shared,
}

impl Way {
    /// Returns whether messages may take this path. `choice` is the only path that the
    /// configuration allows, or `None` if it allows all paths. Packets ([`Way::Udp`]) are allowed
    /// in any case.
    pub(crate) fn is_allowed(self, choice: Option<Self>) -> bool {
        self == Self::Udp || choice.is_none_or(|chosen| chosen == self)
    }
}

#[cfg(test)]
mod tests {
    use super::Way;

    #[test]
    fn a_configured_path_leaves_only_that_path_and_packets() {
        use Way::{Direct, Shared, Udp};
        for way in [Udp, Direct, Shared] {
            assert!(way.is_allowed(None));
            assert!(way.is_allowed(Some(way)));
            assert_eq!(way.is_allowed(Some(Udp)), way == Udp);
        }
        assert!(!Shared.is_allowed(Some(Direct)));
    }
}
