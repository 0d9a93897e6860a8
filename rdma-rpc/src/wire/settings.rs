//! [`Settings`]: what an end accepts, told to the peer in its first message.

/// Limits of the end that sends this frame. Metadata of the connection follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Maximum length of a message in bytes.
    pub(crate) message_limit: u32,
    /// Number of call slots: the indices that the peer may use. 0 from a client.
    pub(crate) slots: u32,
    /// Number of items that a stream to this end may begin with. 0 from a server, which sends a
    /// window for each stream.
    pub(crate) window_items: u32,
    /// Number of bytes that a stream to this end may begin with.
    pub(crate) window_bytes: u32,
}

impl Settings {
    /// Length of the encoded settings in bytes.
    pub(crate) const LEN: usize = 16;

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let numbers = [
            self.message_limit,
            self.slots,
            self.window_items,
            self.window_bytes,
        ];
        for (room, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            room.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// Decodes settings, or returns `None` if `bytes` are too short.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<{ Self::LEN }>()?;
        let number = |at| super::long(bytes, at);
        Some(Self {
            message_limit: number(0),
            slots: number(4),
            window_items: number(8),
            window_bytes: number(12),
        })
    }
}
