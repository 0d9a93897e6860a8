//! The types of completed work requests.

use ibverbs_sys::ibv_wc_opcode as raw;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:pat,)*) => {
        /// The type of a work request that completed successfully (`ibv_wc_opcode`).
        #[doc(alias = "ibv_wc_opcode")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum WorkOpcode {
            $($(#[$doc])* $name,)*
            /// A value that this crate does not know.
            Unknown(u32),
        }

        impl WorkOpcode {
            #[inline]
            pub(crate) fn from_raw(opcode: raw) -> Self {
                match opcode {
                    $($value => Self::$name,)*
                    raw(other) => Self::Unknown(other),
                }
            }
        }
    };
}

opcodes! {
    /// A send, with or without immediate data or invalidation.
    Send = raw::IBV_WC_SEND,
    /// An RDMA write, with or without immediate data.
    Write = raw::IBV_WC_RDMA_WRITE,
    /// An RDMA read.
    Read = raw::IBV_WC_RDMA_READ,
    /// A compare-and-swap.
    CompareAndSwap = raw::IBV_WC_COMP_SWAP,
    /// A fetch-and-add.
    FetchAndAdd = raw::IBV_WC_FETCH_ADD,
    /// The binding of a memory window.
    BindWindow = raw::IBV_WC_BIND_MW,
    /// The invalidation of a remote key of this process, for example of a memory window.
    LocalInvalidate = raw::IBV_WC_LOCAL_INV,
    /// A send on a raw packet queue pair. The device splits the data of this send into TCP
    /// segments.
    SegmentationOffload = raw::IBV_WC_TSO,
    /// A flush of earlier writes (`IBV_WC_FLUSH`, in headers that are newer than the bindings).
    Flush = raw(8),
    /// An atomic RDMA write of eight bytes.
    AtomicWrite = raw::IBV_WC_ATOMIC_WRITE,
    /// A receive that a send of the peer consumed.
    Receive = raw::IBV_WC_RECV,
    /// A receive that an RDMA write with immediate data of the peer consumed.
    ReceiveWriteImmediate = raw::IBV_WC_RECV_RDMA_WITH_IMM,
    /// The addition of a tagged receive to a tag-matching list.
    TagAdd = raw::IBV_WC_TM_ADD,
    /// The removal of a tagged receive from a tag-matching list.
    TagRemove = raw::IBV_WC_TM_DEL,
    /// The synchronisation of a tag-matching list between the program and the device.
    TagSynchronize = raw::IBV_WC_TM_SYNC,
    /// A receive that received a message with a matching tag.
    TagReceive = raw::IBV_WC_TM_RECV,
    /// A receive that received a message without a tag.
    TagNone = raw::IBV_WC_TM_NO_TAG,
}

impl WorkOpcode {
    /// Returns whether the completed request is a receive or an operation on a tag-matching list of
    /// a receive queue. The opcodes of these requests contain the bit `IBV_WC_RECV`.
    #[inline]
    pub fn is_receive(self) -> bool {
        match self {
            Self::Receive
            | Self::ReceiveWriteImmediate
            | Self::TagAdd
            | Self::TagRemove
            | Self::TagSynchronize
            | Self::TagReceive
            | Self::TagNone => true,
            Self::Unknown(value) => value & raw::IBV_WC_RECV.0 != 0,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_kept() {
        assert_eq!(WorkOpcode::from_raw(raw(77)), WorkOpcode::Unknown(77));
        assert_eq!(WorkOpcode::from_raw(raw(0)), WorkOpcode::Send);
        assert_eq!(
            WorkOpcode::from_raw(raw(129)),
            WorkOpcode::ReceiveWriteImmediate
        );
    }

    #[test]
    fn receives_are_known_by_their_bit() {
        for value in 0..256 {
            let opcode = WorkOpcode::from_raw(raw(value));
            assert_eq!(opcode.is_receive(), value & 128 != 0, "{opcode:?}");
        }
    }
}
