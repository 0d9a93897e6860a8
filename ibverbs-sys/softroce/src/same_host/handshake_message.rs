#![forbid(unsafe_code)]
//! The messages of the handshake in which two processes agree to share memory.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::completion::WakeEventfds;
use crate::descriptor::{Descriptor, Opening};

/// Type of a handshake message. A successful handshake consists of `Hello`, `Welcome` and `Ready`
/// in this order. `Sorry` and `Later` are refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageType {
    /// First message: requests to share memory. The descriptors of the sender and of the memory
    /// accompany the message.
    Hello,
    /// Accepts a `Hello`. The descriptors of the sender accompany the message.
    Welcome,
    /// Last message: accepts a `Welcome`, after the sender has checked its access to the memory of
    /// the receiver.
    Ready,
    /// Refuses to share memory with the receiver.
    Sorry,
    /// Refuses a `Hello` temporarily, because the sender of `Later` already has a link (shared
    /// memory) to the peer or performs another handshake with it.
    Later,
}

/// A handshake message: its type, and the description of the process that sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HandshakeMessage {
    pub(super) word: MessageType,
    /// Address of the sender's [test word](super::process::word), which the receiver reads to check
    /// its access to the sender's memory.
    pub(super) probe: u64,
    /// ID of the thread of the sender's engine (background thread), by which the kernel finds the
    /// sender's memory.
    pub(super) thread: i32,
    /// Random offset in the sender's memory keys: a key contains an index of the sender's table of
    /// regions plus this number. The receiver needs the number to find the record of a key.
    pub(super) key_base: u32,
    /// UDP addresses of the sender.
    pub(super) addresses: Vec<SocketAddr>,
    /// First entries of the GID table of the sender's device.
    pub(super) gids: Vec<Ipv6Addr>,
}

/// First bytes of each handshake message. The last byte is the version of the formats of messages
/// and of all shared memory: processes with different versions share no memory.
const MAGIC: [u8; 8] = *b"sroce\0\0\x05";

/// Maximum number of file descriptors that accompany a handshake message. The descriptors are those
/// of three files of shared memory, of the eventfd that wakes the engine (background thread) of the
/// sending process, and of the eventfds for the completion channels of the same process.
const MAX_DESCRIPTORS: usize = 4 + WakeEventfds::COUNT;

/// Length of the buffer for a received handshake message in bytes. A message whose lists have
/// [`MAX_LIST`] entries fits into the buffer.
const MAX_LENGTH: usize = 2048;

/// Maximum number of addresses, and maximum number of GIDs, that a handshake message can list. With
/// these limits, each message fits into the receive buffer.
pub(crate) const MAX_LIST: usize = 16;

/// All types of handshake messages. The index of a type in this list encodes the type in a message.
const WORDS: [MessageType; 5] = [
    MessageType::Hello,
    MessageType::Welcome,
    MessageType::Ready,
    MessageType::Sorry,
    MessageType::Later,
];

impl HandshakeMessage {
    /// Creates a handshake message that contains only the type `word`. A process sends such a
    /// message to refuse or to finish a handshake. The message does not describe this process.
    pub(super) fn of_type(word: MessageType) -> Self {
        Self {
            word,
            probe: 0,
            thread: 0,
            key_base: 0,
            addresses: Vec::new(),
            gids: Vec::new(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let word = WORDS.iter().position(|&word| word == self.word);
        out.push(word.unwrap_or(WORDS.len()) as u8);
        out.extend(self.probe.to_ne_bytes());
        out.extend(self.thread.to_ne_bytes());
        out.extend(self.key_base.to_ne_bytes());
        out.push(self.addresses.len() as u8);
        for address in &self.addresses {
            let (kind, ip) = match address.ip() {
                IpAddr::V4(ip) => (4, ip.to_ipv6_mapped()),
                IpAddr::V6(ip) => (6, ip),
            };
            out.push(kind);
            out.extend(ip.octets());
            out.extend(address.port().to_ne_bytes());
        }
        out.push(self.gids.len() as u8);
        for gid in &self.gids {
            out.extend(gid.octets());
        }
        out
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        if take::<8>(bytes)? != MAGIC {
            return None;
        }
        let [word] = take(bytes)?;
        let mut handshake_message = Self {
            probe: u64::from_ne_bytes(take(bytes)?),
            thread: i32::from_ne_bytes(take(bytes)?),
            key_base: u32::from_ne_bytes(take(bytes)?),
            ..Self::of_type(*WORDS.get(usize::from(word))?)
        };
        for _ in 0..count(bytes)? {
            let [kind] = take(bytes)?;
            let ip = Ipv6Addr::from(take::<16>(bytes)?);
            let ip = match kind {
                4 => IpAddr::V4(ip.to_ipv4_mapped()?),
                6 => IpAddr::V6(ip),
                _ => return None,
            };
            let port = u16::from_ne_bytes(take(bytes)?);
            handshake_message.addresses.push(SocketAddr::new(ip, port));
        }
        for _ in 0..count(bytes)? {
            handshake_message
                .gids
                .push(Ipv6Addr::from(take::<16>(bytes)?));
        }
        bytes.is_empty().then_some(handshake_message)
    }

    /// Sends the handshake message on the Unix connection `socket`. `descriptors` are the files and
    /// eventfds that the receiver needs to share memory with this process. The list is empty for
    /// some types of messages. Does not block.
    pub(super) fn send(
        &self,
        socket: BorrowedFd<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = self.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(socket, &[io::IoSlice::new(&bytes)], &mut control, flags)?;
        if sent != bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    /// Receives a handshake message with its descriptors from the connection `socket`. Does not
    /// block: fails if no message has arrived.
    pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<(Self, Vec<Descriptor>)> {
        let mut bytes = [0; MAX_LENGTH];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut room = [io::IoSliceMut::new(&mut bytes)];
        // The capacity suffices for all descriptors, so nothing is allocated while `opening`
        // prevents forks.
        let mut descriptors = Vec::with_capacity(MAX_DESCRIPTORS);
        let opening = Opening::begin();
        let message = recvmsg(socket, &mut room, &mut control, flags)?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                descriptors.extend(rights.map(|file| opening.adopt(file)));
            }
        }
        drop(opening);
        if message.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let is_cut = message
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        let handshake_message = bytes.get(..message.bytes).and_then(Self::decode);
        match handshake_message {
            Some(handshake_message) if !is_cut => Ok((handshake_message, descriptors)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Removes the first `N` bytes from the slice `bytes`, and returns these bytes. Returns `None` if
/// `bytes` is shorter.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

/// Removes the first byte from `bytes`, and returns its value, the number of elements of a list.
/// Returns `None` if the number exceeds [`MAX_LIST`].
fn count(bytes: &mut &[u8]) -> Option<usize> {
    let [count] = take(bytes)?;
    Some(usize::from(count)).filter(|&count| count <= MAX_LIST)
}

/// Returns `address` in the form that handshake messages contain: without the interface index of a
/// link-local address.
pub(crate) fn without_interface(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Returns whether a handshake message can contain the lists `addresses` and `gids`: each may have
/// at most [`MAX_LIST`] entries.
pub(super) fn has_room(addresses: &[SocketAddr], gids: &[Ipv6Addr]) -> bool {
    addresses.len() <= MAX_LIST && gids.len() <= MAX_LIST
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;
    use std::os::fd::AsFd;

    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    fn handshake_message() -> HandshakeMessage {
        HandshakeMessage {
            word: MessageType::Welcome,
            probe: 0x7fff_1234_5678,
            thread: 4_194_303,
            key_base: 77,
            addresses: vec![
                "127.1.2.3:4791".parse().unwrap(),
                "[fd00::1]:4891".parse().unwrap(),
            ],
            gids: vec![
                "::ffff:127.1.2.3".parse().unwrap(),
                "fd00::1".parse().unwrap(),
            ],
        }
    }

    #[test]
    fn a_handshake_message_is_received_with_its_descriptors() {
        let (here, there) = pair();
        let (_, passed) = pair();
        handshake_message()
            .send(here.as_fd(), &[passed.as_fd(), passed.as_fd()])
            .unwrap();
        HandshakeMessage::of_type(MessageType::Sorry)
            .send(here.as_fd(), &[])
            .unwrap();
        let (came, descriptors) = HandshakeMessage::receive(there.as_fd()).unwrap();
        assert_eq!((came, descriptors.len()), (handshake_message(), 2));
        let (came, descriptors) = HandshakeMessage::receive(there.as_fd()).unwrap();
        assert_eq!((came.word, descriptors.len()), (MessageType::Sorry, 0));
        let nothing = HandshakeMessage::receive(there.as_fd()).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(here);
        let over = HandshakeMessage::receive(there.as_fd()).unwrap_err();
        assert_eq!(over.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn listed_addresses_are_received_unchanged() {
        let link_local = SocketAddrV6::new("fe80::1".parse().unwrap(), 4791, 0, 2);
        let sent = HandshakeMessage {
            addresses: vec![without_interface(link_local.into())],
            ..handshake_message()
        };
        assert_eq!(HandshakeMessage::decode(&sent.encode()), Some(sent));
    }

    #[test]
    fn a_full_handshake_message_is_not_too_long() {
        let full = HandshakeMessage {
            addresses: vec![handshake_message().addresses[0]; MAX_LIST],
            gids: vec![handshake_message().gids[0]; MAX_LIST],
            ..handshake_message()
        };
        assert!(has_room(&full.addresses, &full.gids));
        let bytes = full.encode();
        assert!(bytes.len() <= MAX_LENGTH);
        assert_eq!(HandshakeMessage::decode(&bytes), Some(full));
    }

    proptest! {
        #[test]
        fn invalid_bytes_are_no_handshake_message(bytes in proptest::collection::vec(any::<u8>(), 0..100), cut in 0..100_usize) {
            let _ = HandshakeMessage::decode(&bytes);
            let mut right = handshake_message().encode();
            right.truncate(cut % right.len());
            prop_assert_eq!(HandshakeMessage::decode(&right), None);
            let mut headed = MAGIC.to_vec();
            headed.extend(bytes);
            let _ = HandshakeMessage::decode(&headed);
        }
    }
}
