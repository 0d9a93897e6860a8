/// Path from a queue pair to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// As packets over UDP.
    Udp,
    /// Directly, within the process.
    Direct,
    /// Through shared memory, between processes of the host.
    Shared,
}

impl Way {
    /// Returns whether a configured choice allows this path. Packets are always allowed.
    pub(crate) fn is_allowed(self, choice: Option<Self>) -> bool {
        self == Self::Udp || choice.is_none_or(|chosen| chosen == self)
    }
}

#[cfg(test)]
mod tests {
    use super::Way;

    #[test]
    fn a_choice_leaves_one_way_and_packets() {
        use Way::{Direct, Shared, Udp};
        for way in [Udp, Direct, Shared] {
            assert!(way.is_allowed(None));
            assert!(way.is_allowed(Some(way)));
            assert_eq!(way.is_allowed(Some(Udp)), way == Udp);
        }
        assert!(!Shared.is_allowed(Some(Direct)));
    }
}
