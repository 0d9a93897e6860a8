use bitflags::bitflags;
use ibverbs_sys::ibv_qp_cap;

use super::error::PostError;
use crate::proto::{
    Flush, GatherList, Inline, Path, Payload, Segment, SendOperation, SendRequest, Service,
};

bitflags! {
    /// Flags of a send request, with the bits of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct SendFlags: u32 {
        const FENCE = 1;
        const SIGNALED = 1 << 1;
        const SOLICITED = 1 << 2;
        const INLINE = 1 << 3;
        const IP_CHECKSUM = 1 << 4;
    }
}

/// Properties of a queue pair that determine which requests the program may post. The properties
/// are fixed when the queue pair is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) service: Service,
    pub(crate) capabilities: ibv_qp_cap,
}

impl Rules {
    /// Checks that the queue pair permits a send request with `number` segments (at most
    /// `max_send_sge`). Returns `number`.
    pub(crate) fn send_segments(&self, number: usize) -> Result<usize, PostError> {
        within(number, self.capabilities.max_send_sge)
    }

    /// Checks that the queue pair permits a receive request with `number` segments (at most
    /// `max_recv_sge`). Returns `number`.
    pub(crate) fn receive_segments(&self, number: usize) -> Result<usize, PostError> {
        within(number, self.capabilities.max_recv_sge)
    }

    /// Checks that the queue pair permits a send request with `bytes` bytes of inline data (at most
    /// `max_inline_data`). Returns `bytes`.
    pub(crate) fn inline(&self, bytes: u64) -> Result<u32, PostError> {
        u32::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= self.capabilities.max_inline_data)
            .ok_or(PostError::Inline)
    }

    /// Returns whether the queue pair's transport service supports `operation`, by the table of
    /// `ibv_post_send(3)`.
    #[inline]
    fn allows(&self, operation: &SendOperation) -> bool {
        match self.service {
            Service::ReliableConnection | Service::XrcInitiator => true,
            Service::UnreliableConnection => matches!(
                operation,
                SendOperation::Send { .. }
                    | SendOperation::Write { .. }
                    | SendOperation::Bind(_)
                    | SendOperation::LocalInvalidate { .. }
            ),
            Service::UnreliableDatagram => matches!(
                operation,
                SendOperation::Send {
                    invalidate: None,
                    ..
                }
            ),
            Service::XrcTarget => false,
        }
    }
}

fn within(number: usize, most: u32) -> Result<usize, PostError> {
    if number <= most as usize {
        Ok(number)
    } else {
        Err(PostError::Segments)
    }
}

/// Destination of a datagram: the path, the queue pair number and the queue key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) path: Path,
    pub(crate) destination: u32,
    pub(crate) queue_key: u32,
}

/// A send request that is under construction and has not been checked.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    id: u64,
    flags: u32,
    operation: SendOperation,
    payload: Payload,
    length: u64,
    address: Option<Address>,
    xrc_srq: Option<u32>,
}

impl Draft {
    /// Creates a send request without data, with the work request ID `id` and the flags `flags`
    /// (`ibv_send_flags`). For a datagram, `operation` must be a send, and the caller must set an
    /// [`Address`] later.
    #[inline]
    pub(crate) fn new(id: u64, flags: u32, operation: SendOperation) -> Self {
        Self {
            id,
            flags,
            operation,
            payload: Payload::Gathered(GatherList::new()),
            length: 0,
            address: None,
            xrc_srq: None,
        }
    }

    /// Sets the data of the request to the ranges `segments` of registered memory. The length of
    /// the data is the sum of the lengths of the segments.
    #[inline]
    pub(crate) fn gather(&mut self, segments: impl Iterator<Item = Segment>) {
        let mut list = GatherList::new();
        self.length = 0;
        for segment in segments {
            self.length += u64::from(segment.length);
            list.push(segment);
        }
        self.payload = Payload::Gathered(list);
    }

    /// Sets the data of the request to the inline bytes `data`, which are stored in the request
    /// itself.
    pub(crate) fn inline(&mut self, data: Inline) {
        self.length = data.len() as u64;
        self.payload = Payload::Inline(data);
    }

    pub(crate) fn address(&mut self, address: Address) {
        self.address = Some(address);
    }

    pub(crate) fn xrc_srq(&mut self, number: u32) {
        self.xrc_srq = Some(number);
    }

    /// Checks that the request is valid for a queue pair. `rules` are the limits and the transport
    /// service of the queue pair. Returns the checked request, which can be posted to this queue
    /// pair.
    #[inline]
    pub(crate) fn finish(self, rules: &Rules) -> Result<SendRequest, PostError> {
        if !rules.allows(&self.operation) {
            return Err(PostError::Operation);
        }
        let flags = SendFlags::from_bits(self.flags).ok_or(PostError::Flags)?;
        if flags.contains(SendFlags::IP_CHECKSUM) {
            // The device does not report `IBV_DEVICE_UD_IP_CSUM`, so the flag is invalid.
            return Err(PostError::Flags);
        }
        let is_inline = matches!(self.payload, Payload::Inline(_));
        let mut solicited = false;
        let mut has_payload = true;
        match &self.operation {
            SendOperation::Send { .. } => solicited = true,
            SendOperation::Write { immediate, .. } => solicited = immediate.is_some(),
            _ if is_inline => return Err(PostError::Inline),
            SendOperation::AtomicWrite { .. } => has_payload = false,
            SendOperation::Flush(flush) => {
                let is_known = matches!(flush.level, Flush::RANGE | Flush::REGION);
                if Flush::rights(flush.placement).is_none() || !is_known {
                    return Err(PostError::Flags);
                }
                has_payload = false;
            }
            // The result of an atomic has exactly eight bytes (IBTA 9.4.5).
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. }
                if self.length != 8 =>
            {
                return Err(PostError::Length);
            }
            _ => {}
        }
        let operation = match (rules.service, self.operation) {
            (Service::UnreliableDatagram, SendOperation::Send { immediate, .. }) => {
                let address = self.address.ok_or(PostError::Address)?;
                if address.destination >= 1 << 24 {
                    return Err(PostError::Address);
                }
                SendOperation::Datagram {
                    immediate,
                    path: address.path,
                    destination: address.destination,
                    queue_key: address.queue_key,
                }
            }
            (_, operation) => operation,
        };
        let xrc_srq = match (rules.service, &operation) {
            // Local operations have no destination, so the address is ignored.
            (_, SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. }) => None,
            (Service::XrcInitiator, _) => Some(self.xrc_srq.ok_or(PostError::Order)?),
            _ => None,
        };
        let (payload, length) = match has_payload {
            true => (self.payload, self.length),
            // `ibv_wr_post(3)` permits segments, which have no effect.
            false => (Payload::Gathered(GatherList::new()), 0),
        };
        Ok(SendRequest {
            id: self.id,
            operation,
            payload,
            // A message that is too long is not rejected here, but completes with a length error
            // (IBTA 11.6.2).
            length: u32::try_from(length).unwrap_or(u32::MAX),
            xrc_srq,
            signaled: flags.contains(SendFlags::SIGNALED),
            solicited: solicited && flags.contains(SendFlags::SOLICITED),
            fence: flags.contains(SendFlags::FENCE),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use ibverbs_sys::ibv_qp_cap;

    use super::{Address, Draft, PostError, Rules, SendFlags};
    use crate::proto::{
        AccessFlags, Flush, Inline, Path, Remote, Segment, SendOperation, Service, WindowBinding,
    };
    use crate::queue_pair::transition::tests::SERVICES;

    const REMOTE: Remote = Remote { address: 8, key: 1 };

    const FLUSH: Flush = Flush {
        remote: REMOTE,
        length: 1 << 20,
        placement: Flush::GLOBAL,
        level: Flush::RANGE,
    };

    pub(in crate::queue_pair) fn rules(service: Service) -> Rules {
        Rules {
            service,
            capabilities: ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 16,
            },
        }
    }

    pub(in crate::queue_pair) fn address() -> Address {
        Address {
            path: Path {
                source: 0,
                destination: std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped(),
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            },
            destination: 17,
            queue_key: 0x1111,
        }
    }

    fn segment(length: u32) -> Segment {
        Segment {
            address: 0x1000,
            length,
            key: 7,
        }
    }

    fn send() -> SendOperation {
        SendOperation::Send {
            immediate: None,
            invalidate: None,
        }
    }

    fn operations() -> Vec<(&'static str, SendOperation)> {
        vec![
            ("send", send()),
            (
                "send with immediate",
                SendOperation::Send {
                    immediate: Some([1; 4]),
                    invalidate: None,
                },
            ),
            (
                "write",
                SendOperation::Write {
                    remote: REMOTE,
                    immediate: None,
                },
            ),
            (
                "write with immediate",
                SendOperation::Write {
                    remote: REMOTE,
                    immediate: Some([1; 4]),
                },
            ),
            ("read", SendOperation::Read { remote: REMOTE }),
            (
                "compare and swap",
                SendOperation::CompareSwap {
                    remote: REMOTE,
                    compare: 1,
                    swap: 2,
                },
            ),
            (
                "fetch and add",
                SendOperation::FetchAdd {
                    remote: REMOTE,
                    add: 1,
                },
            ),
            (
                "atomic store",
                SendOperation::AtomicWrite {
                    remote: REMOTE,
                    bytes: [1; 8],
                },
            ),
            ("flush", SendOperation::Flush(FLUSH)),
            (
                "local invalidate",
                SendOperation::LocalInvalidate { key: 1 },
            ),
            (
                "bind",
                SendOperation::Bind(WindowBinding {
                    window: 0x100,
                    key: 0x101,
                    region: 0x200,
                    address: 0,
                    length: 8,
                    access: AccessFlags::REMOTE_READ,
                }),
            ),
            (
                "send with invalidate",
                SendOperation::Send {
                    immediate: None,
                    invalidate: Some(1),
                },
            ),
        ]
    }

    /// Returns a request with the operation `operation` for tests. All fields are set, so that the
    /// request is valid for each queue pair type that supports the operation.
    fn draft(operation: SendOperation) -> Draft {
        let length = match operation {
            SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. } => 0,
            _ => 8,
        };
        let mut draft = Draft::new(9, 0, operation);
        draft.gather([segment(length)].into_iter());
        draft.address(address());
        draft.xrc_srq(3);
        draft
    }

    #[test]
    fn each_queue_pair_type_accepts_the_operations_of_the_manual_page() {
        //              s  si w  wi r  cs fa aw fl li b  sinv
        let table = [
            [true; 12], // RC
            [
                true, true, true, true, false, false, false, false, false, true, true, true,
            ], // UC
            [
                true, true, false, false, false, false, false, false, false, false, false, false,
            ], // UD
            [true; 12], // XRC initiator
            [false; 12], // XRC target
        ];
        for (service, row) in SERVICES.into_iter().zip(table) {
            for ((name, operation), allowed) in operations().into_iter().zip(row) {
                let result = draft(operation).finish(&rules(service));
                if allowed {
                    assert!(result.is_ok(), "{service:?} {name}: {result:?}");
                } else {
                    assert_eq!(result, Err(PostError::Operation), "{service:?} {name}");
                }
            }
        }
    }

    #[test]
    fn a_datagram_needs_an_address() {
        let rules = rules(Service::UnreliableDatagram);
        let request = draft(send()).finish(&rules).unwrap();
        assert_eq!(
            request.operation,
            SendOperation::Datagram {
                immediate: None,
                path: address().path,
                destination: 17,
                queue_key: 0x1111,
            }
        );
        let bare = Draft::new(1, 0, send());
        assert_eq!(bare.finish(&rules), Err(PostError::Address));
        let mut wide = draft(send());
        wide.address(Address {
            destination: 1 << 24,
            ..address()
        });
        assert_eq!(wide.finish(&rules), Err(PostError::Address));
    }

    #[test]
    fn an_xrc_request_needs_the_receive_queue_of_the_target() {
        let rules = rules(Service::XrcInitiator);
        let bare = Draft::new(1, 0, send());
        assert_eq!(bare.finish(&rules), Err(PostError::Order));
        assert_eq!(draft(send()).finish(&rules).unwrap().xrc_srq, Some(3));
        let local = Draft::new(1, 0, SendOperation::LocalInvalidate { key: 1 });
        assert_eq!(local.finish(&rules).unwrap().xrc_srq, None);
    }

    #[test]
    fn atomic_operations_have_eight_bytes() {
        let rules = rules(Service::ReliableConnection);
        let operation = SendOperation::FetchAdd {
            remote: REMOTE,
            add: 1,
        };
        for (lengths, right) in [
            (&[8][..], true),
            (&[4, 4], true),
            (&[], false),
            (&[7], false),
            (&[9], false),
            (&[8, 8], false),
        ] {
            let mut draft = Draft::new(1, 0, operation.clone());
            draft.gather(lengths.iter().map(|length| segment(*length)));
            let result = draft.finish(&rules);
            assert_eq!(result.is_ok(), right, "{lengths:?}");
            assert_eq!(result.err(), (!right).then_some(PostError::Length));
        }
    }

    #[test]
    fn atomic_writes_and_flushes_have_no_local_memory() {
        let rules = rules(Service::ReliableConnection);
        let write = SendOperation::AtomicWrite {
            remote: REMOTE,
            bytes: [1; 8],
        };
        for operation in [write, SendOperation::Flush(FLUSH)] {
            let request = draft(operation).finish(&rules).unwrap();
            assert_eq!(
                (request.length, request.payload.data().length()),
                (0, Some(0))
            );
        }
        for (placement, level, right) in [
            (1, 1, true),
            (3, 0, true),
            (0, 0, false),
            (4, 0, false),
            (1, 2, false),
        ] {
            let flush = Flush {
                placement,
                level,
                ..FLUSH
            };
            let result = draft(SendOperation::Flush(flush)).finish(&rules);
            assert_eq!(
                result.err(),
                (!right).then_some(PostError::Flags),
                "{flush:?}"
            );
        }
    }

    #[test]
    fn only_sends_and_writes_are_inline() {
        let rules = rules(Service::ReliableConnection);
        for (name, operation) in operations() {
            let may = name.contains("send") || name.contains("write");
            let mut draft = Draft::new(1, 0, operation);
            draft.inline(Inline::from_slice(&[1; 8]));
            let result = draft.finish(&rules);
            assert_eq!(result.err(), (!may).then_some(PostError::Inline), "{name}");
        }
        assert_eq!(rules.inline(16), Ok(16));
        assert_eq!(rules.inline(17), Err(PostError::Inline));
        assert_eq!(rules.inline(1 << 32), Err(PostError::Inline));
    }

    #[test]
    fn the_number_of_segments_is_limited_and_their_total_length_is_returned() {
        let rules = rules(Service::ReliableConnection);
        for (lengths, sum) in [([1, 2], 3), ([u32::MAX, 1], u32::MAX)] {
            let mut draft = Draft::new(1, 0, send());
            draft.gather(lengths.into_iter().map(segment));
            assert_eq!(draft.finish(&rules).unwrap().length, sum);
        }
        assert_eq!(rules.send_segments(2), Ok(2));
        assert_eq!(rules.send_segments(3), Err(PostError::Segments));
        assert_eq!(rules.receive_segments(3), Err(PostError::Segments));
    }

    #[test]
    fn flags_are_accepted_only_for_operations_that_define_them() {
        let rules = rules(Service::ReliableConnection);
        let all = SendFlags::FENCE | SendFlags::SIGNALED | SendFlags::SOLICITED;
        for (name, operation) in operations() {
            let mut draft = draft(operation);
            draft.flags = all.bits();
            let request = draft.finish(&rules).unwrap();
            let asks = name.contains("send") || name == "write with immediate";
            assert_eq!(request.solicited, asks, "{name}");
            assert!(request.signaled && request.fence);
        }
        for flags in [SendFlags::IP_CHECKSUM.bits(), 1 << 5, 1 << 31] {
            let mut draft = draft(send());
            draft.flags = flags;
            assert_eq!(draft.finish(&rules), Err(PostError::Flags));
        }
    }
}
