//! [`Settings`]: the limits of one end, which are sent to the peer in the first message.

/// Limits that one end of a connection sends and that the other end must observe. In a settings
/// frame, the metadata of the connection follows these limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Maximum length of a message in bytes that the sender of the settings accepts.
    pub(crate) message_limit: u32,
    /// Number of call slots of the server: the client must use lower call indices. 0 from a client.
    pub(crate) slots: u32,
    /// Initial window in items of a stream to this end. 0 from a server, which grants a window for
    /// each stream.
    pub(crate) window_items: u32,
    /// Initial window in bytes of a stream to this end. 0 from a server.
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

    /// Decodes the limits that the peer has sent from the start of a settings frame's body,
    /// `bytes`. Returns `None` if `bytes` is too short.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<{ Self::LEN }>()?;
        let number = |at| super::read_u32(bytes, at);
        Some(Self {
            message_limit: number(0),
            slots: number(4),
            window_items: number(8),
            window_bytes: number(12),
        })
    }
}
