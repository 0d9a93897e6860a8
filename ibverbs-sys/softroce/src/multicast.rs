//! Multicast groups: which queue pairs get a copy of what is sent to a group.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::context::{Held, Refusal, Shared};
use crate::limits::{MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};
use crate::queue_pair::QueuePair;

/// The multicast groups of a NIC: the queue pairs that are attached, by the group's GID.
///
/// A queue pair is in use as long as it is attached: it is not destroyed then (`ibv_destroy_qp(3)`).
#[derive(Debug)]
pub struct Groups<T: Shared = QueuePair> {
    groups: RwLock<HashMap<Ipv6Addr, Vec<Held<T>>>>,
}

/// What attaching or detaching means to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The group has its first queue pair: the NIC joins it.
    Joined,
    /// The group has lost its last queue pair: the NIC leaves it.
    Left,
    /// Nothing changes for the NIC.
    Unchanged,
}

impl<T: Shared> Groups<T> {
    /// No groups.
    pub fn new() -> Self {
        Self {
            groups: RwLock::default(),
        }
    }

    /// Attaches a queue pair. Once is enough: it gets a single copy in any case (`ibv_attach_mcast(3)`).
    pub fn attach(&self, group: Ipv6Addr, member: &Arc<T>) -> Result<Membership, Refusal> {
        let group = canonical(group).ok_or(Refusal::Invalid)?;
        let mut groups = self.groups.write();
        let Some(members) = groups.get_mut(&group) else {
            if groups.len() >= MAX_MCAST_GRP {
                return Err(Refusal::Exhausted);
            }
            groups.insert(group, vec![Held::new(member)?]);
            return Ok(Membership::Joined);
        };
        if members
            .iter()
            .any(|held| Arc::ptr_eq(held.shared(), member))
        {
            return Ok(Membership::Unchanged);
        }
        if members.len() >= MAX_MCAST_QP_ATTACH {
            return Err(Refusal::Exhausted);
        }
        members.push(Held::new(member)?);
        Ok(Membership::Unchanged)
    }

    /// Detaches a queue pair; refused if it is not attached.
    pub fn detach(&self, group: Ipv6Addr, member: &Arc<T>) -> Result<Membership, Refusal> {
        let group = canonical(group).ok_or(Refusal::Invalid)?;
        let mut groups = self.groups.write();
        let members = groups.get_mut(&group).ok_or(Refusal::Invalid)?;
        let place = members
            .iter()
            .position(|held| Arc::ptr_eq(held.shared(), member))
            .ok_or(Refusal::Invalid)?;
        members.swap_remove(place);
        if members.is_empty() {
            groups.remove(&group);
            return Ok(Membership::Left);
        }
        Ok(Membership::Unchanged)
    }

    /// The queue pairs that are attached to a group.
    pub fn members(&self, group: Ipv6Addr) -> SmallVec<[Arc<T>; 8]> {
        let groups = self.groups.read();
        canonical(group)
            .and_then(|group| groups.get(&group))
            .into_iter()
            .flatten()
            .map(|held| Arc::clone(held.shared()))
            .collect()
    }
}

impl<T: Shared> Default for Groups<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The one GID of a group; none if `gid` is that of no group.
///
/// A group of IPv4 has several: mapped as the address of a host is, and as a group with any scope, of which the
/// kernel uses the global one. All of them are the same packets on the wire.
pub fn canonical(gid: Ipv6Addr) -> Option<Ipv6Addr> {
    let mapped = if gid.is_multicast() {
        let [_, rest @ ..] = gid.segments();
        let [head @ .., high, low] = rest;
        let address = Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
        if head != [0, 0, 0, 0, 0xffff] || !address.is_multicast() {
            return Some(gid);
        }
        address
    } else {
        gid.to_ipv4_mapped()
            .filter(|address| address.is_multicast())?
    };
    let [.., high, low] = mapped.to_ipv6_mapped().segments();
    Some(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0xffff, high, low))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::sync::Arc;

    use super::{Groups, Membership, Refusal, canonical};
    use crate::context::{Shared, Usage};
    use crate::limits::{MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};

    #[derive(Default)]
    struct Member(Usage);

    impl Shared for Member {
        fn usage(&self) -> &Usage {
            &self.0
        }
    }

    fn group(number: u32) -> Ipv6Addr {
        Ipv4Addr::from(0xe000_0100 + number).to_ipv6_mapped()
    }

    #[test]
    fn a_member_is_in_use_until_it_is_detached() {
        let groups = Groups::new();
        let (one, two) = (Arc::<Member>::default(), Arc::<Member>::default());
        assert_eq!(groups.attach(group(0), &one), Ok(Membership::Joined));
        assert_eq!(groups.attach(group(0), &one), Ok(Membership::Unchanged));
        assert_eq!(groups.attach(group(0), &two), Ok(Membership::Unchanged));
        assert_eq!(groups.attach(group(1), &one), Ok(Membership::Joined));
        assert_eq!(groups.members(group(0)).len(), 2);
        assert_eq!(one.0.close(), Err(Refusal::Busy));

        assert_eq!(groups.detach(group(0), &one), Ok(Membership::Unchanged));
        assert_eq!(groups.detach(group(0), &one), Err(Refusal::Invalid));
        assert_eq!(groups.detach(group(1), &one), Ok(Membership::Left));
        assert_eq!(groups.detach(group(1), &one), Err(Refusal::Invalid));
        assert!(groups.members(group(1)).is_empty());
        assert_eq!(one.0.close(), Ok(()));
        assert_eq!(groups.attach(group(0), &one), Err(Refusal::Invalid));
        let members = groups.members(group(0));
        assert!(members.len() == 1 && Arc::ptr_eq(&members[0], &two));
    }

    #[test]
    fn there_are_limits() {
        let groups = Groups::new();
        let one = Arc::<Member>::default();
        for number in 0..u32::try_from(MAX_MCAST_GRP).unwrap() {
            groups.attach(group(number), &one).unwrap();
        }
        let more = group(u32::try_from(MAX_MCAST_GRP).unwrap());
        assert_eq!(groups.attach(more, &one), Err(Refusal::Exhausted));
        for _ in 1..MAX_MCAST_QP_ATTACH {
            groups.attach(group(0), &Arc::default()).unwrap();
        }
        assert_eq!(
            groups.attach(group(0), &Arc::default()),
            Err(Refusal::Exhausted)
        );
    }

    #[test]
    fn a_group_has_one_canonical_gid() {
        let of = |gid: &str| canonical(gid.parse().unwrap()).map(|gid| gid.to_string());
        let kernel = Some("ff0e::ffff:e000:109".to_owned());
        for gid in [
            "::ffff:224.0.1.9",
            "ff0e::ffff:224.0.1.9",
            "ff02::ffff:224.0.1.9",
        ] {
            assert_eq!(of(gid), kernel);
        }
        for gid in ["ff02::1", "ff0e::ffff:10.0.1.9", "ff0e:1::ffff:224.0.1.9"] {
            let itself: Ipv6Addr = gid.parse().unwrap();
            assert_eq!(canonical(itself), Some(itself));
        }
        for gid in ["::", "::ffff:127.0.0.1", "fd00::1", "::224.0.1.9"] {
            assert_eq!(of(gid), None);
            let groups = Groups::<Member>::new();
            let result = groups.attach(gid.parse().unwrap(), &Arc::default());
            assert_eq!(result, Err(Refusal::Invalid));
        }
        let groups = Groups::new();
        let member = Arc::<Member>::default();
        groups.attach(group(9), &member).unwrap();
        assert_eq!(
            groups
                .members("ff0e::ffff:224.0.1.9".parse().unwrap())
                .len(),
            1
        );
    }
}
