//! A packet filter in the kernel that drops packets of other programs of this host before they
//! reach a socket. Dropped packets take neither space in the socket's buffer nor time of this
//! process.
//!
//! The filter is classic BPF, which needs no privileges and which Linux translates to machine code.
//! In the filter, the UDP header is at offset 0.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::AsRawFd;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD,
    BPF_LDX, BPF_MEM, BPF_MISC, BPF_MOD, BPF_RET, BPF_ST, BPF_SUB, BPF_TAX, BPF_TXA, BPF_W, BPF_X,
    sock_filter, sock_fprog,
};

use crate::address::{PORT_SLOTS, PORT_STRIDE, unique_local};
use crate::descriptor::Descriptor;
use crate::net::tunnel;
use crate::wire::{Opcode, Operation, Transport};

/// Opcode of a datagram (UD send) without immediate data. The packet filter passes packets with
/// this opcode from every device, because datagrams need no connection.
const DATAGRAM: Opcode = Opcode::new(Transport::UnreliableDatagram, Operation::SendOnly);

/// Offset at which the load instructions of a packet filter (BPF program) find the IPv4 header:
/// `SKF_NET_OFF` of linux/filter.h. At offset 0, they find the UDP header.
const NETWORK_HEADER: u32 = -0x10_0000_i32 as u32;
/// Offset at which a packet filter (BPF program) loads the source IPv4 address of a datagram.
const SOURCE_ADDRESS: u32 = NETWORK_HEADER + 12;
/// Offset at which a packet filter (BPF program) loads the source UDP port of a datagram. Offset 0
/// is the beginning of the UDP header.
const SOURCE_PORT: u32 = 0;
/// Offset of the UDP payload from the UDP header, at which a packet filter (BPF program) loads the
/// payload. The payload begins with a BTH (base transport header), or with the IPv6 header of a
/// tunnelled packet.
const PAYLOAD: u32 = 8;
/// Offset of the source GID of a tunnelled packet from the UDP header. The GID is the source
/// address in the IPv6 header with which the UDP payload begins.
const TUNNEL_SOURCE_GID: u32 = PAYLOAD + 8;

/// Maximum number of peers in a filter's list. More peers would slow down all packets: each peer
/// costs one comparison for every packet.
pub(super) const MAX_PEERS: usize = 128;

/// A packet filter (BPF program) for the socket of an IPv4 address, to which instructions are
/// added.
///
/// The filter passes all datagrams of senders outside 127/8. A datagram from 127/8 passes if its
/// source port is one of the devices' ports, or if its tunnel header contains its sender's address
/// and port. If there is a list of peers, packets of connections pass only if one of `peers` sent
/// them.
struct Filter {
    code: Vec<sock_filter>,
}

impl Filter {
    fn new(base: u16, peers: Option<&[SocketAddrV4]>) -> Self {
        let mut filter = Self { code: Vec::new() };
        filter.load(BPF_B, SOURCE_ADDRESS);
        let local = filter.jump_if(BPF_JEQ, 127);
        filter.finish(u32::MAX);
        filter.set_target(local);
        filter.load_opcode_of_device(base);
        // The comparison ignores the lowest bit of the opcode, which UD packets with immediate data
        // have set.
        filter.calculate(BPF_AND, !1);
        let connected = filter.jump_unless(BPF_JEQ, DATAGRAM.to_byte().into());
        filter.finish(u32::MAX);
        filter.set_target(connected);
        match peers {
            Some(peers) => filter.pass_if_from(peers),
            None => filter.finish(u32::MAX),
        }
        filter
    }

    /// Adds instructions to the packet filter that drop each packet that was not sent by a softroce
    /// device. For any other packet, the instructions load the opcode into the accumulator (the
    /// register that the filter compares). `base` is the first port of the devices' port range.
    fn load_opcode_of_device(&mut self, base: u16) {
        let mut prefix = [0; 6];
        let example = unique_local(SocketAddrV4::new([127, 0, 0, 1].into(), 1));
        prefix.copy_from_slice(&example.octets()[..6]);
        let [a, b, c, d, e, f] = prefix;
        // These instructions make the same checks as `tunnel::is_tunnelled`.
        self.load(BPF_B, PAYLOAD);
        self.calculate(BPF_AND, 0xf0);
        let no_version = self.jump_unless(BPF_JEQ, 0x60);
        self.load(BPF_W, TUNNEL_SOURCE_GID);
        let no_prefix = self.jump_unless(BPF_JEQ, u32::from_be_bytes([a, b, c, d]));
        self.load(BPF_H, TUNNEL_SOURCE_GID + 4);
        let no_end = self.jump_unless(BPF_JEQ, u32::from_be_bytes([0, 0, e, f]));
        // The layout of the address is that of `address::unique_local`.
        self.load(BPF_H, SOURCE_PORT);
        self.store();
        self.load(BPF_H, TUNNEL_SOURCE_GID + 6);
        let other_port = self.unless_stored();
        self.load(BPF_W, SOURCE_ADDRESS);
        self.store();
        self.load(BPF_W, TUNNEL_SOURCE_GID + 12);
        let other_address = self.unless_stored();
        self.load(BPF_B, PAYLOAD + tunnel::OVERHEAD as u32);
        let tunnelled = self.jump();

        for plain in [no_version, no_prefix, no_end] {
            self.set_target(plain);
        }
        self.load(BPF_H, SOURCE_PORT);
        self.calculate(BPF_SUB, base.into());
        // If the port is below that of slot 0, the subtraction gives a large number.
        let above = self.jump_if(BPF_JGE, u32::from(PORT_SLOTS) * u32::from(PORT_STRIDE));
        self.calculate(BPF_MOD, PORT_STRIDE.into());
        let between = self.jump_unless(BPF_JEQ, 0);
        self.load(BPF_B, PAYLOAD);
        let plain = self.jump();

        for stranger in [other_port, other_address, above, between] {
            self.set_target(stranger);
        }
        self.finish(0);
        self.set_target(tunnelled);
        self.set_target(plain);
    }

    /// Adds the last instructions of the packet filter. The instructions pass packets that one of
    /// `peers` has sent, and drop all others.
    fn pass_if_from(&mut self, peers: &[SocketAddrV4]) {
        self.load(BPF_H, SOURCE_PORT);
        self.push(BPF_MISC | BPF_TAX, 0);
        self.load(BPF_W, SOURCE_ADDRESS);
        self.store();
        for peer in peers {
            let other_address = self.jump_unless(BPF_JEQ, u32::from(*peer.ip()));
            self.push(BPF_MISC | BPF_TXA, 0);
            let other_port = self.jump_unless(BPF_JEQ, peer.port().into());
            self.finish(u32::MAX);
            self.set_target(other_port);
            self.push(BPF_LD | BPF_MEM, 0);
            self.set_target(other_address);
        }
        self.finish(0);
    }

    fn push(&mut self, code: u32, k: u32) -> usize {
        self.code.push(sock_filter {
            code: code as u16,
            jt: 0,
            jf: 0,
            k,
        });
        self.code.len() - 1
    }

    /// Adds an instruction that loads a part of the datagram into the accumulator of the packet
    /// filter. The part begins at `offset`, and is a word, a half word or a byte (`size`). The
    /// instruction drops datagrams that are too short.
    fn load(&mut self, size: u32, offset: u32) {
        self.push(BPF_LD | size | BPF_ABS, offset);
    }

    fn calculate(&mut self, operation: u32, operand: u32) {
        self.push(BPF_ALU | operation | BPF_K, operand);
    }

    /// Adds a conditional jump to the packet filter (BPF program). The jump is taken if the
    /// comparison `comparison` of the loaded value with `operand` is true. The caller must later
    /// pass the returned jump to [`set_target`](Self::set_target).
    fn jump_if(&mut self, comparison: u32, operand: u32) -> Jump {
        Jump {
            from: self.push(BPF_JMP | comparison | BPF_K, operand),
            on: Some(true),
        }
    }

    /// Adds a conditional jump to the packet filter (BPF program). The jump is taken if the
    /// comparison `comparison` of the loaded value with `operand` is false. The caller must later
    /// pass the returned jump to [`set_target`](Self::set_target).
    fn jump_unless(&mut self, comparison: u32, operand: u32) -> Jump {
        Jump {
            on: Some(false),
            ..self.jump_if(comparison, operand)
        }
    }

    /// Adds an unconditional jump instruction to the packet filter.
    /// [`set_target`](Self::set_target) sets the jump's target.
    fn jump(&mut self) -> Jump {
        Jump {
            from: self.push(BPF_JMP | BPF_JA, 0),
            on: None,
        }
    }

    /// Adds an instruction to the packet filter (BPF program) that stores the loaded value (the
    /// accumulator). [`unless_stored`](Self::unless_stored) can then compare a later value with the
    /// stored value.
    fn store(&mut self) {
        self.push(BPF_ST, 0);
    }

    /// Adds a conditional jump to the packet filter (BPF program). The jump is taken if the last
    /// loaded value differs from the value that the instruction of [`store`](Self::store) saved.
    /// The caller must set the target of the returned jump by [`set_target`](Self::set_target).
    fn unless_stored(&mut self) -> Jump {
        self.push(BPF_LDX | BPF_MEM, 0);
        Jump {
            from: self.push(BPF_JMP | BPF_JEQ | BPF_X, 0),
            on: Some(false),
        }
    }

    /// Makes the instruction `jump` of the packet filter (BPF program) lead to the instruction that
    /// is added next.
    fn set_target(&mut self, jump: Jump) {
        let distance = self.code.len() - jump.from - 1;
        let from = &mut self.code[jump.from];
        let conditional =
            || u8::try_from(distance).expect("a condition jumps over 255 instructions at most");
        match jump.on {
            Some(true) => from.jt = conditional(),
            Some(false) => from.jf = conditional(),
            None => from.k = distance as u32,
        }
    }

    /// Adds an instruction that ends the packet filter. The instruction passes the first `bytes`
    /// bytes of the datagram, or drops the datagram if `bytes` is 0.
    fn finish(&mut self, bytes: u32) {
        self.push(BPF_RET | BPF_K, bytes);
    }
}

/// A jump instruction in a packet filter (BPF program). The target of the jump is not set yet.
#[derive(Clone, Copy)]
struct Jump {
    from: usize,
    /// Result of the comparison for which the jump is taken: `true` or `false`. `None` for an
    /// unconditional jump.
    on: Option<bool>,
}

/// Attaches a [`Filter`] to the socket of an IPv4 address, so that the kernel drops unexpected
/// packets from programs of this host. `base` is the first UDP port of the devices. `peers` are the
/// devices from which packets of connections are accepted; `None` accepts them from every device.
pub(super) fn attach(
    socket: &Descriptor,
    base: u16,
    peers: Option<&[SocketAddrV4]>,
) -> io::Result<()> {
    let mut filter = Filter::new(base, peers);
    let program = sock_fprog {
        len: filter.code.len() as u16,
        filter: filter.code.as_mut_ptr(),
    };
    // SAFETY: the value of the option is a program with its number of instructions, which are valid
    // for the call. The kernel copies and checks them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<sock_fprog>() as _,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Detaches the packet filter from the UDP socket `socket`. The kernel then passes all packets to
/// the socket.
pub(super) fn detach(socket: &Descriptor) -> io::Result<()> {
    super::set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
}
