//! Address vectors and address handles: the paths to ports.

mod common;

use rdma_core::address::{AddressHandle, AddressVector, StaticRate};
use rdma_core::{AddressChoice, Error};

#[test]
fn a_handle_outlives_the_domain_it_was_made_in() {
    let domain = common::context().protection_domain().unwrap();
    let here = domain.context().address(AddressChoice::default()).unwrap();
    let vector = AddressVector::new(&here, here.gid, here.lid);
    let handle = domain.address_handle(&vector).unwrap();
    drop(domain);
    assert!(!handle.clone().as_raw().is_null());
}

#[test]
fn a_vector_out_of_range_is_refused_by_name() {
    let domain = common::context().protection_domain().unwrap();
    let here = domain.context().address(AddressChoice::default()).unwrap();
    let good = AddressVector::new(&here, here.gid, here.lid);
    let refused = [
        (
            "service level",
            AddressVector {
                service_level: 16,
                ..good
            },
        ),
        (
            "flow label",
            AddressVector {
                flow_label: 1 << 20,
                ..good
            },
        ),
        (
            "GID index",
            AddressVector {
                gid_index: 256,
                ..good
            },
        ),
    ];
    for (named, vector) in refused {
        let error = domain.address_handle(&vector).unwrap_err();
        assert!(
            matches!(error, Error::InvalidArgument { what, .. } if what == named),
            "{error}"
        );
    }
}

#[test]
fn a_vector_survives_the_c_struct() {
    let context = common::context();
    let here = context.address(AddressChoice::default()).unwrap();
    let vector = AddressVector {
        flow_label: 0x1_2345,
        hop_limit: 3,
        traffic_class: 4,
        service_level: 5,
        source_path_bits: 6,
        static_rate: StaticRate(7),
        ..AddressVector::new(&here, here.gid, 8)
    };
    let raw = vector.to_raw().unwrap();
    assert_eq!(AddressVector::from_raw(&raw), vector);
}

#[test]
fn a_handle_made_elsewhere_is_taken_over() {
    let domain = common::context().protection_domain().unwrap();
    let here = domain.context().address(AddressChoice::default()).unwrap();
    let mut raw = AddressVector::new(&here, here.gid, here.lid)
        .to_raw()
        .unwrap();
    // SAFETY: the domain and the vector are valid; ownership of the handle passes to the next call.
    let handle = unsafe {
        let raw = ibverbs_sys::ibv_create_ah(domain.as_raw(), &mut raw);
        assert!(!raw.is_null());
        AddressHandle::from_raw(&domain, raw)
    };
    assert!(!handle.as_raw().is_null());
}

#[test]
fn an_unknown_path_is_an_error_with_the_gids() {
    let domain = common::context().protection_domain().unwrap();
    let here = domain.context().address(AddressChoice::default()).unwrap();
    let nowhere = AddressVector {
        gid_index: 255,
        ..AddressVector::new(&here, here.gid, here.lid)
    };
    let error = domain.address_handle(&nowhere).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Verb {
                verb: "ibv_create_ah",
                ..
            }
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&format!("GID index 255 to {}", here.gid)),
        "{text}"
    );
}
