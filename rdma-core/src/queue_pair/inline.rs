//! Inline data: data that posting copies into the request. Inline data needs no registration.

use crate::memory::Elements;

mod sealed {
    pub trait Sealed {}
}

/// Data that posting copies into a request: a slice, several slices that form one message, or
/// nothing (`()`). The trait is sealed.
///
/// [`SendQueue::post_inline`](super::SendQueue::post_inline) and similar methods take such data.
/// [`QueuePairBuilder::inline_data`](super::QueuePairBuilder::inline_data) sets the maximum length.
#[doc(alias = "ibv_data_buf")]
#[doc(alias = "ibv_wr_set_inline_data_list")]
pub trait InlineData: sealed::Sealed {
    /// Appends the address and length of each slice of the data to `elements`. Posting the request
    /// then copies the bytes of these slices.
    fn collect(&self, elements: &mut Elements<'_>);
}

impl sealed::Sealed for () {}

impl InlineData for () {
    #[inline]
    fn collect(&self, _elements: &mut Elements<'_>) {}
}

impl sealed::Sealed for &[u8] {}

impl InlineData for &[u8] {
    #[inline]
    fn collect(&self, elements: &mut Elements<'_>) {
        elements.push_bytes(self);
    }
}

impl<const N: usize> sealed::Sealed for &[u8; N] {}

impl<const N: usize> InlineData for &[u8; N] {
    #[inline]
    fn collect(&self, elements: &mut Elements<'_>) {
        elements.push_bytes(*self);
    }
}

impl sealed::Sealed for &[&[u8]] {}

impl InlineData for &[&[u8]] {
    #[inline]
    fn collect(&self, elements: &mut Elements<'_>) {
        self.iter().for_each(|piece| elements.push_bytes(piece));
    }
}

impl<const N: usize> sealed::Sealed for [&[u8]; N] {}

impl<const N: usize> InlineData for [&[u8]; N] {
    #[inline]
    fn collect(&self, elements: &mut Elements<'_>) {
        self.iter().for_each(|piece| elements.push_bytes(piece));
    }
}
