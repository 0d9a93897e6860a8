//! The way to a port: address vectors and handles.

mod common;

use rdma_core::{AddressChoice, AddressVector, Error};

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
        static_rate: 7,
        ..AddressVector::new(&here, here.gid, 8)
    };
    let raw = vector.to_raw().unwrap();
    assert_eq!(AddressVector::from_raw(&raw), vector);
}
