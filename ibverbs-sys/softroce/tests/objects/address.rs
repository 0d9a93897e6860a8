//! Address handles.

use super::*;

fn address_of(context: *mut ibv_context, index: u8) -> ibv_ah_attr {
    // SAFETY: the context is open, and zeros are a valid address.
    unsafe {
        let mut attr: ibv_ah_attr = zeroed();
        assert_eq!(
            ibv_query_gid(context, 1, index.into(), &raw mut attr.grh.dgid),
            0
        );
        (attr.is_global, attr.port_num, attr.grh.sgid_index) = (1, 1, index);
        attr.grh.hop_limit = 64;
        attr
    }
}

#[test]
fn address_handles_have_a_route_that_fits() {
    with_domain(|context, pd| {
        // SAFETY: all objects are valid until they are destroyed.
        unsafe {
            let good = address_of(context, 0);
            let make = |change: &dyn Fn(&mut ibv_ah_attr)| {
                let mut attr = good;
                change(&mut attr);
                ibv_create_ah(pd, &raw mut attr)
            };
            refused(make(&|attr| attr.is_global = 0), EINVAL);
            refused(make(&|attr| attr.port_num = 0), EINVAL);
            refused(make(&|attr| attr.port_num = 2), EINVAL);
            refused(make(&|attr| attr.grh.sgid_index = 255), EINVAL);
            refused(make(&|attr| attr.grh.dgid.raw = [0; 16]), EINVAL);
            let mut ipv6 = [0; 16];
            ipv6[0] = 0xfd;
            refused(make(&|attr| attr.grh.dgid.raw = ipv6), EINVAL);
            let ah = make(&|_| ());
            assert!(!ah.is_null());
            assert_eq!((*ah).pd, pd);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            assert_eq!(ibv_destroy_ah(ah), 0);
            let mut group = [0; 16];
            group[10..].copy_from_slice(&[0xff, 0xff, 239, 1, 2, 3]);
            let ah = make(&|attr| attr.grh.dgid.raw = group);
            assert!(!ah.is_null());
            assert_eq!(ibv_destroy_ah(ah), 0);

            let (mut mac, mut vlan, mut attr) = ([0xff_u8; 6], 0, good);
            let answer = ibv_resolve_eth_l2_from_gid(
                context,
                &raw mut attr,
                mac.as_mut_ptr(),
                &raw mut vlan,
            );
            assert_eq!((answer, mac, vlan), (0, [0; 6], 0xffff));
            attr.grh.sgid_index = 255;
            let answer = ibv_resolve_eth_l2_from_gid(
                context,
                &raw mut attr,
                mac.as_mut_ptr(),
                &raw mut vlan,
            );
            assert_eq!(answer, -EINVAL);
        }
    });
}

/// Returns the header in front of the data of a datagram from `from` to `to`.
fn header(from: [u8; 16], to: [u8; 16]) -> ibv_grh {
    let mut bytes = [0_u8; 40];
    bytes[20..32].copy_from_slice(&[0x45, 3, 0, 60, 0, 0, 0x40, 0, 61, 17, 0, 0]);
    bytes[32..36].copy_from_slice(&from[12..]);
    bytes[36..].copy_from_slice(&to[12..]);
    // SAFETY: any forty bytes are a valid header.
    unsafe { bytes.as_ptr().cast::<ibv_grh>().read_unaligned() }
}

#[test]
fn a_response_reaches_the_sender() {
    with_domain(|context, pd| {
        // SAFETY: all objects are valid until they are destroyed.
        unsafe {
            let local = address_of(context, 0).grh.dgid.raw;
            let mut remote = local;
            remote[15] ^= 1;
            let mut wc: ibv_wc = zeroed();
            wc.wc_flags = ibv_wc_flags::IBV_WC_GRH.0;
            // The kind of the network header, which is no service level.
            wc.sl = 2;
            let mut grh = header(remote, local);
            let mut attr: ibv_ah_attr = zeroed();
            let init = |wc: &mut ibv_wc, grh: &mut ibv_grh, attr: &mut ibv_ah_attr| {
                ibv_init_ah_from_wc(context, 1, wc, grh, attr)
            };
            assert_eq!(init(&mut wc, &mut grh, &mut attr), 0);
            assert_eq!((attr.grh.dgid.raw, attr.sl), (remote, 0));
            assert_eq!(
                (attr.is_global, attr.port_num, attr.grh.sgid_index),
                (1, 1, 0)
            );
            assert_eq!((attr.grh.hop_limit, attr.grh.traffic_class), (61, 3));
            let ah = ibv_create_ah_from_wc(pd, &raw mut wc, &raw mut grh, 1);
            assert!(!ah.is_null());
            assert_eq!(ibv_destroy_ah(ah), 0);

            let mut stray = header(remote, remote);
            assert_eq!(init(&mut wc, &mut stray, &mut attr), -1, "not sent to us");
            let mut neither: ibv_grh = zeroed();
            assert_eq!(init(&mut wc, &mut neither, &mut attr), -1);
            assert_eq!(errno(), libc::EPROTONOSUPPORT);
            wc.wc_flags = 0;
            assert_eq!(init(&mut wc, &mut neither, &mut attr), 0);
            assert_eq!(attr.is_global, 0);
            refused(
                ibv_create_ah_from_wc(pd, &raw mut wc, &raw mut grh, 1),
                EINVAL,
            );
        }
    });
}
