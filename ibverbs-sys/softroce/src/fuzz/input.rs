/// The unread bytes of a fuzzer's input, from which a fuzz target derives its actions. After the
/// last byte, reads return zeros.
#[derive(Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns whether all bytes of the input were consumed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns the next `length` bytes of the fuzz input. Returns fewer bytes if the
    /// input ends before.
    pub(crate) fn some(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.some(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes::<1>()[0]
    }

    pub(crate) fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    pub(crate) fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// Consumes one byte of the input, and returns the byte modulo `end`, which must be at most
    /// 256.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    /// Consumes one byte of the input, and returns the element of `values` that the byte selects.
    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}
