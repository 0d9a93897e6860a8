//! A packet filter in the kernel that drops packets of other programs of this host before they reach a socket. Dropped
//! packets take neither space in the socket's buffer nor time of this process.
//!
//! The filter is classic BPF, which needs no privileges and which Linux translates to machine code. In the filter, the UDP
//! header is at offset 0.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::AsRawFd;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD,
    BPF_LDX, BPF_MEM, BPF_MISC, BPF_MOD, BPF_RET, BPF_ST, BPF_SUB, BPF_TAX, BPF_TXA, BPF_W, BPF_X,
    sock_filter, sock_fprog,
};

use crate::address::{SLOTS, STRIDE, unique_local};
use crate::descriptor::Descriptor;
use crate::net::tunnel;
use crate::wire::{Opcode, Operation, Transport};

/// Opcode of a UD packet without immediate data, which the filter compares.
const DATAGRAM: Opcode = Opcode::new(Transport::UnreliableDatagram, Operation::SendOnly);

/// Offset of the network header in a filter's address space (linux/filter.h).
const NETWORK: u32 = -0x10_0000_i32 as u32;
/// Offset of the sender's address in an IPv4 header, in the filter's address space.
const SENDER: u32 = NETWORK + 12;
/// Offset of the sender's port in the UDP header, in the filter's address space.
const PORT: u32 = 0;
/// Offset of the UDP payload (a BTH, or the headers of a tunnel) in the filter's address space.
const PAYLOAD: u32 = 8;
/// Offset of the sender's GID in the IPv6 header of a tunnel, in the filter's address space.
const GID: u32 = PAYLOAD + 8;

/// Maximum number of peers in a filter's list. Each peer costs one comparison for every packet.
pub(super) const MAX_PEERS: usize = 128;

/// The code of a packet filter for the socket of an IPv4 address.
///
/// Drops datagrams of senders in 127/8, unless
/// - the sender is a device: the UDP source port is a port of devices, or the header of a tunnel contains the port and
///   the address from which the datagram came, and
/// - the packet is a UD packet, or the sender is one of `peers`. If there is no list of peers, every device may send
///   packets of connections.
///
/// The receiver checks the packets that the filter passes.
struct Filter {
    code: Vec<sock_filter>,
}

impl Filter {
    fn new(base: u16, peers: Option<&[SocketAddrV4]>) -> Self {
        let mut filter = Self { code: Vec::new() };
        filter.load(BPF_B, SENDER);
        let local = filter.when(BPF_JEQ, 127);
        filter.give(u32::MAX);
        filter.land(local);
        filter.load_opcode_of_device(base);
        // The comparison ignores the lowest bit of the opcode, which UD packets with immediate data have set.
        filter.calculate(BPF_AND, !1);
        let connected = filter.unless(BPF_JEQ, DATAGRAM.to_byte().into());
        filter.give(u32::MAX);
        filter.land(connected);
        match peers {
            Some(peers) => filter.give_of(peers),
            None => filter.give(u32::MAX),
        }
        filter
    }

    /// Adds code that loads the opcode of a packet that a device has sent into the accumulator. The code drops packets that
    /// no device has sent.
    fn load_opcode_of_device(&mut self, base: u16) {
        let mut prefix = [0; 6];
        let example = unique_local(SocketAddrV4::new([127, 0, 0, 1].into(), 1));
        prefix.copy_from_slice(&example.octets()[..6]);
        let [a, b, c, d, e, f] = prefix;
        // These instructions make the same checks as `tunnel::is_tunnelled`.
        self.load(BPF_B, PAYLOAD);
        self.calculate(BPF_AND, 0xf0);
        let no_version = self.unless(BPF_JEQ, 0x60);
        self.load(BPF_W, GID);
        let no_prefix = self.unless(BPF_JEQ, u32::from_be_bytes([a, b, c, d]));
        self.load(BPF_H, GID + 4);
        let no_end = self.unless(BPF_JEQ, u32::from_be_bytes([0, 0, e, f]));
        // The layout of the address is that of `address::unique_local`.
        self.load(BPF_H, PORT);
        self.keep();
        self.load(BPF_H, GID + 6);
        let other_port = self.unless_kept();
        self.load(BPF_W, SENDER);
        self.keep();
        self.load(BPF_W, GID + 12);
        let other_address = self.unless_kept();
        self.load(BPF_B, PAYLOAD + tunnel::OVERHEAD as u32);
        let tunnelled = self.always();

        for plain in [no_version, no_prefix, no_end] {
            self.land(plain);
        }
        self.load(BPF_H, PORT);
        self.calculate(BPF_SUB, base.into());
        // If the port is below that of slot 0, the subtraction gives a large number.
        let above = self.when(BPF_JGE, u32::from(SLOTS) * u32::from(STRIDE));
        self.calculate(BPF_MOD, STRIDE.into());
        let between = self.unless(BPF_JEQ, 0);
        self.load(BPF_B, PAYLOAD);
        let plain = self.always();

        for stranger in [other_port, other_address, above, between] {
            self.land(stranger);
        }
        self.give(0);
        self.land(tunnelled);
        self.land(plain);
    }

    /// Adds the last instructions of the filter: they pass packets that `peers` have sent, and drop all others.
    fn give_of(&mut self, peers: &[SocketAddrV4]) {
        self.load(BPF_H, PORT);
        self.push(BPF_MISC | BPF_TAX, 0);
        self.load(BPF_W, SENDER);
        self.keep();
        for peer in peers {
            let other_address = self.unless(BPF_JEQ, u32::from(*peer.ip()));
            self.push(BPF_MISC | BPF_TXA, 0);
            let other_port = self.unless(BPF_JEQ, peer.port().into());
            self.give(u32::MAX);
            self.land(other_port);
            self.push(BPF_LD | BPF_MEM, 0);
            self.land(other_address);
        }
        self.give(0);
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

    /// Adds an instruction that loads a word, half word or byte of the datagram into the accumulator. It drops datagrams
    /// that are too short.
    fn load(&mut self, size: u32, offset: u32) {
        self.push(BPF_LD | size | BPF_ABS, offset);
    }

    fn calculate(&mut self, operation: u32, operand: u32) {
        self.push(BPF_ALU | operation | BPF_K, operand);
    }

    /// Adds a jump that is taken if the comparison of the accumulator with `operand` is true. [`land`](Self::land) sets its
    /// target.
    fn when(&mut self, comparison: u32, operand: u32) -> Jump {
        Jump {
            from: self.push(BPF_JMP | comparison | BPF_K, operand),
            on: Some(true),
        }
    }

    /// Adds a jump that is taken if the comparison of the accumulator with `operand` is false. [`land`](Self::land) sets
    /// its target.
    fn unless(&mut self, comparison: u32, operand: u32) -> Jump {
        Jump {
            on: Some(false),
            ..self.when(comparison, operand)
        }
    }

    /// Adds an unconditional jump. [`land`](Self::land) sets its target.
    fn always(&mut self) -> Jump {
        Jump {
            from: self.push(BPF_JMP | BPF_JA, 0),
            on: None,
        }
    }

    /// Adds an instruction that stores the accumulator in the filter's memory.
    fn keep(&mut self) {
        self.push(BPF_ST, 0);
    }

    /// Adds a jump that is taken if the accumulator differs from the value in the filter's memory.
    fn unless_kept(&mut self) -> Jump {
        self.push(BPF_LDX | BPF_MEM, 0);
        Jump {
            from: self.push(BPF_JMP | BPF_JEQ | BPF_X, 0),
            on: Some(false),
        }
    }

    /// Sets the target of `jump`: the instruction that is added next.
    fn land(&mut self, jump: Jump) {
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

    /// Adds an instruction that ends the filter and passes `bytes` bytes of the datagram; 0 drops the datagram.
    fn give(&mut self, bytes: u32) {
        self.push(BPF_RET | BPF_K, bytes);
    }
}

/// A jump instruction whose target is not set yet.
#[derive(Clone, Copy)]
struct Jump {
    from: usize,
    /// The result of the comparison for which the jump is taken; `None` for an unconditional jump.
    on: Option<bool>,
}

/// Attaches a [`Filter`] to the socket of an IPv4 address, by which the kernel drops unexpected packets of programs of
/// this host. `base` is the first port of the devices' port range.
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
    // SAFETY: the value of the option is a program with its number of instructions, which are valid for the call. The kernel
    // copies and checks them.
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

/// Detaches the filter from a socket. The kernel then passes all packets.
pub(super) fn detach(socket: &Descriptor) -> io::Result<()> {
    super::set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
}
