//! A filter in the kernel for what other programs of this host send: it takes no room in the socket, and no time of its owner.
//!
//! It is classic BPF, which needs no privileges and which Linux translates to machine code. At offset 0 is the UDP header.

use std::io;

use std::os::fd::AsRawFd;

use libc::{
    BPF_ABS, BPF_ALU, BPF_B, BPF_H, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_MEM, BPF_MOD,
    BPF_RET, BPF_ST, BPF_SUB, BPF_W, sock_filter, sock_fprog,
};

use crate::descriptor::Descriptor;
use crate::net::address::{SLOTS, STRIDE, unique_local};

/// Where the kernel shows the network header (linux/filter.h).
const NETWORK: u32 = -0x10_0000_i32 as u32;
/// The sender's address in an IPv4 header.
const SENDER: u32 = NETWORK + 12;
/// The UDP payload: a BTH, or an IPv6 header with the sender's GID.
const PAYLOAD: u32 = 8;
const GID: u32 = PAYLOAD + 8;

/// A filter for the socket of an IPv4 address.
///
/// It drops datagrams of senders in 127/8 that are no devices: that have another port than those of the slots, and do not name
/// the port and address that they send from in a header of a tunnel. What the rest say is looked at where they are received.
struct Filter {
    code: Vec<sock_filter>,
}

impl Filter {
    fn new(base: u16) -> Self {
        let mut prefix = [0; 6];
        let example = unique_local(std::net::SocketAddrV4::new([127, 0, 0, 1].into(), 1));
        prefix.copy_from_slice(&example.octets()[..6]);
        let [a, b, c, d, e, f] = prefix;
        let mut filter = Self { code: Vec::new() };
        filter.load(BPF_B, SENDER);
        let elsewhere = filter.unless(BPF_JEQ, 127);
        filter.load(BPF_H, 0);
        filter.calculate(BPF_SUB, base.into());
        // A port below the first becomes a large number.
        let above = filter.when(BPF_JGE, u32::from(SLOTS) * u32::from(STRIDE));
        filter.calculate(BPF_MOD, STRIDE.into());
        let slot = filter.when(BPF_JEQ, 0);
        filter.land(above);
        // The sender's GID, if it is the one that carries its address and port: see `address::unique_local`.
        filter.load(BPF_W, GID);
        let other = filter.unless(BPF_JEQ, u32::from_be_bytes([a, b, c, d]));
        filter.load(BPF_H, GID + 4);
        let same = filter.unless(BPF_JEQ, u32::from_be_bytes([0, 0, e, f]));
        filter.load(BPF_H, 0);
        filter.keep();
        filter.load(BPF_H, GID + 6);
        let port = filter.unless_kept();
        filter.load(BPF_W, SENDER);
        filter.keep();
        filter.load(BPF_W, GID + 12);
        let address = filter.unless_kept();
        filter.land(elsewhere);
        filter.land(slot);
        filter.give(u32::MAX);
        for stranger in [other, same, port, address] {
            filter.land(stranger);
        }
        filter.give(0);
        filter
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

    /// Loads a word, half a word or a byte to the accumulator. A datagram that is shorter is dropped.
    fn load(&mut self, size: u32, offset: u32) {
        self.push(BPF_LD | size | BPF_ABS, offset);
    }

    fn calculate(&mut self, operation: u32, operand: u32) {
        self.push(BPF_ALU | operation | BPF_K, operand);
    }

    /// Jumps to where it [lands](Self::land) if the accumulator compares so.
    fn when(&mut self, comparison: u32, operand: u32) -> Jump {
        Jump {
            from: self.push(BPF_JMP | comparison | BPF_K, operand),
            when: true,
        }
    }

    /// Jumps if it does not.
    fn unless(&mut self, comparison: u32, operand: u32) -> Jump {
        Jump {
            when: false,
            ..self.when(comparison, operand)
        }
    }

    /// Stores the accumulator.
    fn keep(&mut self) {
        self.push(BPF_ST, 0);
    }

    /// Jumps if the accumulator is not what was stored.
    fn unless_kept(&mut self) -> Jump {
        self.push(libc::BPF_LDX | BPF_MEM, 0);
        Jump {
            from: self.push(BPF_JMP | BPF_JEQ | libc::BPF_X, 0),
            when: false,
        }
    }

    /// The jump goes to what is pushed next.
    fn land(&mut self, jump: Jump) {
        let distance = (self.code.len() - jump.from - 1) as u8;
        let from = &mut self.code[jump.from];
        if jump.when {
            from.jt = distance;
        } else {
            from.jf = distance;
        }
    }

    /// Ends, with so many bytes of the datagram.
    fn give(&mut self, bytes: u32) {
        self.push(BPF_RET | BPF_K, bytes);
    }
}

/// A jump that has not landed yet.
#[derive(Clone, Copy)]
struct Jump {
    from: usize,
    when: bool,
}

/// Has the kernel drop what programs of this host send to a socket of an IPv4 address that are no devices. `base` is the port of
/// the first slot.
pub(super) fn attach(socket: &Descriptor, base: u16) -> io::Result<()> {
    let mut filter = Filter::new(base);
    let program = sock_fprog {
        len: filter.code.len() as u16,
        filter: filter.code.as_mut_ptr(),
    };
    // SAFETY: the option's value is a program, whose instructions are there with their number; the kernel copies and checks them.
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
